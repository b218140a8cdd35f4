#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures loading weights into a GPU's memory: `metrale load-bench` and InstantTensor, from a memory file system and from the disk.

Usage: gpu_load.py --program PATH [--bytes 16G] [--memory-dir /dev/shm/weights] [--disk-dir DIR] [--rounds 5] --out FILE

Writes a model of one file with 300 tensors into both places, then measures in turns, each in a fresh process, and writes what was
measured as JSON. InstantTensor is measured where it can be imported.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Beside the defaults, which are 44M in chunks of 1536K through the page cache and 8M in chunks of 256K past it.
VARIANTS = [[], ["--staging", "64M", "--chunk", "2M"]]

HERE = Path(__file__).resolve().parent

INSTANT = r"""
import json, sys, time, torch
from instanttensor import safe_open
path = sys.argv[1]
torch.cuda.init(); torch.zeros(1, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
total, kept = 0, []
with safe_open(path, framework="pt", device=0) as f:
    for name, tensor in f.tensors():
        kept.append(tensor); total += tensor.numel() * tensor.element_size()
torch.cuda.synchronize()
print(json.dumps({"seconds": time.perf_counter() - start, "bytes": total}))
"""


def drop_cache(path):
    subprocess.run([sys.executable, "-c", "import os,sys\nfor p in sys.argv[1:]:\n f=os.open(p,os.O_RDONLY);os.fsync(f);os.posix_fadvise(f,0,0,os.POSIX_FADV_DONTNEED)",
                    *map(str, path.glob("*.safetensors"))], check=True)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-3:]}
    return json.loads(done.stdout.splitlines()[-1])


def metrale(program, directory, arguments):
    report = run([program, "load-bench", str(directory), "--device", "cuda:0", "--runs", "1", "--cold-only", "--allocate", "--json", *arguments])
    return report if "error" in report else {path["name"]: path["cold"] for path in report["paths"]}


def measure(program, directory, rounds, cold, rows):
    file = next(directory.glob("*.safetensors"))
    for _ in range(rounds):
        for arguments in VARIANTS:
            if cold:
                drop_cache(directory)
            found = metrale(program, directory, ["--paths", "auto", *(["--raw"] if cold else []), *arguments])
            if "error" in found:
                rows.setdefault("metrale " + " ".join(arguments), []).append(found)
                continue
            for name, sample in found.items():
                rows.setdefault(f"metrale {name} {' '.join(arguments)}".strip(), []).append(sample)
        if cold:
            drop_cache(directory)
        rows.setdefault("instanttensor", []).append(run([sys.executable, "-c", INSTANT, str(file)]))


def median_rows(place, rows, limit):
    result = []
    for name, samples in rows.items():
        good = [sample for sample in samples if "error" not in sample]
        if not good:
            print(f"{place}: {name}: {samples[0]['error']}", file=sys.stderr)
            continue
        rates = [sample["bytes"] / sample["seconds"] / 1e9 for sample in good]
        row = {"name": f"{place}, {name}", "metric": "load", "value": statistics.median(rates), "unit": "GB/s",
               "bytes_moved": good[0]["bytes"], "rounds": rates}
        shares = [sample["share_of_raw"] for sample in good if "share_of_raw" in sample]
        if shares and " raw " not in f" {name} ":
            row |= {"share_of_limit": statistics.median(shares), "limit": "raw O_DIRECT reader, run by run"}
        elif limit:
            row |= {"share_of_limit": row["value"] / limit, "limit": f"pinned copies to the device, {limit:.1f} GB/s"}
        result.append(row)
    return result


def copy_limit():
    """GB/s of copies from page-locked memory, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    rates = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append((1 << 30) / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def processor():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def card():
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--bytes", default="16G")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm/metrale-weights"))
    parser.add_argument("--disk-dir", type=Path, required=True)
    parser.add_argument("--disk-bytes", default="8G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default="unknown", help="of the program")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    limit = copy_limit()
    report = {"bench": "gpu_load", "commit": arguments.commit, "date": datetime.date.today().isoformat(),
              "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": "nvcc 13.0"},
              "conditions": f"{card()}. Into device memory, one file of 300 tensors; medians of {arguments.rounds} interleaved rounds (disk: "
                            f"{max(3, arguments.rounds // 2)}), a fresh process each, device memory allocated within the time; "
                            "InstantTensor by its defaults; disk: pages of the files dropped before",
              "rows": []}
    for place, directory, size, cold in (("tmpfs", arguments.memory_dir, arguments.bytes, False),
                                         ("disk", arguments.disk_dir, arguments.disk_bytes, True)):
        if not directory.exists():
            subprocess.run([sys.executable, str(HERE / "make_weights.py"), "one", str(directory), "--bytes", size], check=True)
        rows = {}
        measure(arguments.program, directory, arguments.rounds if not cold else max(3, arguments.rounds // 2), cold, rows)
        found = median_rows(place, rows, None if cold else limit)
        report["rows"] += found
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        for row in found:
            print(f"{row['name']:70} {row['value']:7.2f} {row['unit']} {100 * row.get('share_of_limit', 0):6.1f} %")


if __name__ == "__main__":
    main()
