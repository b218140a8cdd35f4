#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `metrale quant-report` on made vectors and on the demo model, and keeps what docs/benchmarks.md shows of it.

Usage: quant_report.py [--program FILE] [--model DIR] [--text FILE] [--report DIR] [--out bench/results/quant_report.json]

The text is policy.txt of the package debian-policy, fetched with apt-get into build/texts; --text takes another one. Options of
the command are its defaults. --report keeps the whole report; without it the page and all other figures are thrown away.
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from debian_text import digest, fetch_text

ROOT = Path(__file__).resolve().parents[2]
EXACT = "fp32"
CONTRAST = ["nvfp4", "nvfp4_searched", "turbo4"]  # of the kinds that rotation is for or against
SCENES = {  # with these formats
    "outliers_x20_white": ["fp8", "nvfp4", "turbo4", "turbo8", "turbo8i", "turbo4 + equaliser", "turbo8 + equaliser"],
    "qwen_like_white": ["fp8", "nvfp4", "turbo4", "turbo8", "turbo8i", "turbo4 + equaliser", "turbo8 + equaliser"],
}


def processor():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(": ", 1)[1]
    return "unknown"


def compiler(program):
    """Of the build folder that the program lies in."""
    cache = program.resolve().parents[1] / "CMakeCache.txt"
    for line in cache.read_text(encoding="utf-8").splitlines() if cache.is_file() else []:
        if line.startswith("CMAKE_CXX_COMPILER:"):
            path = line.split("=", 1)[1]
            version = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
            return f"g++ {version}"
    return "unknown"


def row(name, metric, value, unit=""):
    return {"name": name, "metric": metric, "value": value, "unit": unit}


def attention_rows(where, found):
    case = f"{where}, {found['name']} ({found['bits_per_element']:g} bits)"
    return [
        row(case, "logit RMSE", found["logit_rmse"]),
        row(case, "KL divergence of the weights", found["kl"], "nats"),
        row(case, "error of the output", found["output_error"]),
    ]


def synthetic_rows(report):
    summary = report["summary"]
    rows = []
    for found in summary["formats"]:
        if found["format"] == EXACT:
            continue
        case = f"gaussian, {found['format']} ({found['bits_per_element']:g} bits)"
        rows.append(row(case, "NMSE of keys", found["nmse_keys"]))
        rows.append(row(case, "NMSE of values", found["nmse_values"]))
    for name in ("nvfp4", "nvfp4_searched"):
        for side in ("keys", "values"):
            rows.append(row("gaussian", f"NMSE of {side}, {name} / turbo4", summary[f"{name}_over_turbo4"][side], "x"))
    for found in report["nmse"]:
        if found["data"] != "gaussian" and found["format"] in CONTRAST:
            rows.append(row(f"{found['data']}, {found['format']}", "NMSE of keys", found["keys"]))
    for found in report["attention"]:
        if found["data"] == "gaussian" and found["group"] in ("both", "pair") and found["name"] != EXACT:
            rows += attention_rows("attention over gaussian keys", found)
        if found["name"] in SCENES.get(found["data"], []):
            rows.append(row(f"attention over {found['data']} keys, {found['name']}", "logit RMSE", found["logit_rmse"]))
    return rows


def model_rows(model):
    rows = []
    for found in model["mean"]["nmse"]:
        if found["format"] == EXACT:
            continue
        rows.append(row(f"model, {found['format']}", "NMSE of keys, mean of the layers", found["keys"]))
        rows.append(row(f"model, {found['format']}", "NMSE of values, mean of the layers", found["values"]))
    for found in model["mean"]["attention"]:
        if found["group"] in ("both", "pair", "equalised") and found["name"] != EXACT:
            rows += attention_rows("model", found)
    return rows


def measure(options, text, folder):
    command = [options.program, "quant-report", "-m", options.model, "-f", text, "-o", folder]
    subprocess.run(list(map(str, command)), check=True)
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def result(options, text, source, report):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    made, model = report["options"], report["model"]
    weights = hashlib.sha256((options.model / "model.safetensors").read_bytes()).hexdigest()[:16]
    return {
        "bench": "quant_report",
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": compiler(options.program)},
        "conditions": f"Made vectors of {made['head_dim']}, {made['vectors']} of a kind; attention of {made['queries']} queries over "
        f"{made['keys']} keys, logits with a standard deviation of {report['conditions']['logit_std']:g}, seed {made['seed']}. Model: "
        f"SmolLM2-135M-Instruct (sha256 {weights}) in {model['dtype']} on {model['device']}, the first {model['tokens']} tokens of "
        f"{source} (text's sha256 {digest(text)}), {model['queries']} positions of each query head. NMSE: squared error over squared "
        "size. docs/quantization.md says what is measured",
        "rows": synthetic_rows(report) + model_rows(model),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bin/metrale")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, help="another text than the package's")
    parser.add_argument("--report", type=Path, help="where the whole report is kept")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/quant_report.json")
    options = parser.parse_args()
    text, source = (options.text, options.text.name) if options.text else fetch_text(ROOT / "build/texts")
    with tempfile.TemporaryDirectory() as scratch:
        report = measure(options, text, options.report or Path(scratch) / "report")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result(options, text, source, report), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
