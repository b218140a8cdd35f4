#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks docs/settings.md against the code: every command-line option (add_option and add_flag in apps/ and src/) and
every environment variable (METRALE_... in src/runtime) has a row there, and every row exists in the code.

A row is a table line whose first cell holds the name in backticks: | `--seed` | ... |
"""

import re

import source_tree

SETTINGS = "docs/settings.md"
ADD_OPTION = re.compile(r'\badd_(?:option|flag)\w*\s*(?:<[^()]*>)?\s*\(\s*"([^"]+)"')
OPTION_NAME = re.compile(r"(?<![\w-])!?(--[a-z0-9][a-z0-9-]*)")
VARIABLE = re.compile(r'"(METRALE_[A-Z0-9_]+)"')
ROW = re.compile(r"^\|([^|]*)\|", re.MULTILINE)
NAME_IN_ROW = re.compile(r"`(--[a-z0-9][a-z0-9-]*|METRALE_[A-Z0-9_]+)\b[^`]*`")


def options_in_code(root):
    """Option name -> where it is defined."""
    found = {}
    for path in source_tree.files(root, ("apps", "src"), (".cpp", ".h")):
        text = source_tree.blank_comments(source_tree.read(root, path))
        for match in ADD_OPTION.finditer(text):
            for name in OPTION_NAME.findall(match.group(1)):
                found.setdefault(name, f"{path}:{source_tree.line_of(text, match.start())}")
    return found


def variables_in_code(root):
    """Environment variable -> where it is read."""
    found = {}
    for path in source_tree.files(root, ("src/runtime",), (".cpp", ".h")):
        text = source_tree.blank_comments(source_tree.read(root, path))
        for match in VARIABLE.finditer(text):
            found.setdefault(match.group(1), f"{path}:{source_tree.line_of(text, match.start())}")
    return found


def rows(root):
    text = source_tree.read(root, SETTINGS) if (root / SETTINGS).is_file() else ""
    return {name for cell in ROW.findall(text) for name in NAME_IN_ROW.findall(cell)}


def problems(root):
    documented = rows(root)
    code = {}
    # Without the room that reads them there is nothing to hold a row against.
    for room, read in (("apps", options_in_code), ("src/runtime", variables_in_code)):
        here = read(root)
        code |= here
        if not (root / room).is_dir():
            documented -= {name for name in documented if name.startswith("--") == (room == "apps")}
    missing = [f"{where}: {name} has no row in {SETTINGS}" for name, where in code.items() if name not in documented]
    return missing + [f"{SETTINGS}: {name} is not in the code" for name in sorted(documented - code.keys())]


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
