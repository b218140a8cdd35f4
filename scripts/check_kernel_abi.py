#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every kernel has one name and a body for each backend's table.

Every KernelId constant of include/metrale/kernels/*.h
- carries the stem of its header as family, and a (family, function) pair of its own;
- has its argument size pinned by a static_assert(sizeof(Args) == N) beside it, so that a slip in the ABI shows;
- is registered once in the CPU table (table.add<body>(kName) under src/kernels/), which registers nothing else.
"""

import dataclasses
import re
from pathlib import Path

import source_tree

KERNEL_ID = re.compile(
    r'constexpr\s+(?:\w+::)*KernelId<\s*([\w:]+)\s*>\s*(k\w+)\s*\{\s*"([^"]*)"\s*,\s*"([^"]*)"\s*\}')
REGISTRATION = re.compile(r"\.\s*add\s*(?:<[^;{}]*?>)?\s*\(\s*(?:\w+::)*(k[A-Z]\w*)\s*\)")


@dataclasses.dataclass(frozen=True)
class Kernel:
    constant: str
    args: str
    args_bytes: int | None  # of the static_assert
    family: str
    function: str
    place: str
    stem: str


def declared(root):
    found = []
    for path in source_tree.files(root, ("include/metrale/kernels",), (".h",)):
        text = source_tree.blank_comments(source_tree.read(root, path))
        for match in KERNEL_ID.finditer(text):
            args, constant, family, function = match.groups()
            size = re.search(rf"static_assert\(\s*sizeof\({re.escape(args)}\)\s*==\s*(\d+)", text)
            found.append(Kernel(constant, args, int(size.group(1)) if size else None, family, function,
                                f"{path}:{source_tree.line_of(text, match.start())}", Path(path).stem))
    return found


def declaration_problems(kernels):
    names = {}
    for kernel in kernels:
        label = f"{kernel.place}: {kernel.constant}"
        other = names.setdefault((kernel.family, kernel.function), kernel)
        if other is not kernel:
            yield f"{label} has the name of {other.constant}: {kernel.family}::{kernel.function}"
        if kernel.family != kernel.stem:
            yield f"{label} is of family '{kernel.family}' but stands in {kernel.stem}.h"
        if kernel.args_bytes is None:
            yield f"{label}: no static_assert(sizeof({kernel.args}) == N) in the header"


def cpu_registrations(root):
    """(constant, place) of each registration in the CPU table."""
    found = []
    for path in source_tree.files(root, ("src/kernels",), (".cpp", ".h")):
        text = source_tree.blank_comments(source_tree.read(root, path))
        found += [(m.group(1), f"{path}:{source_tree.line_of(text, m.start())}") for m in REGISTRATION.finditer(text)]
    return found


def table_problems(table, kernels, registrations):
    """Compares what is declared with what one backend's table holds."""
    places = {}
    for constant, place in registrations:
        if constant in places:
            yield f"{place}: {constant} is in the {table} table already ({places[constant]})"
        places.setdefault(constant, place)
    known = {kernel.constant for kernel in kernels}
    for constant, place in places.items():
        if constant not in known:
            yield f"{place}: the {table} table has {constant}, which no header under include/metrale/kernels declares"
    for kernel in kernels:
        if kernel.constant not in places:
            yield f"{kernel.place}: {kernel.constant} has no body in the {table} table"


def problems(root):
    kernels = declared(root)
    found = list(declaration_problems(kernels))
    if (root / "src/kernels").is_dir():
        found += table_problems("CPU", kernels, cpu_registrations(root))
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
