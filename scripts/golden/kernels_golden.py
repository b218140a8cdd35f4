#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/kernels/: inputs and float64 results of every kernel, in the maths of docs/kernels.md.

Usage: kernels_golden.py          write the files
       kernels_golden.py --check  fail if a committed file differs from what this script makes
Needs numpy and xxhash (scripts/golden/requirements.txt).
"""
import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import numpy as np

from golden_file import GoldenWriter

SEED = 20240517
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "kernels"
HALF_UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8}  # largest relative error of rounding


def f32(values):
    return np.asarray(values, np.float64).astype(np.float32)


def bf16_bits(values):
    """Round to nearest, ties to even. No NaN here."""
    bits = f32(values).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16(values):
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def as_type(values, kind):
    return bf16(values) if kind == "bf16" else f32(values)


class Family:
    """One golden file: cases of parameters, and their arrays under CASE.ARRAY."""

    def __init__(self, name):
        self.name = name
        self.random = np.random.RandomState(SEED + sum(map(ord, name)))  # a frozen generator of numpy
        self.writer = GoldenWriter({"generator": "scripts/golden/kernels_golden.py", "seed": SEED, "cases": []})

    def normal(self, *shape):
        return f32(self.random.standard_normal(shape))

    def case(self, name, params, **arrays):
        self.writer.facts["cases"].append({"name": name, **params})
        for key, (dtype, values) in arrays.items():
            self.writer.add(f"{name}.{key}", dtype, values)

    def write(self, folder):
        self.writer.write(folder, self.name)


def embedding():
    family = Family("embedding")
    table, ids = bf16(family.normal(7, 20)), [6, 0, 3, 3]
    family.case("widened", {"width": 20, "vocab": 7, "table_type": "bf16", "out_type": "fp32"},
                ids=("u32", ids), table=("f32", table), out=("f32", table[ids]))
    table = family.normal(5, 9)
    table[1, :4] = [1.00390625, 1.01171875, -1.00390625, 1.0039063]  # ties to even, and just above one
    ids = [1, 4, 1]
    family.case("rounded", {"width": 9, "vocab": 5, "table_type": "fp32", "out_type": "bf16"},
                ids=("u32", ids), table=("f32", table), out=("f32", bf16(table)[ids]))
    return family


def mla_attention():
    family = Family("mla_attention")
    kinds = (("ragged", 2, 64, 16, "bf16", "bf16", 0, [(4, 4), (9, 1), (1, 1)]),
             ("window", 1, 64, 32, "fp32", "bf16", 6, [(13, 3), (7, 2), (5, 1)]))
    for name, heads, latent_dim, rope_dim, latent_format, rope_format, window, seqs in kinds:
        scale = np.float32(1 / np.sqrt(np.float32(latent_dim + rope_dim)))
        arrays = {"q_latent": [], "q_rope": [], "latent": [], "rope": []}
        out = []
        for context, queries in seqs:
            q_latent, q_rope = family.normal(queries, heads, latent_dim), family.normal(queries, heads, rope_dim)
            latent = as_type(family.normal(context, latent_dim), latent_format)
            rope = as_type(family.normal(context, rope_dim), rope_format)
            for array, part in zip(arrays.values(), (q_latent, q_rope, latent, rope)):
                array.append(part.reshape(-1))
            keys, q = np.concatenate([latent, rope], 1), np.concatenate([q_latent, q_rope], 2)
            # One KV head, whose values are the latents.
            out += [attend(q[i], keys[:, None], latent[:, None], context - queries + i, scale, window)
                    for i in range(queries)]
        family.case(name, {"heads": heads, "latent_dim": latent_dim, "rope_dim": rope_dim, "latent_format": latent_format,
                           "rope_format": rope_format, "window": window, "contexts": [s[0] for s in seqs],
                           "queries": [s[1] for s in seqs], "relative": 0.0, "absolute": 2e-6},
                    **{key: ("f32", np.concatenate(parts)) for key, parts in arrays.items()}, out=("f32", out))
    return family


def norm():
    family = Family("norm")
    for name, kind, rows, width, epsilon in (("fp32", "fp32", 3, 37, 1e-5), ("bf16", "bf16", 2, 64, 1e-6)):
        x, weight = as_type(2 * family.normal(rows, width), kind), as_type(family.normal(width), kind)
        wide = x.astype(np.float64)
        out = wide / np.sqrt((wide**2).mean(1, keepdims=True) + np.float32(epsilon)) * weight
        family.case(name, {"type": kind, "rows": rows, "width": width, "epsilon": epsilon,
                           "relative": 2e-6 + 1.01 * HALF_UNIT[kind], "absolute": 0.0},
                    x=("f32", x), weight=("f32", weight), out=("f32", out))
    return family


def llama3_inv_freq(half, theta, factor, low, high, original):
    """The frequencies of Llama 3: long waves are stretched by `factor`, short ones kept, between them a blend."""
    freq = theta ** -(np.arange(half) / half)
    wave = 2 * np.pi / freq
    blend = np.clip((original / wave - low) / (high - low), 0, 1)
    return f32(freq * (blend + (1 - blend) / factor))


def rope():
    family = Family("rope")
    half, head_dim, heads, stride = 6, 16, 3, 50
    positions = np.array([0, 1, 17, 4095, 100000], np.uint32)
    for name, factor, inv_freq in (("plain", 1.0, f32(10000.0 ** -(np.arange(half) / half))),
                                   ("llama3", 1.25, llama3_inv_freq(half, 500000.0, 8.0, 1.0, 4.0, 8192))):
        angle = (f32(positions)[:, None] * inv_freq[None]).astype(np.float64)  # rounded to float first
        table = f32(np.stack([factor * np.cos(angle), factor * np.sin(angle)], 1))
        x = family.normal(len(positions), stride)
        out = x.astype(np.float64)
        for head in range(heads):
            a, b = (x[:, head * head_dim + at:head * head_dim + at + half].astype(np.float64) for at in (0, half))
            cosine, sine = table[:, 0].astype(np.float64), table[:, 1].astype(np.float64)
            out[:, head * head_dim:head * head_dim + half] = a * cosine - b * sine
            out[:, head * head_dim + half:head * head_dim + 2 * half] = b * cosine + a * sine
        family.case(name, {"rows": len(positions), "half_dims": half, "head_dim": head_dim, "heads": heads,
                           "stride": stride, "factor": factor, "relative": 0.0, "absolute": 1e-6},
                    positions=("u32", positions), inv_freq=("f32", inv_freq), table=("f32", table), x=("f32", x),
                    out=("f32", out))
    return family


def activation():
    family = Family("activation")
    for name, kind in (("silu_fp32", "fp32"), ("silu_bf16", "bf16")):
        gate, up = as_type(6 * family.normal(2, 35), kind), as_type(family.normal(2, 35), kind)
        wide = gate.astype(np.float64)
        family.case(name, {"kernel": "silu_mul", "type": kind, "rows": 2, "width": 35,
                           "relative": 1e-6 + 1.01 * HALF_UNIT[kind], "absolute": 1e-37},
                    gate=("f32", gate), up=("f32", up), out=("f32", wide / (1 + np.exp(-wide)) * up))
    x, accum = bf16(family.normal(3, 18)), family.normal(3, 18)
    family.case("residual", {"kernel": "residual_add", "type": "bf16", "rows": 3, "width": 18,
                             "relative": 0.0, "absolute": 0.0},
                x=("f32", x), accum=("f32", accum), out=("f32", accum + x))
    return family


def kv_write():
    family = Family("kv_write")
    heads, dim, block, blocks = 2, 6, 16, 3
    slots = np.array([47, 0, 16, -1, 15, 30], np.int64)
    k, v = family.normal(len(slots), heads, dim), family.normal(len(slots), heads, dim)
    k_pool = np.full((blocks, heads, block, dim), 0xEEEE, np.uint16)
    v_pool = np.full((blocks, heads, block, dim), 0xEEEEEEEE, np.uint32)
    for row, slot in enumerate(slots):
        if slot >= 0:
            k_pool[slot // block, :, slot % block] = bf16_bits(k[row])
            v_pool[slot // block, :, slot % block] = v[row].view(np.uint32)
    family.case("bf16_fp32", {"heads": heads, "head_dim": dim, "block_size": block, "num_blocks": blocks,
                              "slots": slots.tolist()},
                k=("f32", k), v=("f32", v), k_pool=("u16", k_pool), v_pool=("u32", v_pool))
    return family


def kv_shift():
    family = Family("kv_shift")
    heads, dim, half, block, blocks = 2, 8, 3, 16, 2
    slots, deltas = np.array([31, 0, -1, 16, 5], np.int64), np.array([-7, 1, 3, 4000, 0], np.int64)
    inv_freq = f32(10000.0 ** -(np.arange(half) / half))
    pool = family.normal(blocks, heads, block, dim)
    out = pool.astype(np.float64)
    for slot, delta in zip(slots, deltas):
        if slot >= 0:
            key = out[slot // block, :, slot % block]
            angle = (f32(delta) * inv_freq).astype(np.float64)  # rounded to float first
            a, b = key[:, :half].copy(), key[:, half:2 * half].copy()
            key[:, :half] = a * np.cos(angle) - b * np.sin(angle)
            key[:, half:2 * half] = b * np.cos(angle) + a * np.sin(angle)
    family.case("fp32", {"heads": heads, "head_dim": dim, "rotary_dim": 2 * half, "block_size": block,
                         "num_blocks": blocks, "slots": slots.tolist(), "deltas": deltas.tolist(),
                         "relative": 0.0, "absolute": 1e-6},
                inv_freq=("f32", inv_freq), pool=("f32", pool), out=("f32", out))
    return family


def attend(q, k, v, position, scale, window):
    """q [heads][dim] at `position` over k, v [token][kv_head][own dim], the last `window` of them (0: all)."""
    begin = max(0, position + 1 - window) if window else 0
    group = q.shape[0] // k.shape[1]
    out = np.empty((q.shape[0], v.shape[2]), np.float64)
    for head in range(q.shape[0]):
        keys, values = (side[begin:position + 1, head // group].astype(np.float64) for side in (k, v))
        scores = scale * (keys * q[head].astype(np.float64)).sum(1)
        weights = np.exp(scores - scores.max())
        out[head] = (weights[:, None] * values).sum(0) / weights.sum()
    return out


def attention():
    family = Family("attention")
    kinds = (("ragged", 6, 2, 20, "bf16", "bf16", 0, [(5, 5), (17, 1), (48, 3), (1, 1)]),
             ("splits", 2, 1, 8, "fp32", "bf16", 0, [(513, 2), (1030, 1)]),
             ("wide", 1, 1, 128, "bf16", "fp32", 0, [(33, 2)]),
             ("window", 2, 1, 8, "bf16", "bf16", 20, [(70, 60), (20, 2), (21, 2), (5, 1), (514, 3)]),
             ("window_splits", 2, 1, 8, "bf16", "fp32", 520, [(1100, 2)]))
    for name, q_heads, kv_heads, dim, k_format, v_format, window, seqs in kinds:
        scale = np.float32(1 / np.sqrt(dim))
        q, k, v, out = [], [], [], []
        for context, queries in seqs:
            q.append(family.normal(queries, q_heads, dim))
            k.append(as_type(family.normal(context, kv_heads, dim), k_format))
            v.append(as_type(family.normal(context, kv_heads, dim), v_format))
            out += [attend(q[-1][i], k[-1], v[-1], context - queries + i, scale, window) for i in range(queries)]
        family.case(name, {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": dim, "k_format": k_format,
                           "v_format": v_format, "window": window, "contexts": [s[0] for s in seqs], "queries": [s[1] for s in seqs],
                           "relative": 0.0, "absolute": 2e-6},
                    q=("f32", np.concatenate(q)), k=("f32", np.concatenate(k)), v=("f32", np.concatenate(v)),
                    out=("f32", out))
    return family


def logits():
    family = Family("logits")
    x, ids = family.normal(5, 7), [4, 0, 4, 2]
    family.case("gather", {"kernel": "gather_rows", "width": 7}, x=("f32", x), ids=("u32", ids), out=("f32", x[ids]))
    x = family.normal(4, 70)
    x[0, [11, 40]] = 9.0  # a tie
    x[1, [3, 5, 6]] = [np.inf, np.nan, -np.inf]
    x[2, :] = np.nan
    finite = np.where(np.isfinite(x), x, -np.inf)
    tokens = [int(row.argmax()) if np.isfinite(row).any() else 2**32 - 1 for row in finite]
    family.case("argmax", {"kernel": "argmax", "vocab": 70}, x=("f32", x), tokens=("u32", tokens))
    return family


def linear():
    family = Family("linear")
    rows, inputs, outputs = 3, 70, 33
    x, weight = family.normal(rows, inputs), bf16(family.normal(outputs, inputs))
    bias = bf16(family.normal(outputs))
    out = (x[:, None].astype(np.float64) * weight.astype(np.float64)).sum(2) + bias
    family.case("bias", {"rows": rows, "in_features": inputs, "out_features": outputs, "weight_type": "bf16",
                         "relative": 0.0, "absolute": 2e-5},
                x=("f32", x), weight=("f32", weight), bias=("f32", bias), out=("f32", out))
    return family


FAMILIES = (activation, attention, embedding, kv_shift, kv_write, linear, logits, mla_attention, norm,
            rope)


def write_all(folder):
    for family in FAMILIES:
        family().write(folder)


def check():
    with tempfile.TemporaryDirectory() as fresh:
        write_all(Path(fresh))
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
    write_all(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
