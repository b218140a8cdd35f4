#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures loading a model directory, cold: safetensors, fastsafetensors, Run:ai's streamer and `metrale load-bench`.

Usage: load_peers.py [DIR...] [--layout one|many|experts] [--bytes 4G] [--rounds 7] [--device cpu] [--program build/bin/metrale]
                     [--warm] [--python PROGRAM] [--scratch DIR] [--out FILE]

Without DIR the layouts of make_weights.py are written below build/load-peers and removed again. In every round each loader runs
once in a fresh process, after the files' pages were dropped from the page cache and mincore found none of them there; the
figures are medians over the rounds, and of the ratios of each round. Nothing else should run meanwhile. Python packages go into
build/load-peers-venv, unless --python names an interpreter that has them; with --device cuda:0 the tensors go into its memory, and
InstantTensor and fastsafetensors by cuFile are among the loaders. With --warm the files stay where they are, as on a memory
file system, and there is no raw reader. Then, cold, `metrale load-bench --raw` measures itself beside the raw
reader: with tensors where the engine has them and as in their files, into memory that is there.
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
GPU_PEERS = ["fastsafetensors gds", "instanttensor"]
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


class HeldMemory:
    """Memory that is given back to the system just before a load, so that what the load allocates is there.

    A virtual machine's host takes back what its guest does not use, and gives it again at a fraction of a GB/s: loads would
    measure that.
    """

    def __init__(self, size):
        self.size = size
        self.memory = None

    def acquire(self):
        if self.memory is None and self.size != 0:
            self.memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.memory.madvise(mmap.MADV_HUGEPAGE)
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)), 1, self.size)

    def release(self):
        if self.memory is not None:
            self.memory.close()
            self.memory = None


