#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every kernel has one name and a body for each backend's table.

Every KernelId constant of include/metrale/kernels/*.h
- carries the stem of its header as family, and a (family, function) pair of its own;
- has its argument size pinned by a static_assert(sizeof(Args) == N) beside it, so that a slip in the ABI shows;
- is registered once in the CPU table (table.add<body>(kName) under src/kernels/), which registers nothing else; a line
  `// cuda-only` above the constant says that it has no CPU body;
- is registered in the CUDA table: table.add(kName), add_checked<check>(table, kName) or table.add_host(kName, ...) in
  src/kernels/**/cuda*.cpp or cublaslt*.cpp. Several host bodies of one kernel are alternatives.

The device symbol of a CUDA registration that is no add_host is `extern "C" __global__ void <function>(const
__grid_constant__ <Args> a)` in a .cu file of src/kernels/<family>/. With --ptx DIR, where <family>.ptx lies (nvcc -ptx;
the target kernel_ptx makes them; not for families that are cuda-only,
which a build may lack), every device symbol takes one parameter of the size that its struct is pinned to.
"""

import argparse
import dataclasses
import re
from pathlib import Path

import source_tree

KERNEL_ID = re.compile(
    r'constexpr\s+(?:\w+::)*KernelId<\s*([\w:]+)\s*>\s*(k\w+)\s*\{\s*"([^"]*)"\s*,\s*"([^"]*)"\s*\}')
CONSTANT = r"(?:\w+::)*(k[A-Z]\w*)"
REGISTRATION = re.compile(
    rf"\.\s*add\s*(?:<[^;{{}}]*?>)?\s*\(\s*{CONSTANT}\s*\)"
    rf"|\badd_checked\s*<[^;{{}}]*?>\s*\(\s*\w+\s*,\s*{CONSTANT}\s*\)")
HOST_REGISTRATION = re.compile(rf"\.\s*add_host\s*\(\s*{CONSTANT}\s*,")
CUDA_FILE = re.compile(r"(?:cuda|cublaslt)\w*\.(?:cpp|h)")
DEVICE_SYMBOL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()]*)\)')
ONE_STRUCT = re.compile(r"\s*const\s+__grid_constant__\s+(?:\w+::)*(\w+)\s+\w+\s*")
PTX_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(([^()]*)\)")
PTX_STRUCT = re.compile(r"\s*\.param\s+(?:\.align\s+\d+\s+)?\.b8\s+\w+\[(\d+)\]\s*")


@dataclasses.dataclass(frozen=True)
class Kernel:
    constant: str
    args: str
    args_bytes: int | None  # of the static_assert
    family: str
    function: str
    place: str
    stem: str
    cuda_only: bool


def declared(root):
    found = []
    for path in source_tree.files(root, ("include/metrale/kernels",), (".h",)):
        raw = source_tree.read(root, path)
        lines = raw.splitlines()
        text = source_tree.blank_comments(raw)
        for match in KERNEL_ID.finditer(text):
            args, constant, family, function = match.groups()
            size = re.search(rf"static_assert\(\s*sizeof\({re.escape(args)}\)\s*==\s*(\d+)", text)
            line = source_tree.line_of(text, match.start())
            cuda_only = line > 1 and lines[line - 2].strip() == "// cuda-only"
            found.append(Kernel(constant, args.rpartition(":")[2], int(size.group(1)) if size else None, family,
                                function, f"{path}:{line}", Path(path).stem, cuda_only))
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


@dataclasses.dataclass(frozen=True)
class Registration:
    constant: str
    place: str
    host: bool  # a host body of the CUDA table


def registrations(root, cuda):
    """What the CUDA table or the CPU table is given."""
    found = []
    for path in source_tree.files(root, ("src/kernels",), (".cpp", ".h")):
        if bool(CUDA_FILE.fullmatch(Path(path).name)) != cuda:
            continue
        text = source_tree.blank_comments(source_tree.read(root, path))
        for pattern in (REGISTRATION, HOST_REGISTRATION) if cuda else (REGISTRATION,):
            for match in pattern.finditer(text):
                constant = next(group for group in match.groups() if group)
                place = f"{path}:{source_tree.line_of(text, match.start())}"
                found.append(Registration(constant, place, pattern is HOST_REGISTRATION))
    return found


def table_problems(table, kernels, entries):
    """Compares what is declared with what one backend's table holds."""
    first = {}
    for entry in entries:
        other = first.setdefault(entry.constant, entry)
        if other is not entry and not (other.host and entry.host):
            yield f"{entry.place}: {entry.constant} is in the {table} table already ({other.place})"
    known = {kernel.constant for kernel in kernels}
    for constant, entry in first.items():
        if constant not in known:
            yield (f"{entry.place}: the {table} table has {constant}, which no header under include/metrale/kernels "
                   "declares")
    for kernel in kernels:
        if kernel.constant not in first and not (kernel.cuda_only and table == "CPU"):
            yield f"{kernel.place}: {kernel.constant} has no body in the {table} table"


