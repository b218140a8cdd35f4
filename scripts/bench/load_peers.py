#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures loading a model directory into CPU memory, cold: safetensors, fastsafetensors, Run:ai's streamer and `metrale load-bench`.

Usage: load_peers.py [DIR...] [--layout one|many|experts] [--bytes 4G] [--rounds 7] [--program build/bin/metrale] [--out FILE]

Without DIR the layouts of make_weights.py are written below build/load-peers and removed again. In every round each loader runs
once in a fresh process, after the files' pages were dropped from the page cache and mincore found none of them there; the
figures are medians over the rounds. Nothing else should run meanwhile. Python packages go into build/load-peers-venv.
"""

import argparse
import ctypes
import datetime
import json
import mmap
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build/load-peers-venv"
REQUIREMENTS = Path(__file__).with_name("load_peers_requirements.txt")
CHILD = Path(__file__).with_name("load_peers_child.py")
RAW = "raw O_DIRECT"
PEERS = ["safetensors get_tensor", "safetensors load_file", "fastsafetensors nogds", "runai streamer"]
LAYOUTS = {"one": "1 file, 300 tensors", "many": "4 files, 80,000 tensors", "experts": "11 files, 300,000 tensors"}


def prepare_environment():
    installed = VENV / "installed.txt"
    if installed.is_file() and installed.read_bytes() == REQUIREMENTS.read_bytes():
        return VENV / "bin/python"
    print(f"installing the packages of {REQUIREMENTS.name} into {VENV} (about 3 GB, of which torch's CUDA libraries are most)")
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([VENV / "bin/pip", "install", "--quiet", "--no-cache-dir", "--requirement", REQUIREMENTS], check=True)
    shutil.copy(REQUIREMENTS, installed)
    return VENV / "bin/python"


def resident_bytes(paths):
    """How much of the files the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    total = 0
    for path in paths:
        size = path.stat().st_size
        if size == 0:
            continue
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        found = ctypes.create_string_buffer(pages)
        with path.open("rb") as file:
            address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"cannot map {path}")
        failed = libc.mincore(address, size, found) != 0
        libc.munmap(address, size)
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot ask mincore about {path}")
        total += sum(byte & 1 for byte in found.raw) * mmap.PAGESIZE
    return total


def make_cold(paths):
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left = resident_bytes(paths)
    if left != 0:
        sys.exit(f"{left} bytes of {paths[0].parent} stay in the page cache: is another process using them, or is this a tmpfs?")


def run_child(command):
    """(output, rusage of that process alone, error text)"""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # Messages are short: a pipe holds them until the results have come.
        out, error = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return (out if process.returncode == 0 else None), usage, error


def run_peer(python, name, files):
    out, _, error = run_child([python, CHILD, name, *files])
    if out is None:
        return {}, error.strip().splitlines()[-1:] or ["failed"]
    return {name: json.loads(out.splitlines()[-1])}, None


def run_metrale(program, directory):
    """A row for every path of `metrale load-bench`; CPU time and peak are the whole process's."""
    out, usage, error = run_child([program, "load-bench", directory, "--paths", "auto", "--runs", "1", "--cold-only", "--allocate", "--json"])
    if out is None:
        return {}, error.strip().splitlines()[-1:] or ["failed"]
    rows = {}
    paths = json.loads(out)["paths"]
    for path in paths:
        cold = path["cold"]
        alone = len(paths) == 1
        rows[f"metrale {path['name']}"] = {
            "seconds": cold["seconds"], "bytes": cold["bytes"], "holds_weights": True,
            "cpu_seconds": cold.get("cpu_seconds", usage.ru_utime + usage.ru_stime if alone else None),
            "peak_bytes": cold.get("peak_bytes", usage.ru_maxrss * 1024 if alone else None)}
    return rows, None