def run_child(command, held, waits):
    """(output or None, error text); one that waits says when it is ready, and is told to start."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if waits:
            process.stdout.readline()
        held.release()
        # Messages are short: a pipe holds them until the results have come.
        out, error = process.communicate("start\n" if waits else "")
    return (out if process.returncode == 0 else None), error


def run_peer(python, name, device, files, held):
    out, error = run_child([python, CHILD, name, device, *files], held, True)
    if out is None:
        return {}, error.strip().splitlines()[-1:] or ["failed"]
    return {name: json.loads(out.splitlines()[-1])}, None


def run_metrale(program, directory, device, held):
    """As for the peers, headers are read and memory is allocated within the time."""
    options = ["--paths", "auto", "--runs", "1", "--cold-only", "--allocate", "--device", device, "--json"]
    out, error = run_child([program, "load-bench", directory, *options], held, False)
    if out is None:
        return {}, error.strip().splitlines()[-1:] or ["failed"]
    report = json.loads(out)
    cold = report["paths"][0]["cold"]
    row = {"seconds": cold["seconds"], "bytes": cold["bytes"], "holds_weights": False, "cpu_seconds": cold["cpu_seconds"],
           "peak_bytes": cold["peak_bytes_beyond_weights"], "staging_bytes": cold["staging_bytes"]}
    return {"metrale": row}, None


def load_bench_rows(title, directory, arguments):
    """Of the loader beside its own raw reader, run by run."""
    rows = []
    for layout, options in (("in the engine's places", []), ("as in their files", ["--file-layout"])):
        command = [arguments.program, "load-bench", directory, "--raw", "--paths", "auto", "--cold-only", "--runs", str(arguments.rounds),
                   "--device", arguments.device, "--json", *options]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for path in report["paths"]:
            cold = path["cold"]
            name = f"{title}, load-bench {path['name']}, tensors {layout}"
            row = {"name": name, "metric": "cold load", "value": cold["gb_per_s"], "unit": "GB/s", "bytes_moved": cold["bytes"],
                   "rounds": [cold["bytes"] / seconds / 1e9 for seconds in cold["all_seconds"]]}
            if path["name"] == "raw":
                rows.append(row)
                continue
            rows.append(row | {"share_of_limit": cold["share_of_raw"], "limit": "its raw reader, run by run"})
            rows.append({"name": name, "metric": "CPU time", "value": cold["cpu_seconds_per_gb"], "unit": "s/GB"})
            rows.append({"name": name, "metric": "peak memory beyond the weights", "value": cold["peak_bytes_beyond_weights"] / 1e6, "unit": "MB"})
            rows.append({"name": name, "metric": "page cache growth", "value": 100 * cold["page_cache_growth"], "unit": "%"})
            print(f"{name}: {row['value']:.2f} GB/s, {100 * cold['share_of_raw']:.1f} % of raw, {rows[-3]['value']:.3f} CPU s/GB, "
                  f"{rows[-2]['value']:.0f} MB beyond the weights, page cache {rows[-1]['value']:+.2f} %")
    return rows


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
    device = arguments.device
    held = HeldMemory(sum(path.stat().st_size for path in paths) * 5 // 4)
    names = [*([] if arguments.warm else [RAW]), *PEERS, *(GPU_PEERS if device != "cpu" else [])]
    jobs = {name: (lambda name=name: run_peer(python, name, device, files, held)) for name in names if name not in arguments.skip}
    if has_load_bench(arguments.program):
        jobs["metrale"] = lambda: run_metrale(arguments.program, str(directory), device, held)
    else:
        skipped["metrale"] = f"{arguments.program} has no load-bench"
    results = {}
    for round_number in range(arguments.rounds):
        names = [name for name in jobs if name not in skipped]
        for name in names[round_number % len(names):] + names[:round_number % len(names)]:  # nobody is always first
            held.acquire()
            if not arguments.warm:
                make_cold(paths)
            rows, error = jobs[name]()
            if error:
                skipped[name] = error[0]
                continue
            held.acquire()
            grown = resident_bytes(paths)
            for row_name, row in rows.items():
                results.setdefault(row_name, []).append(row | {"cache_bytes": grown})
        print(f"{directory}: round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
    return results


def median(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def ratios_to(rates, base):
    """Of the rounds that both have, so that a slow disk hits both."""
    return [mine / other for mine, other in zip(rates, base)]


def summarise(results, device):
    """[{name, gb_per_s, ...}], fastest first."""
    summary = []
    for name, rows in results.items():
        size = rows[0]["bytes"]
        rates = [row["bytes"] / row["seconds"] / 1e9 for row in rows]
        cpu, peak = median(rows, "cpu_seconds"), median(rows, "peak_bytes")
        held = size if rows[0]["holds_weights"] and device == "cpu" else 0
        summary.append({
            "name": name, "bytes": size, "rates": rates, "gb_per_s": statistics.median(rates), "seconds": median(rows, "seconds"),
            "cpu_per_gb": None if cpu is None else cpu / (size / 1e9),
            "peak_beyond": None if peak is None else peak - held, "cache_bytes": median(rows, "cache_bytes"), "staging": median(rows, "staging_bytes")})
    rates_of = {row["name"]: row["rates"] for row in summary}
    for row in summary:
        for key, base in (("share", RAW), ("metrale_ratio", "metrale")):
            row[key] = statistics.median(ratios_to(row["rates"], rates_of[base])) if base in rates_of else None
    return sorted(summary, key=lambda row: -row["gb_per_s"])


def table(title, summary, skipped):
    def cell(value, form, scale=1.0):
        return "-" if value is None else format(value * scale, form)

    lines = [title, f"{'':32}{'GB/s':>8}{'s':>9}{'of raw':>8}{'of metrale':>12}{'CPU s/GB':>10}{'MB beyond':>11}{'MB cached':>11}{'MB staging':>12}"]
    for row in summary:
        lines.append(f"{row['name']:32}{row['gb_per_s']:8.2f}{row['seconds']:9.2f}{cell(row['share'], '8.2f'):>8}"
                     f"{cell(row['metrale_ratio'], '12.2f'):>12}"
                     f"{cell(row['cpu_per_gb'], '10.2f'):>10}{cell(row['peak_beyond'], '11.0f', 1e-6):>11}"
                     f"{cell(row['cache_bytes'], '11.0f', 1e-6):>11}{cell(row['staging'], '12.0f', 1e-6):>12}")
    return "\n".join(lines + [f"{name}: skipped: {why}" for name, why in skipped.items()])


def processor():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def versions(python):
    """Of the packages that the interpreter has, of those that are measured."""
    names = [line.split("==")[0] for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line] + ["instanttensor"]
    code = ("import sys\nfrom importlib.metadata import PackageNotFoundError, version\nfor name in sys.argv[1:]:\n"
            "    try:\n        print(name + ' ' + version(name))\n    except PackageNotFoundError:\n        pass")
    try:
        return ", ".join(subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=False).stdout.split("\n")[:-1])
    except OSError:
        return "versions unknown"


def card():
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def report(sections, arguments):
    """In the form of bench/support/report.h."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    commit = arguments.commit or subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    packages = versions(arguments.python or VENV / "bin/python")
    place = "the host" if arguments.device == "cpu" else card()
    before = ("files in memory" if arguments.warm
              else "pages of the files dropped before every load and none found by mincore")
    rows = []
    for title, summary, own in sections:
        for entry in summary:
            name = f"{title}, {entry['name']}"
            share = {} if entry["share"] is None else {"share_of_limit": entry["share"], "limit": RAW + ", round by round"}
            rows.append({"name": name, "metric": "load" if arguments.warm else "cold load", "value": entry["gb_per_s"], "unit": "GB/s",
                         "bytes_moved": entry["bytes"], "rounds": entry["rates"], **share})
            for key, metric, unit, scale in [("cpu_per_gb", "CPU time", "s/GB", 1), ("peak_beyond", "peak memory beyond the weights", "MB", 1e-6),
                                             ("cache_bytes", "page cache after it", "MB", 1e-6), ("staging", "memory that bytes pass through", "MB", 1e-6)]:
                if entry[key] is not None:
                    rows.append({"name": name, "metric": metric, "value": entry[key] * scale, "unit": unit})
        rows += own
    return {
        "bench": arguments.out.stem, "commit": commit or "unknown", "date": datetime.date.today().isoformat(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "compiler": f"Python {platform.python_version()}"},
        "conditions": f"Into memory of {place}, allocated within the time (load-bench: before it), which the system had a moment before; {before}; "
                      f"medians of {arguments.rounds} interleaved rounds, a fresh process each; {packages}",
        "rows": rows,
    }


