#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/benchmarks.md from bench/results/*.json, which the programs under bench/ write (bench/support/report.h).

With --check it writes nothing and fails where the page is not what the results say.
"""

import argparse
import json
import sys
from pathlib import Path

import source_tree

PAGE = "docs/benchmarks.md"
RESULTS = "bench/results"
REPORT_KEYS = {"bench": str, "commit": str, "date": str, "machine": dict, "conditions": str, "rows": list}
MACHINE_KEYS = {"cpu": str, "cores": int, "compiler": str}
ROW_KEYS = {"name": str, "metric": str, "value": (int, float), "unit": str}
INTRODUCTION = """# Benchmarks

Made by `scripts/make_benchmarks_doc.py` from `bench/results/*.json`; do not edit. `./dev bench [family]` runs the programs
and writes those files. Every figure is the median of the runs that the conditions name, printed by a run of the commit given.
"""


def shape_problems(value, keys, where):
    for key, kind in keys.items():
        if not isinstance(value.get(key), kind):
            yield f"{where}: '{key}' is missing or of the wrong type"


def load(root):
    """(reports, problems)"""
    reports, found = [], []
    for path in sorted((root / RESULTS).glob("*.json")):
        where = path.relative_to(root)
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            found.append(f"{where}: not JSON: {error}")
            continue
        problems_here = list(shape_problems(report, REPORT_KEYS, where))
        if not problems_here:
            problems_here += shape_problems(report["machine"], MACHINE_KEYS, where)
            for row in report["rows"]:
                problems_here += shape_problems(row, ROW_KEYS, f"{where}: row {row.get('name')}")
        found += problems_here
        if not problems_here:
            reports.append(report)
    return reports, found


def number(value):
    return f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"


def row_line(row):
    share = ""
    if row.get("share_of_limit") is not None:
        share = f"{100 * row['share_of_limit']:.0f} % of {row.get('limit', 'the limit')}"
    moved = str(row["bytes_moved"]) if row.get("bytes_moved") is not None else ""
    return f"| {row['name']} | {row['metric']} | {number(row['value'])} {row['unit']} | {moved} | {share} |"


def section(report):
    machine = report["machine"]
    lines = [
        f"## {report['bench']}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['compiler']}; commit {report['commit']}, {report['date']}.",
        report["conditions"],
        "",
        "| case | metric | value | bytes moved | share of the measured limit |",
        "|---|---|---|---|---|",
        *map(row_line, report["rows"]),
    ]
    return "\n".join(lines) + "\n"


def page(root):
    return "\n".join([INTRODUCTION, *map(section, load(root)[0])])


def problems(root):
    reports, found = load(root)
    target = root / PAGE
    if reports and not found and (not target.is_file() or target.read_text(encoding="utf-8") != page(root)):
        found.append(f"{PAGE} is not what {RESULTS} says; run scripts/make_benchmarks_doc.py")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=source_tree.REPOSITORY, help="the tree to work on")
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    if arguments.check:
        found = problems(arguments.root)
    else:
        reports, found = load(arguments.root)
        if reports and not found:
            (arguments.root / PAGE).write_text(page(arguments.root), encoding="utf-8")
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
