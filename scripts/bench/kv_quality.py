#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each format of the KV cache costs a model: perplexity, KL divergence and share of equal top tokens beside a BF16 cache.

Usage: kv_quality.py [--program FILE] [--model DIR] [--text FILE --calibration-text FILE] [--windows 10] [--bias-windows 4] [--jobs N] [--threads N]
                     [--commit NAME] [--resume] [--out bench/results/kv_quality.json]

Runs `metrale score` on the first windows of 2,048 tokens of the text for every format and named pair, with no high-precision
layers, then with a calibration made on the other text (`metrale calibrate`), alone and within a budget of 4.0 bits. At last
the model with a large key bias: its heads are widened to 256 dimensions, in which every pair keeps its frequency and the pairs in
between are zero, and two of those get a bias of 600 in every KV head. Queries have nothing there, so that the biased model
computes bit for bit what the widened one does; both are calibrated, and run on the first --bias-windows windows. The texts are those of debian_text.py unless given. Writes a report for docs/benchmarks.md; the exit code is 1
where a bound does not hold. Needs numpy.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))

from debian_text import FAQ, POLICY, digest, fetch_text  # noqa: E402

FORMATS = ["bf16", "fp32", "fp16", "turbo8i", "turbo8", "fp8", "turbo4", "nvfp4", "nvfp4_searched", "turbo3", "turbo2"]
PAIRS = ["turbo4k_turbo3v", "turbo4k_turbo8v", "turbo3k_turbo8v", "bf16k_turbo4v", "bf16k_turbo3v", "fp8k_turbo4v", "fp8k_turbo3v",
         "bf16k_turbo2v", "fp8k_turbo2v"]
CALIBRATED = ["turbo8i", "fp8", "turbo4", "nvfp4", "nvfp4_searched", "turbo3", "turbo2", "turbo4k_turbo3v"]
BIAS = 600.0
WIDE_DIMS = 256
BIASED_PAIRS = (1, 66)  # of a wide head: a fast one and a slow one, which the model does not use
MAX_BIAS_FACTOR = 1.5


# ---- a model with a large key bias


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def bf16_to_float(data):
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()  # 600 and 0 are exact