def synthetic(layout, arguments, python):
    directory = arguments.scratch / layout
    shutil.rmtree(directory, ignore_errors=True)
    make = [python, Path(__file__).with_name("make_weights.py"), layout, directory, "--bytes", arguments.bytes]
    subprocess.run(make, check=True)
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="of those that are written (default: all three)")
    parser.add_argument("--bytes", default="4G", help="of tensors that are written (default: 4G)")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME", help="a loader that is not measured")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", default=str(ROOT / "build/bin/metrale"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--warm", action="store_true", help="the files stay in memory")
    parser.add_argument("--python", help="an interpreter that has the peers' packages (default: one of build/load-peers-venv)")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/load-peers", help="where layouts are written")
    parser.add_argument("--commit", help="of the program, where git cannot tell")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/load_peers.json")
    arguments = parser.parse_args()
    python = arguments.python or prepare_environment()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    sections = []
    for source in arguments.directories or arguments.layout or list(LAYOUTS):
        made = not arguments.directories
        directory = synthetic(source, arguments, python) if made else source
        title = LAYOUTS[source] if made else str(source)
        skipped = {}
        summary = summarise(measure(directory, arguments, python, skipped), arguments.device)
        print(table(title, summary, skipped), flush=True)
        own = [] if "metrale" in skipped or arguments.warm else load_bench_rows(title, str(directory), arguments)
        sections.append((title, summary, own))
        arguments.out.write_text(json.dumps(report(sections, arguments), indent=2) + "\n", encoding="utf-8")
        if made:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
