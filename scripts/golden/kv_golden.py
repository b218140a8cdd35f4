#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/quant/: what every KV format makes of some vectors, byte for byte.

Usage: kv_golden.py          write the files
       kv_golden.py --check  fail if a committed file differs from what this script makes
Needs numpy and xxhash (scripts/golden/requirements.txt). kv_formats.py has the formats; tests/golden/quant/README.md
describes the arrays.
"""
import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import numpy as np
import xxhash

import kv_formats as kv
from golden_file import GoldenWriter

SEED = 20261130
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "quant"
HEAD_DIMS = (64, 80, 96, 128, 192, 256, 512)
SHOWN = 80  # the head_dim whose bytes are in the file, and not their hash alone
BLOCK_SIZE = 16
MOST = max(HEAD_DIMS)
# What a KV head adds: see parameters().
HOWS = ("plain", "signs", "equalised")
SCALES = (1.0, 0.0125, 0.3)


# The vectors: a base times a factor, one FP32 product each, and perhaps one element of its own.
KINDS = {"gaussian": ("gaussian", 1.0), "laplace": ("laplace", 1.0), "outliers": ("outliers", 1.0),
         "edges": ("edges", 1.0), "constant": ("ones", 3.7), "one_hot": ("ones", 0.0, 9, -2.5), "zero": ("gaussian", 0.0),
         "tiny": ("gaussian", 1e-4), "large": ("gaussian", 1e3), "huge": ("gaussian", 1e30), "faint": ("gaussian", 2e-36),
         "subnormal": ("gaussian", 1e-39), "nan": ("gaussian", 1.0, 17, np.nan), "infinite": ("gaussian", 1.0, 33, -np.inf)}


def edges():
    """Numbers where a type's rounding turns, in groups of sixteen; repeated every 80."""
    half = [65519.996, 65520, 65504, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-25 * (1 + 2.0**-23), 2.0**-14 - 2.0**-25,
            1 + 2.0**-11, 1 + 3 * 2.0**-11]
    bfloat = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3961775e38, 3.39e38, 1e-40, 2.0**-134]
    e4m3 = [448, 464, 480, 1e9, 2.0**-10, 3 * 2.0**-10, 2.0**-10 * (1 + 2.0**-23), 2.0**-6, 2.0**-6 - 2.0**-10, 1.0625,
            1.1875, 1.0625 * (1 - 2.0**-24), 0.017, 16.5, 17, 19]
    e2m1 = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0.2500001, 0.7499999, 1.2500001, 1.7499999, 2.5000002, 3.4999998,
            5.0000005, 4.9999995]
    groups = [half + bfloat, e4m3, [order_of_divisions(SCALES[1])] + [0.01] * 15,
              [order_of_divisions(SCALES[2])] + [0.1] * 15, e2m1]
    x = np.resize(np.concatenate([np.asarray(group, np.float64) for group in groups]), MOST)
    return x * np.where(np.arange(MOST) // 3 % 2, -1, 1)


def order_of_divisions(scale):
    """A largest element whose group scale would be another one if it were not divided by 6 first."""
    scale = np.float32(scale)
    for tie in 1.0625 + np.arange(8) / 8:
        bits = np.float32(tie * 6 * scale).view(np.uint32) + np.arange(-8, 9)
        for number in bits.astype(np.uint32).view(np.float32):
            if kv.e4m3_code(number / np.float32(6) / scale) != kv.e4m3_code(number / scale / np.float32(6)):
                return float(number)
    raise ValueError("no such number nearby")


def bases(random):
    """[base][MOST]; a shorter head_dim takes the first elements."""
    outliers = random.standard_normal(MOST)
    outliers[[3, 41]] *= 60
    rows = {"gaussian": random.standard_normal(MOST), "laplace": random.laplace(size=MOST), "outliers": outliers,
            "edges": edges(), "ones": np.ones(MOST)}
    return {name: row.astype(np.float32) for name, row in rows.items()}


def vector(rows, base, factor, at=None, element=None):
    x = rows[base] * np.float32(factor)
    if at is not None:
        x[at] = element
    return x


def parameters(random):
    """(diagonals, means), [how][MOST]."""
    signs = kv.signs(42, MOST)
    mean = random.standard_normal(MOST)
    mean[5] = 40
    equaliser = np.exp(0.5 * random.standard_normal(MOST))
    ones, zeros = np.ones(MOST), np.zeros(MOST)
    return (np.float32([ones, signs, signs * np.float32(equaliser)]), np.float32([zeros, zeros, mean]))


def bits_of(values):
    """As uint32; one NaN stands for all."""
    values = np.ascontiguousarray(values, np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def short_hash(values):
    return xxhash.xxh3_64_intdigest(bits_of(values).tobytes()) & 0xFFFFFFFF


def long_hash(data):
    digest = xxhash.xxh3_64_intdigest(data)
    return [digest & 0xFFFFFFFF, digest >> 32]


def sides_of(name):
    """Keys and values differ in the turbo formats with tables."""
    return "kv" if name in kv.TURBO else "k"


class Maker:
    def __init__(self):
        random = np.random.RandomState(SEED)  # a frozen generator of numpy
        self.bases = bases(random)
        self.inputs = {kind: vector(self.bases, *how) for kind, how in KINDS.items()}
        self.diagonals, self.means = parameters(random)
        self.tokens = [(5 * i + 3) % BLOCK_SIZE for i in range(len(self.inputs))]
        self.writer = GoldenWriter({
            "generator": "scripts/golden/kv_golden.py", "seed": SEED, "head_dims": list(HEAD_DIMS), "shown": SHOWN,
            "block_size": BLOCK_SIZE, "kinds": list(KINDS), "tokens": self.tokens, "hows": list(HOWS),
            "base_of": [list(self.bases).index(how[0]) for how in KINDS.values()]})

    def of(self, head_dim, how):
        return self.diagonals[how, :head_dim], self.means[how, :head_dim]

    def rotation(self):
        rotated = np.zeros((len(HEAD_DIMS), len(HOWS), len(self.inputs)), np.uint32)
        restored = np.zeros_like(rotated)
        for d, head_dim in enumerate(HEAD_DIMS):
            for how in range(len(HOWS)):
                for kind, x in enumerate(self.inputs.values()):
                    y = kv.rotate(x[:head_dim], *self.of(head_dim, how))
                    rotated[d, how, kind] = short_hash(y)
                    restored[d, how, kind] = short_hash(kv.unrotate(y, *self.of(head_dim, how)))
        shown = [kv.rotate(self.inputs["gaussian"][:SHOWN], *self.of(SHOWN, how)) for how in range(len(HOWS))]
        self.writer.add("rotated", "u32", rotated)
        self.writer.add("rotated.shown", "u32", bits_of(shown))
        self.writer.add("restored", "u32", restored)

    def format(self, name, side):
        stripes = np.zeros((len(HEAD_DIMS), len(HOWS), 2), np.uint32)
        values = np.zeros((len(HEAD_DIMS), len(HOWS), len(self.inputs)), np.uint32)
        for d, head_dim in enumerate(HEAD_DIMS):
            for how in range(len(HOWS)):
                stripe = kv.Stripe(name, side, BLOCK_SIZE, head_dim)
                for token, x in zip(self.tokens, self.inputs.values()):
                    stripe.encode(token, x[:head_dim], SCALES[how], *self.of(head_dim, how))
                decoded = [stripe.decode(token, SCALES[how]) for token in self.tokens]
                stripes[d, how] = long_hash(stripe.bytes())
                values[d, how] = [short_hash(y) for y in decoded]
                if head_dim == SHOWN and how == len(HOWS) - 1:
                    self.writer.add(f"{name}.{side}.bytes", "u32", np.frombuffer(stripe.bytes(), "<u4"))
                    self.writer.add(f"{name}.{side}.gaussian", "u32", bits_of(decoded[0]))
        self.writer.add(f"{name}.{side}.stripes", "u32", stripes)
        self.writer.add(f"{name}.{side}.values", "u32", values)

    def write(self, folder):
        ones = [(how + (0, x[0]))[2:4] for how, x in zip(KINDS.values(), self.inputs.values())]
        self.writer.add("bases", "f32", list(self.bases.values()))
        self.writer.add("factors", "f32", [how[1] for how in KINDS.values()])
        self.writer.add("own.dims", "u32", [at for at, _ in ones])
        self.writer.add("own.elements", "u32", np.float32([element for _, element in ones]).view(np.uint32))
        self.writer.add("scales", "f32", SCALES)
        self.writer.add("diagonals", "f32", self.diagonals)
        self.writer.add("means", "f32", self.means)
        with np.errstate(all="ignore"):  # infinity and NaN are among the numbers that are tried
            self.rotation()
            for name in kv.CODE_BITS:
                for side in sides_of(name):
                    self.format(name, side)
        self.writer.write(folder, "kv_formats")


def check():
    with tempfile.TemporaryDirectory() as fresh:
        Maker().write(Path(fresh))
        names = sorted(path.name for path in Path(fresh).iterdir())
        _, different, missing = filecmp.cmpfiles(fresh, FOLDER, names, shallow=False)
    for name in different + missing:
        print(f"{FOLDER / name} is not what {Path(__file__).name} makes", file=sys.stderr)
    return 1 if different or missing else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return check()
    FOLDER.mkdir(parents=True, exist_ok=True)
    Maker().write(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