def has_load_bench(program):
    try:
        return subprocess.run([program, "load-bench", "--help"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def measure(directory, arguments, python, skipped):
    """name -> the results of all rounds."""
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        sys.exit(f"{directory} holds no .safetensors file")
    files = [str(path) for path in paths]
    jobs = {name: (lambda name=name: run_peer(python, name, files)) for name in [RAW, *PEERS]}
    if has_load_bench(arguments.program):
        jobs["metrale"] = lambda: run_metrale(arguments.program, str(directory))
    else:
        skipped["metrale"] = f"{arguments.program} has no load-bench"
    results = {}
    for round_number in range(arguments.rounds):
        for name in [name for name in jobs if name not in skipped]:
            make_cold(paths)
            rows, error = jobs[name]()
            if error:
                skipped[name] = error[0]
                continue
            grown = resident_bytes(paths)
            for row_name, row in rows.items():
                results.setdefault(row_name, []).append(row | {"cache_bytes": grown})
        print(f"{directory}: round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
    return results


def median(rows, key):
    values = [row[key] for row in rows if row[key] is not None]
    return statistics.median(values) if values else None


def summarise(results):
    """[{name, gb_per_s, ...}], fastest first."""
    summary = []
    for name, rows in results.items():
        size = rows[0]["bytes"]
        rates = [row["bytes"] / row["seconds"] / 1e9 for row in rows]
        cpu, peak = median(rows, "cpu_seconds"), median(rows, "peak_bytes")
        held = size if rows[0]["holds_weights"] else 0
        summary.append({
            "name": name, "bytes": size, "rates": rates, "gb_per_s": statistics.median(rates), "seconds": median(rows, "seconds"),
            "cpu_per_gb": None if cpu is None else cpu / (size / 1e9),
            "peak_beyond": None if peak is None else peak - held, "cache_bytes": median(rows, "cache_bytes")})
    limit = next((row["gb_per_s"] for row in summary if row["name"] == RAW), None)
    for row in summary:
        row["share"] = row["gb_per_s"] / limit if limit else None
    return sorted(summary, key=lambda row: -row["gb_per_s"])


def table(title, summary, skipped):
    def cell(value, form, scale=1.0):
        return "-" if value is None else format(value * scale, form)

    lines = [title, f"{'':32}{'GB/s':>8}{'s':>9}{'of raw':>8}{'CPU s/GB':>10}{'MB beyond':>11}{'MB cached':>11}"]
    for row in summary:
        lines.append(f"{row['name']:32}{row['gb_per_s']:8.2f}{row['seconds']:9.2f}{cell(row['share'], '8.2f'):>8}"
                     f"{cell(row['cpu_per_gb'], '10.2f'):>10}{cell(row['peak_beyond'], '11.0f', 1e-6):>11}"
                     f"{cell(row['cache_bytes'], '11.0f', 1e-6):>11}")
    return "\n".join(lines + [f"{name}: skipped: {why}" for name, why in skipped.items()])


def processor():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def report(sections, arguments):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    packages = ", ".join(line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line)
    rows = []
    for title, summary in sections:
        for entry in summary:
            name = f"{title}, {entry['name']}"
            share = {} if entry["share"] is None else {"share_of_limit": entry["share"], "limit": RAW}
            rows.append({"name": name, "metric": "cold load", "value": entry["gb_per_s"], "unit": "GB/s",
                         "bytes_moved": entry["bytes"], "rounds": entry["rates"], **share})
            for key, metric, unit, scale in [("cpu_per_gb", "CPU time", "s/GB", 1), ("peak_beyond", "peak memory beyond the weights", "MB", 1e-6),
                                             ("cache_bytes", "page cache after it", "MB", 1e-6)]:
                if entry[key] is not None:
                    rows.append({"name": name, "metric": metric, "value": entry[key] * scale, "unit": unit})
    return {
        "bench": "load_peers", "commit": commit or "unknown", "date": datetime.date.today().isoformat(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": f"Python {platform.python_version()}"},
        "conditions": f"Into CPU memory, pages of the files dropped before every load and none found by mincore; medians of "
                      f"{arguments.rounds} interleaved rounds, a fresh process each; {packages}",
        "rows": rows,
    }


def synthetic(layout, arguments, python):
    directory = ROOT / "build/load-peers" / layout
    shutil.rmtree(directory, ignore_errors=True)
    make = [python, Path(__file__).with_name("make_weights.py"), layout, directory, "--bytes", arguments.bytes]
    subprocess.run(make, check=True)
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="of those that are written (default: all three)")
    parser.add_argument("--bytes", default="4G", help="of tensors that are written (default: 4G)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", default=str(ROOT / "build/bin/metrale"))
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/load_peers.json")
    arguments = parser.parse_args()
    python = prepare_environment()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    sections = []
    for source in arguments.directories or arguments.layout or list(LAYOUTS):
        made = not arguments.directories
        directory = synthetic(source, arguments, python) if made else source
        title = LAYOUTS[source] if made else str(source)
        skipped = {}
        summary = summarise(measure(directory, arguments, python, skipped))
        print(table(title, summary, skipped))
        sections.append((title, summary))
        if made:
            shutil.rmtree(directory)
    arguments.out.write_text(json.dumps(report(sections, arguments), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
