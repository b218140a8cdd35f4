# SPDX-License-Identifier: Apache-2.0
import unittest

from tree_case import TreeCase

import check_layers


class CheckLayers(TreeCase):
    def test_arrow_down_passes(self):
        self.write("src/kv/pool.h", "int x;")
        self.write("src/kv/pool.cpp", '#include <vector>\n#include <metrale/gpu/backend.h>\n#include "kv/pool.h"\n')
        self.assert_clean(check_layers)

    def test_arrow_up_fails(self):
        self.write("src/gpu/a.cpp", "\n#include <metrale/kv/cache.h>\n")
        self.assert_one_problem(check_layers, "src/gpu/a.cpp:2", "gpu may not use kv")

    def test_sibling_fails(self):
        self.write("include/metrale/engine/a.h", "#include <metrale/runtime/options.h>\n")
        self.assert_one_problem(check_layers, "engine may not use runtime")

    def test_private_header_of_another_module_fails(self):
        self.write("src/gpu/secret.h")
        self.write("src/kv/a.cpp", '#include "gpu/secret.h"\n')
        self.assert_one_problem(check_layers, "not a private header of kv")

    def test_commented_include_does_not_count(self):
        self.write("src/gpu/a.cpp", "// #include <metrale/kv/cache.h>\n/*\n#include <metrale/kv/cache.h>\n*/\n")
        self.assert_clean(check_layers)

    def test_unknown_module_fails(self):
        self.write("src/misc/a.cpp", "#include <metrale/base/error.h>\n")
        self.assert_one_problem(check_layers, "'misc' is not in the table")

    def test_link_against_the_table_fails(self):
        self.write("src/prefix/CMakeLists.txt", "metrale_add_module(prefix\n  SOURCES a.cpp\n  DEPS base gpu)\n")
        self.assert_one_problem(check_layers, "prefix may not use gpu")

    def test_second_library_of_a_module_counts_as_the_module(self):
        self.write("src/engine/CMakeLists.txt", "metrale_add_module(engine_text DEPS base)\n"
                   "metrale_add_module(engine DEPS kv engine_text PRIVATE_DEPS metrale::runtime)\n")
        self.assert_one_problem(check_layers, "engine may not use runtime")

    def test_app_that_reaches_into_src_fails(self):
        self.write("src/engine/inside.h")
        self.write("apps/metrale/main.cpp", '#include <metrale/engine/a.h>\n#include "../../src/engine/inside.h"\n')
        self.assert_one_problem(check_layers, "use public headers")

    def test_app_may_use_its_own_headers(self):
        self.write("apps/metrale/command.h")
        self.write("apps/metrale/main.cpp", '#include "command.h"\n')
        self.assert_clean(check_layers)

    def test_getenv_outside_runtime_fails(self):
        self.write("src/kv/a.cpp", 'auto x = std::getenv("HOME");\n')
        self.write("src/runtime/environment.cpp", 'auto x = std::getenv("METRALE_LOG");\n')
        self.write("tests/support/main.cpp", 'auto x = std::getenv("METRALE_CPU_ISA");\n')
        self.assert_one_problem(check_layers, "src/kv/a.cpp:1", "getenv")

    def test_device_types_in_a_public_header_fail(self):
        for text in ("CUstream stream;", "cudaStream_t s;", "ucp_worker_h w;", "#include <cuda.h>"):
            with self.subTest(text):
                self.write("include/metrale/gpu/a.h", f"// cudaStream_t is fine in prose\n{text}\n")
                self.assert_one_problem(check_layers, "include/metrale/gpu/a.h:2")

    def test_quoted_include_in_a_public_header_fails(self):
        self.write("include/metrale/gpu/a.h", '#include "b.h"\n')
        self.assert_one_problem(check_layers, "include/metrale/gpu/a.h:1")


if __name__ == "__main__":
    unittest.main()
