#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that nothing silently stops being built: every *_test.cpp under tests/ is named in a CMakeLists.txt of its
folder or of a folder above it, and every folder of tests/ and src/ that has a CMakeLists.txt is named in the one that
adds it."""

import re

import source_tree


def words(root, path):
    return set(re.split(r"[\s()\"]+", source_tree.cmake_text(root, path))) if (root / path).is_file() else set()


def named_above(root, path):
    """Whether a CMakeLists.txt of the file's folder, or of one above it, names it by its relative path."""
    for folder in list(path.parents)[:-1]:
        if str(path.relative_to(folder)) in words(root, folder / "CMakeLists.txt"):
            return True
    return False


def problems(root):
    found = []
    for path in source_tree.files(root, ("tests",), ("_test.cpp",)):
        if not named_above(root, path):
            found.append(f"{path}: no CMakeLists.txt names it, so it never runs")
    for folder, adder in (("tests", "tests/CMakeLists.txt"), ("src", "CMakeLists.txt")):
        for path in source_tree.files(root, (folder,), ("CMakeLists.txt",)):
            room = path.parent.relative_to(folder)
            if len(room.parts) == 1 and not {room.name, str(path.parent)} & words(root, root / adder):
                found.append(f"{path}: {adder} does not add the folder '{room}'")
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
