# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import io
import json
import unittest
from unittest import mock

from tree_case import TreeCase

import gpu_check

ISOLATED = "Backends/GpuBackendConformance.FailureSticksToItsStream/Cuda"


class GpuCheck(TreeCase):
    """A bundle whose programs write the report that a test wants."""

    def setUp(self):
        super().setUp()
        self.program("metrale", "echo 'cpu      some'; echo 'cuda:0   a GPU'")
        self.results("backend", {"A.Passes": "COMPLETED"})

    def program(self, name, script):
        path = self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def results(self, program, cases):
        listed = []
        for name, result in cases.items():
            suite, test = name.split(".")
            listed.append({"classname": suite, "name": test, "result": result})
        report = self.write(f"{program}.json", json.dumps({"testsuites": [{"testsuite": listed}]}))
        self.program(f"test_cuda_{program}",
                     f'for a; do case $a in --gtest_output=json:*) cp {report} "${{a#--gtest_output=json:}}";; esac; done')

    def failures(self, program, path="best", cublaslt="libcublasLt.so", allow_missing=False):
        arguments = argparse.Namespace(log=str(self.root / "log"), cublaslt=cublaslt, allow_missing=allow_missing,
                                       device="cuda:0", model=None)
        with mock.patch.object(gpu_check, "BUNDLE", self.root), \
                mock.patch.object(gpu_check, "find_library", return_value=None), \
                contextlib.redirect_stdout(io.StringIO()):
            check = gpu_check.Check(arguments)
            check.gtest(program, program, path)
        check.log.close()
        return check.failures

    def test_passed_tests_are_no_failure(self):
        self.assertEqual(self.failures("backend"), [])

    def test_a_skip_that_is_not_expected_is_a_failure(self):
        self.results("backend", {"A.Passes": "COMPLETED", "A.Skips": "SKIPPED"})
        self.assertEqual(self.failures("backend"), ["backend: A.Skips was skipped"])
        self.assertEqual(self.failures("backend", allow_missing=True), [])

    def test_what_no_such_machine_runs_may_be_skipped(self):
        self.results("backend", {"A.Passes": "COMPLETED", ISOLATED: "SKIPPED", "CudaTwoDevices.Work": "SKIPPED"})
        self.assertEqual(self.failures("backend"), [])

    def test_two_devices_leave_no_reason_to_skip(self):
        self.program("metrale", "echo 'cuda:0   a GPU'; echo 'cuda:1   a GPU'")
        self.results("backend", {"A.Passes": "COMPLETED", "CudaTwoDevices.Work": "SKIPPED"})
        self.assertEqual(self.failures("backend"), ["backend: CudaTwoDevices.Work was skipped"])

    def test_a_skip_is_expected_of_its_program_and_path_only(self):
        cutlass = "LinearLibraryFp8.CutlassAgreesWithTheCpu"
        for program in ("libraries", "kernels"):
            self.results(program, {"A.Passes": "COMPLETED", cutlass: "SKIPPED"})
        self.assertEqual(self.failures("libraries", path="portable"), [])
        self.assertEqual(len(self.failures("libraries", path="best")), 1)
        self.assertEqual(len(self.failures("kernels", path="portable")), 1)

    def test_absent_cublaslt_is_a_failure(self):
        self.assertEqual(self.failures("backend", cublaslt=None), ["cuBLASLt is not there"])
        self.assertEqual(self.failures("backend", cublaslt=None, allow_missing=True), [])

    def test_absent_program_is_a_failure(self):
        self.assertEqual(len(self.failures("engine")), 1)
        self.assertEqual(self.failures("engine", allow_missing=True), [])


if __name__ == "__main__":
    unittest.main()
