#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every relative link of the Markdown pages leads to a file."""

import re
from pathlib import Path

import source_tree

LINK = re.compile(r"\]\(([^)\s]+)\)")


def problems(root):
    pages = [path.relative_to(root) for path in sorted(root.glob("*.md"))]
    pages += source_tree.files(root, ("docs", "examples", "tests", "bench", "fuzz", "src", "python"), (".md",))
    found = []
    for page in pages:
        text = source_tree.read(root, page)
        for match in LINK.finditer(re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)):
            target = match.group(1).split("#")[0]
            if target and "://" not in target and not (root / Path(page).parent / target).exists():
                found.append(f"{page}: the link to {target} leads nowhere")
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
