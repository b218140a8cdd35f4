#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every source file says its licence: an SPDX line at the top, after a script's #! line."""

from pathlib import Path

import source_tree

SPDX = "SPDX-License-Identifier: Apache-2.0"


def problems(root):
    paths = source_tree.files(root, source_tree.CXX_FOLDERS, source_tree.CXX_SUFFIXES)
    paths += source_tree.files(root, ("scripts", "python", ".ci", "tests"), (".py", ".sh"))
    paths += [Path(name) for name in ("dev", ".ci/run") if (root / name).is_file()]
    found = []
    for path in paths:
        lines = source_tree.read(root, path).splitlines()
        first = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
        if first not in ([f"// {SPDX}"], [f"# {SPDX}"]):
            found.append(f"{path}: the first line must be the comment '{SPDX}'")
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
