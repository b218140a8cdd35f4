#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the fat binaries which a CUDA build embeds have at most 20 MiB in all, and prints what they have."""

import argparse
from pathlib import Path

import source_tree

MAX_BYTES = 20 << 20


def problems(root, build="build/cuda"):
    sizes = {path: path.stat().st_size for path in sorted((root / build).rglob("*.fatbin"))}
    if not sizes:
        return [f"{build}: no fat binary there: ./dev gpu builds them"]
    total = sum(sizes.values())
    print(f"embedded fat binaries: {len(sizes)} of {total / (1 << 20):.1f} MiB in all, of {MAX_BYTES >> 20} MiB allowed")
    if total <= MAX_BYTES:
        return []
    largest = sorted(sizes, key=sizes.get, reverse=True)[:5]
    return [f"{build}: the embedded fat binaries have {total} bytes, more than {MAX_BYTES}; the largest: "
            + ", ".join(f"{path.name} {sizes[path]}" for path in largest)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--build", default="build/cuda", type=Path, help="the folder of the build (default: build/cuda)")
    source_tree.main(__doc__, problems, options)