def widened(values, heads, dims, hidden):
    """Rows of [heads][dims] in [heads][WIDE_DIMS]: pair i becomes pair i * WIDE_DIMS / dims, which turns as fast."""
    wide = np.zeros((heads, WIDE_DIMS, hidden), np.float32)
    step, half = WIDE_DIMS // dims, dims // 2
    rows = values.reshape(heads, dims, hidden)
    wide[:, 0 : WIDE_DIMS // 2 : step] = rows[:, :half]
    wide[:, WIDE_DIMS // 2 :: step] = rows[:, half:]
    return wide


def write_biased_models(model, plain, biased):
    """`plain`: the model with heads of WIDE_DIMS, the pairs in between unused; `biased`: with BIAS on keys in two of those."""
    config = json.loads((model / "config.json").read_text())
    heads, kv_heads, dims = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    hidden = config["hidden_size"]
    if WIDE_DIMS != 4 * dims:
        sys.exit(f"head_dim {dims}: the factor of queries would not be a power of two")
    tensors = read_safetensors(model / "model.safetensors")
    biases = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn"
        attention = {name: bf16_to_float(tensors[f"{prefix}.{name}_proj.weight"][2]) for name in "qkvo"}
        # Attention divides by the root of head_dim: twice that of a quarter of it.
        wide = {
            "q": widened(2 * attention["q"], heads, dims, hidden).reshape(-1, hidden),
            "k": widened(attention["k"], kv_heads, dims, hidden).reshape(-1, hidden),
            "v": widened(attention["v"], kv_heads, dims, hidden).reshape(-1, hidden),
            "o": widened(attention["o"].reshape(hidden, -1).T.copy(), heads, dims, hidden).reshape(-1, hidden).T,
        }
        for name, values in wide.items():
            tensors[f"{prefix}.{name}_proj.weight"] = ("BF16", values.shape, to_bf16(values.ravel()))
            bias = np.zeros(len(values), np.float32)
            if name == "k":
                for pair in BIASED_PAIRS:
                    bias.reshape(kv_heads, WIDE_DIMS)[:, [pair, pair + WIDE_DIMS // 2]] = BIAS
            biases[f"{prefix}.{name}_proj.bias"] = ("BF16", bias.shape, to_bf16(bias))
    for directory, extra in ((plain, {}), (biased, biases)):
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"):
            if (model / name).exists():
                shutil.copy(model / name, directory)
        (directory / "config.json").write_text(json.dumps({**config, "head_dim": WIDE_DIMS, "attention_bias": bool(extra)}))
        write_safetensors(directory / "model.safetensors", {**tensors, **extra})


# ---- runs


class Runs:
    def __init__(self, options, text, calibration_text):
        self.options, self.text, self.calibration_text = options, text, calibration_text

    def metrale(self, *arguments):
        command = [self.options.program, *arguments, "--device", "cpu", "--json", "--threads", self.options.threads]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
        return json.loads(done.stdout)

    def score(self, model, dtype, calibration=None, windows=None):
        kept = self.options.work / f"score_{model.name}_{dtype}_{calibration.stem if calibration else 'plain'}.json"
        if self.options.resume and kept.exists():
            return json.loads(kept.read_text())
        flags = ["--kv-calibration", calibration] if calibration else []
        result = self.metrale("score", model, "--file", self.text, "--window", 2048, "--stride", 2048, "--max-windows",
                              windows or self.options.windows, "--kv-dtype", dtype, *flags)
        print(dtype, "calibrated" if calibration else "", result["perplexity"], result.get("mean_kl_divergence"),
              result.get("same_top"), file=sys.stderr, flush=True)
        kept.write_text(json.dumps(result))
        return result

    def calibrate(self, model, out, *flags):
        kept = out.with_suffix(".summary")
        if self.options.resume and kept.exists():
            return json.loads(kept.read_text())
        result = self.metrale("calibrate", "-m", model, "-f", self.calibration_text, "-o", out, *flags)
        kept.write_text(json.dumps(result))
        return result


def measure(options, runs, work):
    """name -> (bits of an element or None, score)."""
    calibration, budget_file = work / "calibration.json", work / "budget.json"
    runs.calibrate(options.model, calibration)
    budget = runs.calibrate(options.model, budget_file, "--budget", "4.0")["budget"]
    plain, biased = work / "plain", work / "biased"
    if not (options.resume and (biased / "model.safetensors").exists()):
        write_biased_models(options.model, plain, biased)
    for model in (plain, biased):
        runs.calibrate(model, work / f"{model.name}_calibration.json")
    few = options.bias_windows
    jobs = {name: (options.model, name, None) for name in FORMATS + PAIRS}
    jobs.update({f"{name}, calibrated": (options.model, name, calibration) for name in CALIBRATED})
    jobs["chosen within 4.0 bits"] = (options.model, "calibrated", budget_file)
    for model, said in ((plain, "heads of 256"), (biased, "heads of 256, key bias 600")):
        jobs[f"{said}: bf16"] = (model, "bf16", None, few)
        jobs[f"{said}: turbo4"] = (model, "turbo4", None, few)
        jobs[f"{said}: turbo4, calibrated"] = (model, "turbo4", work / f"{model.name}_calibration.json", few)
    with ThreadPoolExecutor(options.jobs) as pool:
        scores = dict(zip(jobs, pool.map(lambda job: runs.score(*job), jobs.values())))
    return scores, budget["mean_bits"]


def judge(scores):
    def kl(name):
        return scores[name]["mean_kl_divergence"]

    verdicts = {}

    def at_most(name, value, bound):
        verdicts[name] = {"value": value, "at_most": bound, "holds": value <= bound}

    at_most("KL divergence of turbo4, beside nvfp4's", kl("turbo4"), kl("nvfp4"))
    at_most("KL divergence of calibrated turbo3, beside nvfp4's", kl("turbo3, calibrated"), kl("nvfp4"))
    at_most("KL divergence of calibrated turbo3, beside calibrated nvfp4's", kl("turbo3, calibrated"), kl("nvfp4, calibrated"))
    at_most("KL divergence of turbo4 with the key bias, calibrated, beside 1.5 times turbo4's without the bias",
            kl("heads of 256, key bias 600: turbo4, calibrated"), MAX_BIAS_FACTOR * kl("heads of 256: turbo4"))
    at_most("KL divergence of turbo4 with the key bias, calibrated, beside 1.5 times calibrated turbo4's without the bias",
            kl("heads of 256, key bias 600: turbo4, calibrated"), MAX_BIAS_FACTOR * kl("heads of 256: turbo4, calibrated"))
    difference = abs(scores["heads of 256, key bias 600: bf16"]["log_likelihood"] - scores["heads of 256: bf16"]["log_likelihood"])
    at_most("difference in log-likelihood that the key bias makes with a bf16 cache", difference, 0)
    return verdicts


def report(options, sources, scores, mean_bits):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = options.commit or subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    rows = []
    for name, score in scores.items():
        rows.append({"name": name, "metric": "perplexity", "value": score["perplexity"], "unit": ""})
        if "mean_kl_divergence" in score:
            rows.append({"name": name, "metric": "KL divergence from the bf16 cache", "value": score["mean_kl_divergence"],
                         "unit": "nats/token"})
            rows.append({"name": name, "metric": "same top token as with the bf16 cache", "value": 100 * score["same_top"], "unit": "%"})
    rows.append({"name": "chosen within 4.0 bits", "metric": "bits of an element", "value": mean_bits, "unit": ""})
    (text, said), (calibration_text, calibration_said) = sources
    scored = next(iter(scores.values()))["scored_tokens"]
    return {
        "bench": "kv_quality",
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "compiler": "g++ (the program)"},
        "conditions": f"SmolLM2-135M-Instruct (sha256 {digest(options.model / 'model.safetensors')}), BF16, CPU kernels, on {said} "
        f"(text's sha256 {digest(text)}): {options.windows} windows of 2,048 tokens, {scored} scored (heads of 256: the first {options.bias_windows} windows); no high-precision layers; "
        f"calibrated on 8,192 tokens of {calibration_said} (sha256 {digest(calibration_text)}); scores depend on whether the processor has BF16 dot products",
        "rows": rows,
        "verdicts": judge(scores),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/bin/metrale")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--calibration-text", type=Path)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--bias-windows", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1, help="scores that run at a time")
    parser.add_argument("--threads", type=int, default=0, help="of each")
    parser.add_argument("--commit", help="what the report names; default: of this checkout")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run left in the work folder")
    parser.add_argument("--work", type=Path, default=ROOT / "build/kv_quality")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/kv_quality.json")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    sources = []
    for given, source in ((options.text, POLICY), (options.calibration_text, FAQ)):
        if given:
            sources.append((given, f"/{source[1]} of the Debian package {source[0]}" if source[1].endswith(given.name + ".gz") else given.name))
        else:
            sources.append(fetch_text(options.work, source))
    runs = Runs(options, sources[0][0], sources[1][0])
    scores, mean_bits = measure(options, runs, options.work)
    result = report(options, sources, scores, mean_bits)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, verdict in result["verdicts"].items():
        print("holds" if verdict["holds"] else "DOES NOT HOLD", name, f"{verdict['value']:.6g} at most {verdict['at_most']:.6g}")
    return 0 if all(verdict["holds"] for verdict in result["verdicts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
