#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every public header says at its top what it is for, is included once, and leaks neither macros (METRALE_ASSERT
apart) nor a using-directive."""

import re

import source_tree

MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
USING = re.compile(r"^\s*using namespace\b", re.MULTILINE)


def problems(root):
    found = []
    for path in source_tree.files(root, ("include",), (".h",)):
        text = source_tree.read(root, path)
        lines = text.splitlines()
        if len(lines) < 2 or not lines[1].startswith("// "):
            found.append(f"{path}:2: say here, below the licence, what the header is for")
        if "#pragma once" not in lines:
            found.append(f"{path}: no '#pragma once'")
        clean = source_tree.blank_comments(text)
        for match in MACRO.finditer(clean):
            if match.group(1) != "METRALE_ASSERT":
                found.append(f"{path}:{source_tree.line_of(clean, match.start())}: macro {match.group(1)}")
        for match in USING.finditer(clean):
            found.append(f"{path}:{source_tree.line_of(clean, match.start())}: using-directive in a header")
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
