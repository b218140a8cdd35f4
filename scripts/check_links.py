#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every relative link of the Markdown pages leads to a file and, where it names one, to a heading in it."""

import re
from pathlib import Path

import source_tree

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text):
    """The ids that a Markdown page's headings get: lower case, words joined by hyphens."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(without_code(text))}


def problems(root):
    pages = [path.relative_to(root) for path in sorted(root.glob("*.md"))]
    pages += source_tree.files(root, ("docs", "examples", "tests", "bench", "fuzz", "src", "python"), (".md",))
    found = []
    for page in pages:
        for link in LINK.findall(without_code(source_tree.read(root, page))):
            target, _, anchor = link.partition("#")
            if "://" in link:
                continue
            place = Path(page).parent / target if target else page
            if not (root / place).exists():
                found.append(f"{page}: the link to {target} leads nowhere")
            elif anchor and place.suffix == ".md" and anchor not in anchors(source_tree.read(root, place)):
                found.append(f"{page}: {place} has no heading for #{anchor}")
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
