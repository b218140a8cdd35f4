#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and who links whom.

- A module includes the modules of its row in ALLOWED and itself; siblings never.
- src/x sees include/metrale/y and the private headers of src/x.
- apps, python, bench and examples see public headers and the headers of their own folder.
- getenv is called in src/runtime and tests/support/main.cpp only.
- No CUDA, cuFile or UCX type or header appears under include/.
"""

import re

import source_tree

# The whole truth about floors; docs/architecture.md draws it.
BELOW_RUNTIME = {
    "base": set(),
    "quant": {"base"},
    "gpu": {"base"},
    "io": {"base"},
    "net": {"base"},
    "kernels": {"base", "quant", "gpu"},
    "backends": {"base", "gpu"},
    "kv": {"base", "quant", "gpu", "kernels"},
    "prefix": {"base"},
    "sampling": {"base", "gpu", "kernels"},
    "weights": {"base", "gpu", "io", "net"},
    "storage": {"base", "quant", "gpu", "kernels", "io", "net", "kv"},
}
ALLOWED = BELOW_RUNTIME | {"runtime": set(BELOW_RUNTIME), "engine": set(BELOW_RUNTIME)}
PUBLIC_ONLY = ("apps", "python", "bench", "examples")
GETENV_HOMES = ("src/runtime/", "tests/support/main.cpp")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
DEVICE_HEADER = re.compile(r"^(cuda|cublas|cufile|cudnn|nvrtc|nvml|driver_types|vector_types|ucp/|uct/|ucs/|infiniband/)")
DEVICE_TYPE = re.compile(
    r"\b(CU(?:context|stream|event|module|function|deviceptr|device|graph\w*|result|library|kernel)"
    r"|cuda[A-Z]\w*|cublas\w+_t|CUfile\w+|uc[pst]_\w+|ibv_\w+)\b"
)
LIBRARY = re.compile(r"metrale_add_module\(\s*(\w+)([^)]*)\)")
CMAKE_KEYWORD = re.compile(r"\b(SOURCES|DEPS|PUBLIC_DEPS|PRIVATE_DEPS)\b")
METRALE_TARGET = re.compile(r"\bmetrale(::|_)(\w+)")


def includes(text):
    """(line, '<' or '"', path) of each #include that is not commented out."""
    clean = source_tree.blank_comments(text)
    return [(source_tree.line_of(clean, m.start(2)), m.group(1), m.group(2)) for m in INCLUDE.finditer(clean)]


def module_problem(module, target):
    """Why `module` may not include or link `target`, or None."""
    if module not in ALLOWED:
        return f"module '{module}' is not in the table of scripts/check_layers.py"
    if target == module or target in ALLOWED[module]:
        return None
    allowed = ", ".join(sorted(ALLOWED[module])) or "nothing"
    return f"{module} may not use {target} (allowed: {allowed})"


def public_header_problems(path, text):
    module = path.parts[2]
    for line, quote, target in includes(text):
        if quote == '"':
            yield f"{path}:{line}: a public header includes with <metrale/...>, not \"{target}\""
        elif DEVICE_HEADER.match(target):
            yield f"{path}:{line}: <{target}> must not appear in a public header"
        elif target.startswith("metrale/"):
            problem = module_problem(module, target.split("/")[1])
            if problem:
                yield f"{path}:{line}: {problem}"
    clean = source_tree.blank_comments(text, strings=True)
    for match in DEVICE_TYPE.finditer(clean):
        yield f"{path}:{source_tree.line_of(clean, match.start())}: device library type {match.group()} in a public header"


def module_source_problems(root, path, text):
    module = path.parts[1]
    home = root / "src" / module
    for line, quote, target in includes(text):
        if target.startswith("metrale/"):
            problem = module_problem(module, target.split("/")[1])
            if problem:
                yield f"{path}:{line}: {problem}"
        elif quote == '"':
            if not any((place / target).resolve().is_relative_to(home) and (place / target).is_file()
                       for place in (root / path.parent, root / "src")):
                yield f"{path}:{line}: \"{target}\" is not a private header of {module}"


def public_user_problems(root, path, text):
    home = root / path.parts[0]
    for line, quote, target in includes(text):
        if quote == '"' and not any((place / target).is_file() and (place / target).resolve().is_relative_to(home)
                                    for place in (root / path.parent, home)):
            yield f"{path}:{line}: \"{target}\" is not in {path.parts[0]}/; use public headers, <metrale/...>"


def getenv_problems(path, text):
    if str(path).startswith(GETENV_HOMES):
        return
    clean = source_tree.blank_comments(text, strings=True)
    for match in GETENV.finditer(clean):
        yield (f"{path}:{source_tree.line_of(clean, match.start())}: getenv outside src/runtime; "
               "take the value as an option")


def link_problems(root):
    """A library belongs to the module whose folder defines it; a module may have several."""
    libraries = []  # (CMakeLists.txt, module, names that it links)
    module_of = {}
    for path in source_tree.files(root, ("src",), ("CMakeLists.txt",)):
        for match in LIBRARY.finditer(source_tree.cmake_text(root, path)):
            words = CMAKE_KEYWORD.split(match.group(2))
            linked = set()
            for keyword, values in zip(words[1::2], words[2::2]):
                if keyword == "DEPS":
                    linked |= set(values.split())
                elif keyword != "SOURCES":
                    linked |= {name for prefix, name in METRALE_TARGET.findall(values)}
            module_of[match.group(1)] = path.parts[1]
            libraries.append((path, path.parts[1], linked))
    for path, module, linked in libraries:
        for target in sorted({module_of.get(name, name) for name in linked}):
            problem = module_problem(module, target)
            if problem:
                yield f"{path}: {problem}"


def problems(root):
    found = []
    for path in source_tree.files(root, source_tree.CXX_FOLDERS, source_tree.CXX_SUFFIXES):
        text = source_tree.read(root, path)
        found += getenv_problems(path, text)
        if path.parts[0] == "include" and len(path.parts) > 3:
            found += public_header_problems(path, text)
        elif path.parts[0] == "src":
            found += module_source_problems(root, path, text)
        elif path.parts[0] in PUBLIC_ONLY:
            found += public_user_problems(root, path, text)
    found += link_problems(root)
    return found


if __name__ == "__main__":
    source_tree.main(__doc__, problems)
