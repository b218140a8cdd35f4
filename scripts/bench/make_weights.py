#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors of random bytes for measuring loaders: a model directory of one of three layouts.

Usage: make_weights.py LAYOUT DIR [--bytes 4G] [--seed N]

    one       one file of 300 tensors
    many      4 files of 20,000 tensors each
    experts   11 files, 300,000 tensors in all

Most tensors are BF16, some F16; sizes are spread as in real models, a few large ones and many small. The data are random
bytes, which neither a file system nor a drive can shrink. The same arguments give the same bytes. Needs NumPy.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

LAYOUTS = {"one": (1, 300), "many": (4, 20_000), "experts": (11, None)}
ALL_EXPERTS = 300_000
ROW = 64  # elements
F16_SHARE = 0.1
PIECE_BYTES = 16 << 20
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text):
    number, unit = (text[:-1], text[-1]) if text[-1:] in "KMG" else (text, "")
    return int(number) * UNITS[unit]


def tensors_per_file(layout):
    files, each = LAYOUTS[layout]
    if each is not None:
        return [each] * files
    return [ALL_EXPERTS // files + (i < ALL_EXPERTS % files) for i in range(files)]


def tensors_of(rng, file, count, wanted_bytes):
    """[(name, dtype, rows)] in the order of the data: as the reference writes it, later types and then lower names first."""
    share = rng.lognormal(0.0, 1.2, count)
    rows = np.ceil(share / share.sum() * wanted_bytes / (2 * ROW)).astype(np.int64)
    half = rng.random(count) < F16_SHARE
    tensors = []
    for i in range(count):
        name = f"model.layers.{file}.mlp.experts.{i // 3}.{('gate', 'up', 'down')[i % 3]}_proj.weight"
        tensors.append((name, "F16" if half[i] else "BF16", int(rows[i])))
    return sorted(tensors, key=lambda tensor: (tensor[1] != "BF16", tensor[0]))


def header_of(tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, rows in tensors:
        size = rows * ROW * 2
        header[name] = {"dtype": dtype, "shape": [rows, ROW], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def write_file(path, tensors, seed):
    header, size = header_of(tensors)
    rng = np.random.Generator(np.random.SFC64(seed))
    with path.open("wb") as file:
        file.write(header)
        for done in range(0, size, PIECE_BYTES):
            file.write(rng.bytes(min(PIECE_BYTES, size - done)))
    return size


def make(directory, layout, wanted_bytes, seed=0):
    """Writes the files and, where they are several, their index. Returns the bytes of all tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = tensors_per_file(layout)
    weight_map, total = {}, 0
    for i, count in enumerate(counts):
        name = "model.safetensors" if len(counts) == 1 else f"model-{i + 1:05}-of-{len(counts):05}.safetensors"
        rng = np.random.Generator(np.random.SFC64([seed, i, 0]))
        tensors = tensors_of(rng, i, count, wanted_bytes / len(counts))
        total += write_file(directory / name, tensors, [seed, i, 1])
        weight_map |= {tensor[0]: name for tensor in tensors}
    if len(counts) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("directory", type=Path, help="new, or empty")
    parser.add_argument("--bytes", type=parse_bytes, default=4 << 30, help="of all tensors, at least; K, M or G (default: 4G)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.directory.exists() and any(arguments.directory.iterdir()):
        sys.exit(f"{arguments.directory} is not empty")
    total = make(arguments.directory, arguments.layout, arguments.bytes, arguments.seed)
    print(f"{arguments.directory}: {total} bytes of tensors")


if __name__ == "__main__":
    main()
