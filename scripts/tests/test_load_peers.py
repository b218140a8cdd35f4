# SPDX-License-Identifier: Apache-2.0
"""What load_peers.py makes of measurements; the measuring itself needs the loaders."""

import argparse
import sys
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "bench")]

import load_peers  # noqa: E402
import make_benchmarks_doc  # noqa: E402


def row(seconds, **more):
    return {"seconds": seconds, "bytes": 2_000_000_000, "holds_weights": True, "cpu_seconds": 4.0, "peak_bytes": 2_500_000_000,
            "cache_bytes": 0} | more


class LoadPeers(unittest.TestCase):
    def setUp(self):
        self.summary = load_peers.summarise({
            "slow": [row(4.0), row(8.0), row(2.0)],
            load_peers.RAW: [row(1.0, holds_weights=False), row(4.0, holds_weights=False), row(1.0, holds_weights=False)],
            "metrale": [row(2.0, cpu_seconds=None, peak_bytes=None), row(2.0), row(2.0)],
        }, "cpu")
        self.arguments = argparse.Namespace(rounds=3, device="cpu", warm=False, python=sys.executable, commit=None, out=Path("gpu_load_disk.json"))

    def test_figures_are_medians_and_ratios_are_of_rounds(self):
        self.assertEqual([entry["name"] for entry in self.summary], [load_peers.RAW, "metrale", "slow"])
        slow = self.summary[2]
        self.assertAlmostEqual(slow["gb_per_s"], 0.5)
        self.assertAlmostEqual(slow["share"], 0.5)  # of 1/4, 4/8, 1/2
        self.assertAlmostEqual(slow["metrale_ratio"], 0.5)  # of 2/4, 2/8, 2/2
        self.assertAlmostEqual(slow["cpu_per_gb"], 2.0)
        self.assertEqual(slow["peak_beyond"], 500_000_000)

    def test_what_was_not_measured_is_left_out(self):
        self.assertIn("metrale: skipped: why", load_peers.table("title", self.summary, {"metrale": "why"}))
        summary = load_peers.summarise({"alone": [row(2.0, cpu_seconds=None, peak_bytes=None)]}, "cpu")
        report = load_peers.report([("one file", summary, [])], self.arguments)
        self.assertEqual([entry["metric"] for entry in report["rows"]], ["cold load", "page cache after it"])
        self.assertNotIn("share_of_limit", report["rows"][0])

    def test_report_has_the_form_of_the_others(self):
        report = load_peers.report([("one file", self.summary, [])], self.arguments)
        self.assertEqual(list(make_benchmarks_doc.shape_problems(report, make_benchmarks_doc.REPORT_KEYS, "")), [])
        for entry in report["rows"]:
            self.assertEqual(list(make_benchmarks_doc.shape_problems(entry, make_benchmarks_doc.ROW_KEYS, "")), [])
        self.assertIn("one file, slow", make_benchmarks_doc.section(report))
        self.assertEqual(report["bench"], "gpu_load_disk")

    def test_program_without_the_command_is_found(self):
        self.assertFalse(load_peers.has_load_bench("/nonexistent/metrale"))
        self.assertFalse(load_peers.has_load_bench("/bin/false"))


if __name__ == "__main__":
    unittest.main()
