#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares dumps of our logits with Hugging Face transformers over every position and every token of the vocabulary.

Usage: parity_hf.py [--fp32 FILE] [--bf16 FILE] [--model DIR] [--out bench/results/parity.json]

A dump is little-endian float32 [8][128][49152]: the logits of the prompts of tests/golden/engine/smollm2_fp32 ("tokens"),
computed in FP32 or in BF16: `build/release/bin/engine_bench --dump DIR` writes both. Runs on the CPU in an environment
with scripts/golden/requirements.txt. Writes a report for docs/benchmarks.md; the exit code is 1 where a limit does not hold.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/golden"))

from engine_golden import THREADS, all_logits, compare, environment, load, sha256_of  # noqa: E402
from golden_file import GoldenReader  # noqa: E402

FP32_MAX_DIFFERENCE = 1e-3
BF16_KL_FACTOR = 1.1
BF16_SAME_TOP_SLACK = 0.005


def read_dump(path, shape):
    wanted = int(np.prod(shape)) * 4
    if path.stat().st_size != wanted:
        sys.exit(f"{path} has {path.stat().st_size} bytes; float32 {list(shape)} has {wanted}")
    rows = np.fromfile(path, "<f4").reshape(shape)
    if not np.isfinite(rows).all():
        sys.exit(f"{path} holds a value that is not finite")
    return rows


def hugging_face(directory, tokens, dtype, attention):
    model = load(directory, dtype, attention)
    return np.stack([all_logits(model, row.tolist()) for row in tokens])


def figures(reference, rows):
    """`compare` a prompt at a time: float64 copies of everything would not fit a small machine."""
    parts = [compare(reference[i : i + 1], rows[i : i + 1]) for i in range(len(rows))]

    def mean(key):
        return float(np.mean([part[key] for part in parts]))

    return {
        "max_abs_difference": max(part["max_abs_difference"] for part in parts),
        "mean_kl": mean("mean_kl"),
        "max_kl": max(part["max_kl"] for part in parts),
        "mean_bucket_kl": mean("mean_bucket_kl"),
        "same_top": mean("same_top"),
    }


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def report(model, result):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    facts = environment()
    rows = []

    def row(name, metric, value, unit, share=None, limit=None):
        rows.append({"name": name, "metric": metric, "value": value, "unit": unit,
                     **({} if share is None else {"share_of_limit": share, "limit": limit})})

    names = {"ours_fp32": "FP32", "ours_bf16": "BF16", "hugging_face_bf16": "transformers in BF16"}
    for key, name in names.items():
        if key in result:
            figures_here = result[key]
            row(name, "largest logit difference from transformers in FP32", figures_here["max_abs_difference"], "")
            row(name, "mean KL from transformers in FP32", figures_here["mean_kl"], "nats")
            row(name, "same top token as transformers in FP32", 100 * figures_here["same_top"], "%")
    if "ours_bf16" in result:
        ratio = result["ours_bf16"]["mean_kl"] / result["hugging_face_bf16"]["mean_kl"]
        row("BF16", "mean KL, ours over that of transformers in BF16", ratio, "x")
    return {
        "bench": "parity",
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": "g++ (the program), torch " + facts["torch"]},
        "conditions": f"SmolLM2-135M-Instruct (sha256 {sha256_of(model / 'model.safetensors')[:16]}), every logit of 8 prompts x "
        f"128 tokens; transformers {facts['transformers']}, FP32 with eager and BF16 with sdpa attention; the committed "
        f"reference is within {result['reference_drift']:.1e} of this run's",
        "rows": rows,
        "verdicts": result["verdicts"],
    }


def reference_drift(golden, reference):
    """How far this machine's Hugging Face FP32 is from the committed one."""
    here = np.take_along_axis(reference, golden.array("top_ids").astype(np.int64), -1)
    return float(np.abs(here - golden.array("top_logits")).max())


def judge(result):
    """name -> {value, limit, holds}."""
    verdicts = {}
    if "ours_fp32" in result:
        value = result["ours_fp32"]["max_abs_difference"]
        verdicts["fp32_max_abs_difference"] = {"value": value, "at_most": FP32_MAX_DIFFERENCE,
                                               "holds": value <= FP32_MAX_DIFFERENCE}
    if "ours_bf16" in result:
        ours, theirs = result["ours_bf16"], result["hugging_face_bf16"]
        limit = BF16_KL_FACTOR * theirs["mean_kl"]
        verdicts["bf16_mean_kl"] = {"value": ours["mean_kl"], "at_most": limit, "holds": ours["mean_kl"] <= limit}
        limit = theirs["same_top"] - BF16_SAME_TOP_SLACK
        verdicts["bf16_same_top"] = {"value": ours["same_top"], "at_least": limit, "holds": ours["same_top"] >= limit}
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp32", type=Path, help="our logits, FP32 compute")
    parser.add_argument("--bf16", type=Path, help="our logits, BF16 compute")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/parity.json")
    options = parser.parse_args()
    if not (options.fp32 or options.bf16):
        parser.error("nothing to compare: give --fp32, --bf16 or both")
    torch.set_num_threads(THREADS)
    golden = GoldenReader(ROOT / "tests/golden/engine", "smollm2_fp32")
    if sha256_of(options.model / "model.safetensors") != golden.facts["model_sha256"]["model.safetensors"]:
        sys.exit(f"{options.model} is not the model of the golden files; scripts/get_demo_model.sh makes it")
    tokens = golden.array("tokens")
    shape = (*tokens.shape, golden.facts["vocab"])
    dumps = {f"ours_{name}": read_dump(path, shape)
             for name, path in (("fp32", options.fp32), ("bf16", options.bf16)) if path}

    reference = hugging_face(options.model, tokens, torch.float32, "eager")
    result = {"reference_drift": reference_drift(golden, reference)}
    theirs = hugging_face(options.model, tokens, torch.bfloat16, "sdpa")
    result["hugging_face_bf16"] = figures(reference, theirs)
    for name, rows in dumps.items():
        result[name] = figures(reference, rows)
    result["verdicts"] = judge(result)

    text = json.dumps(report(options.model, result), indent=2)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if all(verdict["holds"] for verdict in result["verdicts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
