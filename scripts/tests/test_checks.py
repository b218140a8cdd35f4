# SPDX-License-Identifier: Apache-2.0
import unittest

from tree_case import TreeCase

import check_fat_binaries
import check_headers
import check_kernel_abi
import check_licence
import check_links
import check_orphan_tests
import check_settings
import make_benchmarks_doc


class CheckFatBinaries(TreeCase):
    def write_binary(self, name, size):
        with open(self.write(f"build/cuda/{name}"), "wb") as file:
            file.truncate(size)

    def test_the_sum_counts(self):
        self.write_binary("src/a.portable.fatbin", 12 << 20)
        self.write_binary("tests/b.sm90a.fatbin", 8 << 20)
        self.write_binary("tests/b.sm90a.fatbin.d", 1)
        self.assert_clean(check_fat_binaries)
        self.write_binary("bench/c.sm90a.fatbin", 1)
        self.assert_one_problem(check_fat_binaries, str((20 << 20) + 1), "a.portable.fatbin")

    def test_a_build_without_any_fails(self):
        self.assert_one_problem(check_fat_binaries, "no fat binary")


class CheckOrphanTests(TreeCase):
    def setUp(self):
        super().setUp()
        self.write("tests/CMakeLists.txt", "foreach(room kv)\nendforeach()\n")
        self.write("tests/kv/CMakeLists.txt", "metrale_add_test(kv SOURCES pool_test.cpp cache/fill_test.cpp)\n")
        self.write("tests/kv/pool_test.cpp")
        self.write("tests/kv/cache/fill_test.cpp")

    def test_named_tests_pass(self):
        self.assert_clean(check_orphan_tests)

    def test_unnamed_test_fails(self):
        self.write("tests/kv/lost_test.cpp")
        self.assert_one_problem(check_orphan_tests, "tests/kv/lost_test.cpp")

    def test_commented_out_test_fails(self):
        self.write("tests/kv/lost_test.cpp")
        self.write("tests/kv/CMakeLists.txt", "x(pool_test.cpp cache/fill_test.cpp) # lost_test.cpp\n")
        self.assert_one_problem(check_orphan_tests, "lost_test.cpp")

    def test_folder_that_nobody_adds_fails(self):
        self.write("tests/net/CMakeLists.txt", "metrale_add_test(net SOURCES tcp_test.cpp)\n")
        self.write("tests/net/tcp_test.cpp")
        self.assert_one_problem(check_orphan_tests, "'net'")


class CheckSettings(TreeCase):
    def setUp(self):
        super().setUp()
        self.write("apps/metrale/main.cpp",
                   'app.add_option("-m,--model", m);\napp.add_flag<bool>(\n  "--stats,!--no-stats", s);\n')
        self.write("src/runtime/environment.cpp", 'read("METRALE_LOG");\n')
        self.rows = ["`-m`, `--model` DIR", "`--stats`, `--no-stats`", "`METRALE_LOG`"]

    def write_rows(self, rows):
        self.write("docs/settings.md", "| name | meaning |\n|---|---|\n" + "".join(f"| {r} | x |\n" for r in rows))

    def test_matching_table_passes(self):
        self.write_rows(self.rows)
        self.assert_clean(check_settings)

    def test_each_missing_row_fails(self):
        for name, kept in (("--model", self.rows[1:]), ("METRALE_LOG", self.rows[:2])):
            with self.subTest(name):
                self.write_rows(kept)
                self.assert_one_problem(check_settings, f"{name} has no row")

    def test_each_row_without_code_fails(self):
        for name in ("--gone", "METRALE_GONE"):
            with self.subTest(name):
                self.write_rows([*self.rows, f"`{name}`"])
                self.assert_one_problem(check_settings, f"{name} is not in the code")


HEADER = """
struct AddArgs {};
static_assert(sizeof(AddArgs) == 24);
inline constexpr gpu::KernelId<AddArgs> kAdd{"vector", "add"};
"""
DEVICE_CODE = """
extern "C" __global__ void __launch_bounds__(64)
    add(const __grid_constant__ AddArgs a) {}
"""
PTX = """
.visible .entry add(
\t.param .align 8 .b8 add_param_0[24]
)
.maxntid 64
"""


