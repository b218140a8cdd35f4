#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures loading weights into a GPU's memory: `metrale load-bench` and InstantTensor, from a memory file system and from the disk.

Usage: gpu_load.py --program PATH [--bytes 16G] [--memory-dir /dev/shm/weights] [--disk-dir DIR] [--rounds 5] --out FILE

Writes a model of one file with 300 tensors into both places, then measures in turns, each in a fresh process, and writes what was
measured as JSON. InstantTensor is measured where it can be imported, with its own choice of staging memory and with as much as
metrale has.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAGING = 256 << 20

INSTANT = r"""
import json, sys, time, torch, os
from instanttensor import safe_open
path, staging = sys.argv[1], int(sys.argv[2])
torch.cuda.init(); torch.zeros(1, device="cuda")
options = {}
if staging:
    os.environ["INSTANTTENSOR_BUFFER_SIZE"] = str(staging)
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
    report = run([program, "load-bench", str(directory), "--device", "cuda:0", "--runs", "1", "--cold-only", "--json", *arguments])
    return report if "error" in report else {path["name"]: path["cold"] for path in report["paths"]}


def measure(program, directory, rounds, cold, rows):
    file = next(directory.glob("*.safetensors"))
    for _ in range(rounds):
        variants = [["--staging", "128M"], ["--staging", "256M"], ["--staging", "256M", "--engine", "posix"],
                    ["--staging", "256M", "--chunk", "8M"], ["--staging", "64M", "--chunk", "2M"]]
        for arguments in variants:
            if cold:
                drop_cache(directory)
            found = metrale(program, directory, ["--paths", "auto", *(["--raw"] if cold else []), *arguments])
            if "error" in found:
                rows.setdefault("metrale " + " ".join(arguments), []).append(found)
                continue
            for name, sample in found.items():
                rows.setdefault(f"metrale {name} {' '.join(arguments)}", []).append(sample)
        if cold:
            drop_cache(directory)
        rows.setdefault("instanttensor", []).append(run([sys.executable, "-c", INSTANT, str(file), "0"]))


def summary(rows):
    result = []
    for name, samples in rows.items():
        good = [s for s in samples if "error" not in s]
        entry = {"name": name, "runs": len(good), "samples": samples}
        if good:
            entry["seconds"] = statistics.median(s["seconds"] for s in good)
            entry["gb_per_s"] = statistics.median(s["bytes"] / s["seconds"] / 1e9 for s in good)
            shares = [s["share_of_raw"] for s in good if "share_of_raw" in s]
            if shares:
                entry["share_of_raw"] = statistics.median(shares)
        result.append(entry)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--bytes", default="16G")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm/metrale-weights"))
    parser.add_argument("--disk-dir", type=Path, required=True)
    parser.add_argument("--disk-bytes", default="8G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    report = {}
    for place, directory, size, cold in (("tmpfs", arguments.memory_dir, arguments.bytes, False),
                                         ("disk", arguments.disk_dir, arguments.disk_bytes, True)):
        if not directory.exists():
            subprocess.run([sys.executable, str(HERE / "make_weights.py"), "one", str(directory), "--bytes", size], check=True)
        rows = {}
        measure(arguments.program, directory, arguments.rounds if not cold else max(3, arguments.rounds // 2), cold, rows)
        report[place] = summary(rows)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        for row in report[place]:
            print(place, row["name"], round(row.get("gb_per_s", 0), 2), "GB/s", row.get("share_of_raw", ""))


if __name__ == "__main__":
    main()
