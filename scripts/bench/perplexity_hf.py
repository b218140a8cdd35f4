#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the perplexity that `metrale score` gives with that of Hugging Face transformers, on a text of a Debian package.

Usage: perplexity_hf.py [--program FILE] [--model DIR] [--text FILE] [--out bench/results/perplexity.json]

The text is policy.txt of the package debian-policy, fetched with apt-get into build/perplexity; --text takes another one.
Three comparisons: FP32 and BF16 on the first 10 windows of 2,048 tokens, and FP32 on overlapping windows, once counted by
token and once as the strided loop of transformers' documentation weighs its windows. Runs on the CPU in an environment with
scripts/golden/requirements.txt. Writes a report for docs/benchmarks.md; the exit code is 1 where a limit does not hold.
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/golden"))

from debian_text import fetch_text  # noqa: E402
from engine_golden import THREADS, environment, load, sha256_of  # noqa: E402
from parity_hf import processor  # noqa: E402

MAX_RELATIVE_DIFFERENCE = 1e-3
CASES = {
    # name: (our flags, transformers' type, window, stride, windows)
    "FP32": (["--dtype", "fp32", "--kv-dtype", "fp32"], torch.float32, 2048, 2048, 10),
    "BF16": (["--dtype", "bf16", "--kv-dtype", "bf16"], torch.bfloat16, 2048, 2048, 10),
    "FP32, overlapping": (["--dtype", "fp32", "--kv-dtype", "fp32"], torch.float32, 1024, 256, 8),
}


def ours(program, model, text, flags, window, stride, windows):
    command = [program, "score", model, "--file", text, "--window", window, "--stride", stride, "--max-windows", windows,
               "--json", *flags]
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)


@torch.no_grad()
def theirs(model, ids, window, stride, windows):
    """The strided loop of transformers' documentation; beside its own figure the sum over tokens."""
    total, scored = 0.0, 0
    loop_total, loop_tokens = 0.0, 0
    previous_end = 0
    for begin in list(range(0, len(ids), stride))[:windows]:
        end = min(begin + window, len(ids))
        targets_length = end - previous_end
        inputs = torch.tensor([ids[begin:end]])
        labels = inputs.clone()
        labels[:, :-targets_length] = -100
        logits = model(inputs).logits[0, :-1].double()
        targets = labels[0, 1:]
        losses = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="none")[targets != -100]
        total += losses.sum().item()
        scored += losses.numel()
        weight = (labels != -100).sum().item() - 1
        loop_total += losses.mean().item() * weight
        loop_tokens += weight
        previous_end = end
        if end == len(ids):
            break
    return {"perplexity": math.exp(total / scored), "scored_tokens": scored, "loop_perplexity": math.exp(loop_total / loop_tokens)}


def compare(options, text, ids):
    results = {}
    for name, (flags, dtype, window, stride, windows) in CASES.items():
        here = ours(options.program, options.model, text, flags, window, stride, windows)
        if here["tokens"] != len(ids):
            sys.exit(f"our tokenizer gives {here['tokens']} tokens, the `tokenizers` package {len(ids)}")
        model = load(options.model, dtype, "sdpa" if dtype == torch.bfloat16 else "eager")
        there = theirs(model, ids, window, stride, windows)
        if here["scored_tokens"] != there["scored_tokens"]:
            sys.exit(f"{name}: we score {here['scored_tokens']} tokens, transformers {there['scored_tokens']}")
        results[name] = {"ours": here["perplexity"], **there, "windows": f"{windows} windows of {window}, {stride} apart"}
        print(name, results[name], file=sys.stderr)
    return results


def report(options, text, source, results):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    facts = environment()
    rows, verdicts = [], {}

    def judged(name, metric, ours_here, reference):
        value = abs(ours_here / reference - 1)
        rows.append({"name": name, "metric": metric, "value": 100 * value, "unit": "%",
                     "share_of_limit": value / MAX_RELATIVE_DIFFERENCE, "limit": f"{100 * MAX_RELATIVE_DIFFERENCE:g} %"})
        verdicts[f"{name}: {metric}"] = {"value": value, "at_most": MAX_RELATIVE_DIFFERENCE, "holds": value <= MAX_RELATIVE_DIFFERENCE}

    for name, result in results.items():
        case = f"{name}, {result['windows']}"
        rows.append({"name": case, "metric": "perplexity, metrale score", "value": result["ours"], "unit": ""})
        rows.append({"name": case, "metric": "perplexity, transformers", "value": result["perplexity"], "unit": ""})
        judged(case, "difference", result["ours"], result["perplexity"])
        # Without overlap the loop weighs windows as we do.
        if result["loop_perplexity"] != result["perplexity"]:
            judged(case, "difference from the loop's own weights", result["ours"], result["loop_perplexity"])
    digest = hashlib.sha256(text.read_bytes()).hexdigest()
    return {
        "bench": "perplexity",
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": "g++ (the program), torch " + facts["torch"]},
        "conditions": f"SmolLM2-135M-Instruct (sha256 {sha256_of(options.model / 'model.safetensors')[:16]}) on {source} (text's "
        f"sha256 {digest[:16]}); transformers {facts['transformers']}, FP32 with eager and BF16 with sdpa attention; both score "
        "the same tokens, with the KV cache in the type of the computation",
        "rows": rows,
        "verdicts": verdicts,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/metrale")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, help="another text than the package's")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/perplexity.json")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    text, source = (options.text, options.text.name) if options.text else fetch_text(ROOT / "build/perplexity")
    ids = Tokenizer.from_file(str(options.model / "tokenizer.json")).encode(text.read_text(encoding="utf-8")).ids
    result = report(options, text, source, compare(options, text, ids))
    document = json.dumps(result, indent=2)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(document + "\n", encoding="utf-8")
    print(document)
    return 0 if all(verdict["holds"] for verdict in result["verdicts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