class CheckKernelAbi(TreeCase):
    def setUp(self):
        super().setUp()
        self.write("include/metrale/kernels/vector.h", HEADER)
        self.write("src/kernels/vector/cpu.cpp", "void reg(Table& table) {\n  table.add<add_body>(kAdd);\n}\n")
        self.write("src/kernels/vector/cuda.cpp", "void reg(Table& table) {\n  table.add(kAdd);\n}\n")
        self.write("src/kernels/vector/cuda.cu", DEVICE_CODE)

    def test_matching_table_passes(self):
        self.assert_clean(check_kernel_abi)

    def test_kernel_without_cuda_body_fails(self):
        self.write("src/kernels/vector/cuda.cpp", "// table.add(kAdd);\n")
        self.assert_one_problem(check_kernel_abi, "kAdd has no body in the CUDA table")

    def test_cuda_registration_is_none_for_the_cpu(self):
        self.write("src/kernels/vector/cpu.cpp")
        self.assert_one_problem(check_kernel_abi, "kAdd has no body in the CPU table")

    def test_kernel_for_cuda_only_needs_no_cpu_body(self):
        self.write("include/metrale/kernels/vector.h", HEADER.replace("inline", "// cuda-only\ninline"))
        self.write("src/kernels/vector/cpu.cpp")
        self.assert_clean(check_kernel_abi)

    def test_host_body_needs_no_device_symbol(self):
        self.write("src/kernels/vector/cuda.cpp", "table.add_host(kAdd, make);\n")
        self.write("src/kernels/vector/cuda.cu")
        self.assert_clean(check_kernel_abi)

    def test_host_bodies_of_one_kernel_are_alternatives(self):
        self.write("src/kernels/vector/cuda.cpp", "table.add_host(kAdd, make);\n")
        self.write("src/kernels/vector/cublaslt.cpp", "table.add_host(kAdd, make_other);\n")
        self.assert_clean(check_kernel_abi)

    def test_device_symbol_and_host_body_of_one_kernel_fail(self):
        self.write("src/kernels/vector/cublaslt.cpp", "table.add_host(kAdd, make);\n")
        self.assert_one_problem(check_kernel_abi, "already", "CUDA")

    def test_missing_device_symbol_fails(self):
        for registration in ("table.add(kAdd);\n", "add_checked<check_add>(table, kAdd);\n"):
            with self.subTest(registration):
                self.write("src/kernels/vector/cuda.cpp", registration)
                self.write("src/kernels/vector/cuda.cu", DEVICE_CODE.replace(" add(", " sub("))
                self.assert_one_problem(check_kernel_abi, "void add(")

    def test_device_symbol_with_other_arguments_fails(self):
        for args in ("const __grid_constant__ SubArgs a", "const AddArgs a", "float* x, float* y"):
            with self.subTest(args):
                self.write("src/kernels/vector/cuda.cu", DEVICE_CODE.replace("const __grid_constant__ AddArgs a", args))
                self.assert_one_problem(check_kernel_abi, "cuda.cu:2", "AddArgs")

    def test_ptx_of_the_pinned_size_passes(self):
        self.write("ptx/vector.ptx", PTX)
        self.assertEqual(check_kernel_abi.problems(self.root, self.root / "ptx"), [])

    def test_each_slip_in_ptx_fails(self):
        slips = {
            "takes 32 bytes": PTX.replace("[24]", "[32]"),
            "is not in vector.ptx": PTX.replace("add(", "sub("),
            ".param .u64": PTX.replace(".align 8 .b8 add_param_0[24]", ".u64 add_param_0"),
        }
        for message, text in slips.items():
            with self.subTest(message):
                self.write("ptx/vector.ptx", text)
                found = check_kernel_abi.problems(self.root, self.root / "ptx")
                self.assertEqual(len(found), 1, found)
                self.assertIn(message, found[0])

    def test_missing_ptx_fails(self):
        found = check_kernel_abi.problems(self.root, self.root / "ptx")
        self.assertEqual(len(found), 1, found)
        self.assertIn("vector.ptx", found[0])

    def test_a_family_that_only_some_builds_have_needs_no_ptx(self):
        self.write("include/metrale/kernels/vector.h", HEADER.replace("inline", "// cuda-only\ninline"))
        self.write("src/kernels/vector/cpu.cpp")
        self.assertEqual(check_kernel_abi.problems(self.root, self.root / "ptx"), [])

    def test_kernel_without_body_fails(self):
        self.write("src/kernels/vector/cpu.cpp", "// table.add<add_body>(kAdd);\n")
        self.assert_one_problem(check_kernel_abi, "kAdd has no body in the CPU table")

    def test_body_without_kernel_fails(self):
        self.write("src/kernels/other/cpu.cpp", "table.add<&detail::body>(kernels::kSub);\n")
        self.assert_one_problem(check_kernel_abi, "kSub")

    def test_second_registration_fails(self):
        self.write("src/kernels/other/cpu.cpp", "table.add<body>(kAdd);\n")
        self.assert_one_problem(check_kernel_abi, "already")

    def test_unpinned_size_fails(self):
        self.write("include/metrale/kernels/vector.h", HEADER.replace("static_assert", "// static_assert"))
        self.assert_one_problem(check_kernel_abi, "sizeof(AddArgs)")

    def test_name_taken_twice_fails(self):
        again = HEADER + 'inline constexpr gpu::KernelId<AddArgs> kSum{"vector", "add"};\n'
        self.write("include/metrale/kernels/vector.h", again)
        self.write("src/kernels/vector/cpu.cpp", "table.add<a>(kAdd); table.add<b>(kSum);\n")
        self.write("src/kernels/vector/cuda.cpp", "table.add(kAdd); table.add(kSum);\n")
        self.assert_one_problem(check_kernel_abi, "kSum has the name of kAdd")

    def test_family_other_than_the_header_fails(self):
        self.write("include/metrale/kernels/vector.h", HEADER.replace('"vector"', '"vec"'))
        self.assert_one_problem(check_kernel_abi, "family 'vec'")


