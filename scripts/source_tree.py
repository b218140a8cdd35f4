# SPDX-License-Identifier: Apache-2.0
"""What the check scripts share: walking the source tree, stripping comments, reporting problems."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CXX_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
CXX_FOLDERS = ("include", "src", "apps", "python", "bench", "fuzz", "examples", "tests")

# A raw string, a string, a character, a line comment or a block comment, whichever begins first.
_CXX_TOKEN = re.compile(
    r'R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.DOTALL,
)


def files(root, folders, suffixes):
    """Every file below root/<folder> with one of the suffixes, sorted, as paths relative to root."""
    found = []
    for folder in folders:
        for parent, names, entries in os.walk(root / folder):
            names[:] = [name for name in names if name not in ("__pycache__", "results", "corpus")]
            found += [Path(parent, name).relative_to(root) for name in entries if name.endswith(tuple(suffixes))]
    return sorted(found)


def read(root, path):
    return (root / path).read_text(encoding="utf-8")


def blank_comments(text, strings=False):
    """The text with comments (and the insides of strings, if asked) turned into spaces; lines keep their numbers."""

    def blank(match):
        token = match.group()
        if token.startswith("/") or (strings and len(token) > 2):
            keep = "" if token.startswith("/") else token[-1]
            body = re.sub(r"[^\n]", " ", token)
            return keep + body[1:-1] + keep if keep else body
        return token

    return _CXX_TOKEN.sub(blank, text)


def cmake_text(root, path):
    """A CMakeLists.txt without its comments."""
    return re.sub(r"#[^\n]*", "", read(root, path))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def git(root, *arguments):
    """Standard output of a git command, or None where it fails or git is missing."""
    try:
        done = subprocess.run(("git", *arguments), cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def merge_base(root):
    """The commit that the work in this tree starts from: the merge base with main, on main itself the parent, else None."""
    head = git(root, "rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        base = git(root, "merge-base", "HEAD", main)
        if base and base != head:
            return base.strip()
    parent = git(root, "rev-parse", "--verify", "--quiet", "HEAD^")
    return parent.strip() if parent else None


def main(description, problems, options=None):
    """The main of a check: prints what problems(root) returns; exit code 1 where there is any.

    `options` is a parser of arguments of the check's own; their values go to problems() by name.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[options] if options else [])
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the tree to check (default: this repository)")
    values = vars(parser.parse_args())
    found = problems(values.pop("root").resolve(), **values)
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print(f"{Path(sys.argv[0]).name}: {len(found)} problem(s)", file=sys.stderr)
    sys.exit(1 if found else 0)
