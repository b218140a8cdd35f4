#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA test bundle on a GPU machine and writes one JSON file (a report of bench/results).

In this order: the backend conformance suite, kernel parity against the CPU bodies, the engine on the device, on both
code paths (the portable one compiled by the driver); the loss of a context in a process of its own; compute-sanitizer's
memcheck and racecheck on a small suite; the first benchmark with shares of the machine's measured limits.

  tar -xJf metrale-gpu.tar.xz && python3 metrale-gpu/gpu_check.py --out gpu_check.json [--model DIR]

Exit status 0: everything ran and passed. The bundle needs glibc, the NVIDIA driver and Python. Without --allow-missing
the absence of cuBLASLt, compute-sanitizer or a program is a failure, and so is a skipped test, but for those that no
such machine can run (EXPECTED_SKIPS).
"""

import argparse
import ctypes
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent
if not (BUNDLE / "bin").is_dir():  # in the source tree
    BUNDLE = BUNDLE.parent / "build/gpu/metrale-gpu"

# Programs of each path, in order of trust: a later one rests on what an earlier one shows.
PROGRAMS = ("backend", "kernels", "attention", "libraries", "engine")
# (program, path, pattern of the test's name, most devices); None: any. What the backend does not promise; kernels
# without portable code; tests of two devices where there is one.
EXPECTED_SKIPS = (
    ("backend", None, r"Backends/GpuBackendConformance\.(FailureSticksToItsStream|WorkAfterAFailureIsSkipped|"
     r"OtherStreamsGoOnAfterAFailure|FailureReachesWaitersAndTheirWaiters|EventRecordedBeforeAFailureIsFine|"
     r"CopyToTheHostOnAFailedStreamThrows|FailedStreamIsDestroyedWithoutAComplaint)/\w+", None),
    ("backend", None, r"Backends/GpuGraphConformance\.FailureInAGraphNamesItsNodeAndSticks/\w+", None),
    ("backend", None, r"CudaTwoDevices\.\w+", 1),
    ("libraries", "portable", r"LinearLibraryFp8\.CutlassAgreesWithTheCpu", None),
)
# (program, suite, path) of each tool, small enough to run some hundred times slower. The portable path has other
# machine code, so that memcheck sees its kernels too.
MEMCHECK_KERNELS = "*-*TwoGibibytes*:CudaLinear.AgreesWithTheModelForEveryMix*:*RowTheSameBits*"
MEMCHECK_ATTENTION = "Kernels/CudaAttention.*-*AcrossSplits*:*GroupSize*:*31Bits*:*RandomBatches*:*OverSplits*"
SANITIZER_SUITES = {
    "memcheck": (
        ("backend", "Backends/GpuGraphConformance*/Cuda:CudaFaults*:CudaModules*", "best"),
        ("kernels", MEMCHECK_KERNELS, "best"),
        ("kernels", MEMCHECK_KERNELS, "portable"),
        ("attention", MEMCHECK_ATTENTION, "best"),
        ("attention", MEMCHECK_ATTENTION, "portable"),
        ("libraries", "FlashInfer.*:LinearLibraryFp8.*:*LinearLibrary.*ShapesThatNoLibraryLikes*", "best"),
        ("engine", "EngineTest.EndsAt*:EngineTest.DecodeSteps*:EngineLife.AStep*", "best"),
    ),
    "racecheck": (
        ("kernels", "NormParity*:CudaArgmax*:CudaLinear.*OddWidthsStridesAndSpare*:CudaSiluMul*:CudaRope*-*TwoGib*",
         "best"),
        ("attention", "Kernels/CudaAttention.*EveryTypeAndPair*:*BlockBorders*:*ThanABlockHasThreads*:*StrideOf*",
         "best"),
    ),
}


def output_of(command):
    """What a command prints; nothing where it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def find_library(name):
    """The path of a library of the toolkit: of the loader, a toolkit, or a Python package."""
    patterns = [f"/usr/local/cuda*/lib64/{name}", f"/usr/local/cuda*/targets/x86_64-linux/lib/{name}",
                *(f"{folder}/nvidia/*/lib/{name}" for folder in sys.path if folder)]
    for pattern in patterns:
        found = sorted(glob.glob(pattern))
        if found:
            return found[-1]
    cache = output_of(["ldconfig", "-p"]) or output_of(["/sbin/ldconfig", "-p"])
    for line in cache.splitlines():
        if line.strip().startswith(name + " "):
            return line.rsplit("=>", 1)[1].strip()
    return None


