#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the length of files and functions: above the soft limit a warning, above the hard limit an error.

Lines:           soft  hard
public header     200   400
source            400   800
test              500   800
function           60   120

scripts/size_exceptions.txt may allow single files more, and only ever shrinks: an entry is exact, and neither a new
entry nor a larger number passes.
"""

import ast
import re
import sys

import source_tree

FILE_LIMITS = {"public header": (200, 400), "source": (400, 800), "test": (500, 800)}
FUNCTION_LIMITS = (60, 120)
EXCEPTIONS = "scripts/size_exceptions.txt"
SCOPE = re.compile(r'^(?:inline\s+)?namespace\b|^extern\s*"[^"]*"$|^(?:typedef\s+)?(?:class|struct|union|enum)\b')
LEAD = re.compile(r"(?:\s|(?:public|private|protected)\s*:)*")


def kind(path):
    if path.parts[0] == "include":
        return "public header"
    return "test" if "tests" in path.parts else "source"


def without_templates(head):
    """A declaration without its leading `template <...>`, requires clause in parentheses, and attributes."""
    head = re.sub(r"^\s*(?:\[\[.*?\]\]|\s)+", "", head, flags=re.DOTALL)
    while head.startswith("template"):
        angle_depth = round_depth = end = 0
        for end, char in enumerate(head, 1):
            round_depth += {"(": 1, ")": -1}.get(char, 0)
            if round_depth == 0:
                angle_depth += {"<": 1, ">": -1}.get(char, 0)
                if char == ">" and angle_depth == 0:
                    break
        head = re.sub(r"^\s*(?:requires\b[^{]*?\)\s*)?", "", head[end:])
    return head.strip()


def is_function(head):
    """Whether a brace after this text, outside any function, opens the body of a function."""
    head = without_templates(head)
    return "(" in head and not SCOPE.match(head) and not head.endswith("=")


def blank_preprocessor(text):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.MULTILINE)


def cxx_functions(text):
    """(first line, lines, name) of every function with a body; a lambda belongs to the function around it."""
    text = blank_preprocessor(source_tree.blank_comments(text, strings=True))
    found = []
    open_braces = []  # "scope" (namespace, class), "function", "other" (initialisers), "inner" (inside the latter two)
    head_at = 0  # where the declaration being read begins
    round_depth = 0
    for match in re.finditer(r"[(){};]", text):
        char, at = match.group(), match.start()
        outside = round_depth == 0 and all(brace == "scope" for brace in open_braces)
        start = LEAD.match(text, head_at, at).end()
        head = text[start:at].strip()
        if char in "()":
            round_depth += 1 if char == "(" else -1
        elif char == ";" and outside:
            head_at = at + 1
        elif char == "{" and not outside:
            open_braces.append("inner")
        elif char == "{" and is_function(head):
            open_braces.append("function")
        elif char == "{" and (not head or SCOPE.match(without_templates(head))):
            open_braces.append("scope")
            head_at = at + 1
        elif char == "{":
            open_braces.append("other")
        elif char == "}" and open_braces:
            closed = open_braces.pop()
            # After `: a_{1}` comes `, b_{2} {`: the brace was a member initialiser and the declaration goes on.
            ended = closed == "function" and text[at + 1:].lstrip()[:1] not in (",", "{")
            if ended:
                first = source_tree.line_of(text, start)
                found.append((first, source_tree.line_of(text, at) - first + 1, function_name(head)))
            if ended or closed == "scope":
                head_at = at + 1
    return found


def function_name(head):
    head = without_templates(head)
    if constant := re.match(r"[^(]*?(\w+)\s*=\s*\[", head):  # a lambda
        return constant.group(1)
    match = re.search(r"((?:[\w:]+::)?operator\s*(?:\(\)|[^\s(]+)|[\w:~]+)\s*\(([^)]*)", head)
    if not match:
        return head[:40]
    return f"{match.group(1)}({match.group(2)})" if match.group(1).startswith("TEST") else match.group(1)


def python_functions(text):
    return [
        (node.lineno, node.end_lineno - node.lineno + 1, node.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def parse_exceptions(text):
    """path -> allowed lines, from lines of `path number`."""
    entries = (line.split("#")[0].split() for line in text.splitlines())
    return {entry[0]: int(entry[1]) for entry in entries if entry}


def exception_problems(root, allowed, lengths):
    for path, lines in allowed.items():
        if lengths.get(path) != lines:
            yield f"{EXCEPTIONS}: {path} has {lengths.get(path, 0)} lines, the entry says {lines}: lower it or remove it"
    base = source_tree.merge_base(root)
    before = source_tree.git(root, "show", f"{base}:{EXCEPTIONS}") if base else None
    if before is not None:
        old = parse_exceptions(before)
        for path, lines in allowed.items():
            if lines > old.get(path, 0):
                yield f"{EXCEPTIONS}: {path} {lines} is new or larger than before; split the file instead"


def measure(root):
    """(errors, warnings)"""
    errors, warnings, lengths = [], [], {}
    exceptions_file = root / EXCEPTIONS
    allowed = parse_exceptions(exceptions_file.read_text(encoding="utf-8")) if exceptions_file.is_file() else {}

    def judge(place, what, lines, soft, hard):
        if lines > hard:
            errors.append(f"{place}: {what} of {lines} lines, the limit is {hard}: split it by meaning")
        elif lines > soft:
            warnings.append(f"{place}: {what} of {lines} lines, {soft} is the aim")

    paths = source_tree.files(root, source_tree.CXX_FOLDERS, source_tree.CXX_SUFFIXES)
    paths += source_tree.files(root, ("scripts", "python"), (".py",))
    for path in paths:
        text = source_tree.read(root, path)
        lines = lengths[str(path)] = len(text.splitlines())
        if str(path) not in allowed:
            judge(path, kind(path), lines, *FILE_LIMITS[kind(path)])
        functions = python_functions(text) if path.suffix == ".py" else cxx_functions(text)
        for first, count, name in functions:
            judge(f"{path}:{first}", f"function '{name}'", count, *FUNCTION_LIMITS)
    errors += exception_problems(root, allowed, lengths)
    return errors, warnings


def problems(root):
    errors, warnings = measure(root)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return errors


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