@dataclasses.dataclass(frozen=True)
class Symbol:
    family: str
    function: str
    args: str | None  # of the one struct that it takes
    place: str


def device_symbols(root):
    found = []
    for path in source_tree.files(root, ("src/kernels",), (".cu",)):
        text = source_tree.blank_comments(source_tree.read(root, path))
        for match in DEVICE_SYMBOL.finditer(text):
            args = ONE_STRUCT.fullmatch(match.group(2))
            found.append(Symbol(Path(path).parent.name, match.group(1), args.group(1) if args else None,
                                f"{path}:{source_tree.line_of(text, match.start())}"))
    return found


def symbol_problems(kernels, entries, symbols):
    """Compares the CUDA table with the device code."""
    by_name = {(symbol.family, symbol.function): symbol for symbol in symbols}
    by_constant = {kernel.constant: kernel for kernel in kernels}
    for entry in entries:
        kernel = by_constant.get(entry.constant)
        if entry.host or kernel is None:
            continue
        symbol = by_name.get((kernel.stem, kernel.function))
        if symbol is None:
            yield (f"{entry.place}: {entry.constant} has no extern \"C\" __global__ void {kernel.function}(...) in a "
                   f".cu file of src/kernels/{kernel.stem}")
        elif symbol.args != kernel.args:
            yield f"{symbol.place}: {kernel.function} does not take one const __grid_constant__ {kernel.args}"


def ptx_problems(folder, kernels, symbols):
    """Compares the sizes of parameters in PTX with the structs'."""
    sizes = {kernel.args: kernel.args_bytes for kernel in kernels}
    entries = {}
    foreign = {kernel.stem for kernel in kernels} - {kernel.stem for kernel in kernels if not kernel.cuda_only}
    for family in sorted({symbol.family for symbol in symbols} - foreign):
        path = folder / f"{family}.ptx"
        if not path.is_file():
            yield f"{path}: missing; build the target kernel_ptx"
            continue
        entries[family] = dict(PTX_ENTRY.findall(path.read_text(encoding="utf-8")))
    for symbol in symbols:
        if symbol.family not in entries or sizes.get(symbol.args) is None:
            continue
        params = entries[symbol.family].get(symbol.function)
        if params is None:
            yield f"{symbol.place}: {symbol.function} is not in {symbol.family}.ptx"
            continue
        struct = PTX_STRUCT.fullmatch(params)
        if struct is None or int(struct.group(1)) != sizes[symbol.args]:
            found = f"{struct.group(1)} bytes" if struct else " ".join(params.split())
            yield (f"{symbol.place}: {symbol.function} takes {found} in {symbol.family}.ptx, "
                   f"{symbol.args} has {sizes[symbol.args]} bytes")


def problems(root, ptx=None):
    kernels = declared(root)
    found = list(declaration_problems(kernels))
    if (root / "src/kernels").is_dir():
        cuda = registrations(root, cuda=True)
        symbols = device_symbols(root)
        found += table_problems("CPU", kernels, registrations(root, cuda=False))
        found += table_problems("CUDA", kernels, cuda)
        found += symbol_problems(kernels, cuda, symbols)
        if ptx is not None:
            found += ptx_problems(ptx, kernels, symbols)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--ptx", type=Path, default=None, help="the folder of <family>.ptx")
    source_tree.main(__doc__, problems, parser)