class CheckLicence(TreeCase):
    def test_marked_files_pass(self):
        self.write("src/base/a.cpp", "// SPDX-License-Identifier: Apache-2.0\n")
        self.write("scripts/a.sh", "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n")
        self.assert_clean(check_licence)

    def test_unmarked_file_fails(self):
        for path in ("include/metrale/base/a.h", "scripts/a.py", "dev"):
            with self.subTest(path):
                self.write(path, "x\n")
                self.assert_one_problem(check_licence, path)
                (self.root / path).unlink()


class CheckHeaders(TreeCase):
    GOOD = "// SPDX-License-Identifier: Apache-2.0\n// What it is.\n#pragma once\n"

    def test_tidy_header_passes(self):
        self.write("include/metrale/kv/a.h", self.GOOD + "// #define X\nusing namespace_id = int;\n")
        self.assert_clean(check_headers)

    def test_each_slip_fails(self):
        slips = {
            "say here": self.GOOD.replace("// What it is.\n", ""),
            "#pragma once": self.GOOD.replace("#pragma once", ""),
            "macro MAX": self.GOOD + "#define MAX(a, b) a\n",
            "using-directive": self.GOOD + "using namespace std;\n",
        }
        for message, text in slips.items():
            with self.subTest(message):
                self.write("include/metrale/kv/a.h", text)
                self.assert_one_problem(check_headers, message)


class CheckLinks(TreeCase):
    def test_broken_link_fails(self):
        self.write("docs/there.md", "# Part `two`, again\n")
        self.write("README.md", "[a](docs/there.md#part-two-again) [b](https://example.org) [c](docs/gone.md)\n")
        self.assert_one_problem(check_links, "README.md", "docs/gone.md")

    def test_link_to_a_missing_heading_fails(self):
        self.write("README.md", "# Start\n[a](#start) [b](#end)\n")
        self.assert_one_problem(check_links, "README.md", "#end")


class MakeBenchmarksDoc(TreeCase):
    REPORT = """{"bench": "linear", "commit": "abc", "date": "2030-01-02", "conditions": "warm",
      "machine": {"cpu": "Some CPU", "cores": 2, "compiler": "g++ 12"},
      "rows": [{"name": "decode", "metric": "rate", "value": 12.5, "unit": "GB/s", "share_of_limit": 0.75,
                "limit": "read rate"}]}"""

    def test_page_has_machine_and_figures(self):
        self.write("bench/results/linear.json", self.REPORT)
        page = make_benchmarks_doc.page(self.root)
        for part in ("## linear", "Some CPU", "abc", "| decode | rate | 12.5 GB/s |", "75 % of read rate"):
            self.assertIn(part, page)

    def test_report_without_commit_is_refused(self):
        self.write("bench/results/linear.json", self.REPORT.replace('"commit": "abc",', ""))
        self.assert_one_problem(make_benchmarks_doc, "linear.json", "commit")

    def test_stale_page_fails(self):
        self.write("bench/results/linear.json", self.REPORT)
        self.write("docs/benchmarks.md", make_benchmarks_doc.page(self.root))
        self.assert_clean(make_benchmarks_doc)
        self.write("bench/results/linear.json", self.REPORT.replace("12.5", "13.5"))
        self.assert_one_problem(make_benchmarks_doc, "docs/benchmarks.md")


if __name__ == "__main__":
    unittest.main()