def cublaslt_version(library):
    """What cublasLtGetVersion gives: 130002 for 13.0.2; the algorithms that it offers depend on it."""
    try:
        get = ctypes.CDLL(library).cublasLtGetVersion
    except (OSError, AttributeError):
        return "of unknown version"
    get.restype = ctypes.c_size_t
    return str(get())


def query_gpu():
    fields = "name,driver_version,memory.total,power.limit"
    lines = output_of(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).splitlines()
    return dict(zip(fields.split(","), map(str.strip, lines[0].split(",")))) if lines else {}


def is_expected_skip(program, path, name, devices):
    return any(program == of and on in (None, path) and re.fullmatch(pattern, name)
               and (most is None or devices <= most) for of, on, pattern, most in EXPECTED_SKIPS)


class Check:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []
        self.failures = []
        self.skipped = []
        self.log = open(arguments.log, "w+", encoding="utf-8", errors="replace")
        self.cublaslt = arguments.cublaslt or find_library("libcublasLt.so.13") or find_library("libcublasLt.so.12")
        if not self.cublaslt and not arguments.allow_missing:
            self.fail("cuBLASLt is not there")
        listed = output_of([BUNDLE / "bin/metrale", "devices"])
        self.devices = sum(line.startswith("cuda:") for line in listed.splitlines())

    def say(self, text):
        print(text, flush=True)

    def fail(self, what):
        self.failures.append(what)
        self.say(f"FAILED: {what}")

    def program_arguments(self, path):
        found = [f"--device={self.arguments.device}", f"--path={path}", f"--golden={BUNDLE}/golden"]
        if self.cublaslt:
            found.append(f"--cublaslt={self.cublaslt}")
        if self.arguments.model:
            found.append(f"--model={self.arguments.model}")
        return found

    def run(self, command, timeout):
        """(exit status, output, seconds); 124 where it ran out of time. The log has the output as it comes."""
        start = time.monotonic()
        self.log.write(f"$ {' '.join(map(str, command))}\n")
        self.log.flush()
        begin = self.log.tell()
        try:
            status = subprocess.run(command, stdout=self.log, stderr=subprocess.STDOUT, timeout=timeout,
                                    check=False).returncode
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.monotonic() - start
        self.log.seek(begin)
        output = self.log.read()
        self.log.seek(0, os.SEEK_END)
        self.log.write(f"exit status {status}, {seconds:.1f} s\n\n")
        self.log.flush()
        return status, output, seconds

    def gtest(self, program, label, path="best", suite="*", wrapper=(), timeout=240):
        """Runs one program of tests and adds a row with what passed."""
        binary = BUNDLE / "bin" / f"test_cuda_{program}"
        if not binary.exists():
            if not self.arguments.allow_missing:
                self.fail(f"{label}: the bundle has no {binary.name}")
            return
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            status, output, seconds = self.run(
                [*wrapper, binary, *self.program_arguments(path), f"--gtest_filter={suite}",
                 f"--gtest_output=json:{report}"], timeout)
            results = json.loads(report.read_text()) if report.exists() else None
        if results is None:
            self.fail(f"{label}: exit status {status} and no report\n" + output[-1500:])
            return
        cases = [case for suite_ in results["testsuites"] for case in suite_["testsuite"]]
        failed = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
        skipped = [f"{case['classname']}.{case['name']}" for case in cases if case.get("result") == "SKIPPED"]
        self.skipped += [f"{label}: {name}" for name in skipped]
        unexpected = [name for name in skipped if not is_expected_skip(program, path, name, self.devices)]
        passed = len(cases) - len(failed) - len(skipped)
        self.say(f"{label}: {passed} passed, {len(skipped)} skipped, {len(failed)} failed, {seconds:.0f} s")
        self.rows.append({"name": label, "metric": "tests passed", "value": passed, "unit": f"of {len(cases)}"})
        for case in cases:
            self.record_parity(label, case)
        for name in failed:
            self.fail(f"{label}: {name}")
        for name in unexpected if not self.arguments.allow_missing else ():
            self.fail(f"{label}: {name} was skipped")
        if status != 0 and not failed:
            self.fail(f"{label}: exit status {status}\n" + output[-1500:])
        if passed == 0:
            self.fail(f"{label}: nothing ran")

    def record_parity(self, label, case):
        """What a comparison of the demo model's logits recorded."""
        name = f"{label}: {case['classname']}.{case['name']}"
        for prefix, of in (("", ""), ("same_type_", ", CPU in the same type")):
            if "SmolLm2" not in case["classname"] or prefix + "clear_rows" not in case:
                continue
            same, clear = case[prefix + "same_top"], case[prefix + "clear_rows"]
            self.rows.append({"name": name, "metric": "mean KL" + of, "value": float(case[prefix + "mean_kl"]), "unit": ""})
            self.rows.append({"name": name, "metric": "same top token, gap above 0.1" + of, "value": int(same),
                              "unit": f"of {clear}"})

    def tests(self):
        for path in self.arguments.path:
            for program in PROGRAMS:
                if self.arguments.only and program not in self.arguments.only:
                    continue
                self.gtest(program, f"{program}, {path} path", path)
        if not self.arguments.only or "io" in self.arguments.only:
            self.cufile()
        if not self.arguments.only or "context_loss" in self.arguments.only:
            self.gtest("context_loss", "loss of the context")

    def cufile(self):
        if Path("/run/udev/control").exists():
            self.gtest("io", "cuFile")
            return
        # cuFileHandleRegister refuses every file then.
        self.skipped.append("cuFile: it asks udev about the disk, and there is none here")
        self.say(self.skipped[-1])

    def sanitizers(self):
        tool = self.arguments.sanitizer or shutil.which("compute-sanitizer") or next(
            iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))), None)
        if tool is None:
            if not self.arguments.allow_missing:
                self.fail("compute-sanitizer is not there")
            return
        for check, suites in SANITIZER_SUITES.items():
            for program, suite, path in suites:
                wrapper = [tool, "--tool", check, "--error-exitcode", "99", "--report-api-errors", "no"]
                self.gtest(program, f"{check}: {program}, {path} path", path, suite, wrapper, timeout=150)

    def benchmark(self):
        binary = BUNDLE / "bin/cuda_bench"
        if not binary.exists():
            if not self.arguments.allow_missing:
                self.fail("the bundle has no cuda_bench")
            return None
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cuda.json"
            command = [binary, "--device", self.arguments.device, "--out", out, "--commit", self.commit()]
            if self.cublaslt:
                command += ["--cublaslt", self.cublaslt]
            for model in self.arguments.bench_model:
                command += ["--model", model]
            status, output, seconds = self.run(command, 590)
            self.say(f"benchmark: exit status {status}, {seconds:.0f} s")
            if status != 0 or not out.exists():
                self.fail("benchmark\n" + output[-1500:])
                return None
            return json.loads(out.read_text())

    def commit(self):
        path = BUNDLE / "commit"
        return path.read_text().strip() if path.exists() else "unknown"

    def report(self, benchmark):
        gpu = query_gpu()
        cublaslt = f"{Path(self.cublaslt).name} {cublaslt_version(self.cublaslt)}" if self.cublaslt else "absent"
        machine = {"cpu": "unknown", "cores": os.cpu_count(), "compiler": "g++ 12, nvcc 13.0"}
        if benchmark:
            machine = benchmark["machine"]
        machine["gpu"] = gpu
        return {
            "bench": "gpu_check",
            "commit": self.commit(),
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "conditions": f"{gpu.get('name', 'no GPU')}, driver {gpu.get('driver_version', 'unknown')}; "
                          f"cuBLASLt {cublaslt}. "
                          + (benchmark["conditions"] if benchmark else ""),
            "failures": self.failures,
            "skipped": self.skipped,
            "rows": self.rows + (benchmark["rows"] if benchmark else []),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--log", type=Path, default=Path("gpu_check.log"), help="everything that the programs print")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--path", nargs="+", choices=("best", "portable"), default=["best", "portable"])
    parser.add_argument("--model", help="the demo model's directory, for the tests that want it")
    parser.add_argument("--bench-model", action="append", default=[], help="a model directory to measure (repeatable)")
    parser.add_argument("--cublaslt", help="the library; found where it is not given")
    parser.add_argument("--sanitizer", help="compute-sanitizer; found where it is not given")
    parser.add_argument("--only", nargs="+", help="test programs to run")
    parser.add_argument("--skip", nargs="+", choices=("tests", "sanitizers", "benchmark"), default=[])
    parser.add_argument("--allow-missing", action="store_true", help="absent tools, programs and what tests skip for want of are no failure")
    check = Check(parser.parse_args())
    skip = check.arguments.skip
    if "tests" not in skip:
        check.tests()
    if "sanitizers" not in skip:
        check.sanitizers()
    benchmark = check.benchmark() if "benchmark" not in skip else None
    check.arguments.out.write_text(json.dumps(check.report(benchmark), indent=2) + "\n", encoding="utf-8")
    print(f"gpu_check: {len(check.failures)} failure(s); {check.arguments.out}")
    sys.exit(1 if check.failures else 0)


if __name__ == "__main__":
    main()
