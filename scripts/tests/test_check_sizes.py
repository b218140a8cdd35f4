# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import subprocess
import unittest

from tree_case import TreeCase

import check_sizes


def lines(count):
    return "int x;\n" * count


class CheckSizes(TreeCase):
    def setUp(self):
        super().setUp()
        quiet = contextlib.redirect_stderr(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def test_soft_limit_warns(self):
        self.write("include/metrale/kv/a.h", lines(201))
        errors, warnings = check_sizes.measure(self.root)
        self.assertEqual(errors, [])
        self.assertEqual(len(warnings), 1)

    def test_hard_limits_fail(self):
        for path, limit in (("include/metrale/kv/a.h", 400), ("src/kv/a.cpp", 800), ("tests/kv/a_test.cpp", 800)):
            with self.subTest(path):
                self.write(path, lines(limit))
                self.assert_clean(check_sizes)
                self.write(path, lines(limit + 1))
                self.assert_one_problem(check_sizes, path, f"the limit is {limit}")
                self.write(path, "")

    def test_long_function_fails(self):
        self.write("src/kv/a.cpp", "namespace a {\nvoid f() {\n" + "  g();\n" * 119 + "}\n}\n")
        self.assert_one_problem(check_sizes, "src/kv/a.cpp:2", "'f'", "121 lines")

    def test_long_python_function_fails(self):
        self.write("scripts/a.py", "def f():\n" + "    g()\n" * 120)
        self.assert_one_problem(check_sizes, "scripts/a.py:1")

    def test_exception_is_exact(self):
        self.write("src/kv/a.cpp", lines(900))
        self.write(check_sizes.EXCEPTIONS, "# why\nsrc/kv/a.cpp 900\n")
        self.assert_clean(check_sizes)
        self.write("src/kv/a.cpp", lines(899))
        self.assert_one_problem(check_sizes, "lower it or remove it")

    def test_exceptions_only_shrink(self):
        def git(*arguments):
            identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
            subprocess.run(("git", *identity, *arguments), cwd=self.root, check=True, capture_output=True)

        git("init", "--initial-branch=main")
        for entries in ("", "src/kv/a.cpp 900\n"):
            self.write(check_sizes.EXCEPTIONS, entries)
            git("add", "--all")
            git("commit", "--message", "x")
        self.write("src/kv/a.cpp", lines(900))
        self.assert_one_problem(check_sizes, "new or larger than before")


class CxxFunctions(unittest.TestCase):
    def names(self, text):
        return [(name, count) for _, count, name in check_sizes.cxx_functions(text)]

    def test_finds_functions_methods_and_tests(self):
        text = """
        namespace a::b {
        class C final : public D {
         public:
          int get() const { return 1; }
          C& operator=(const C& other) {
            return *this;
          }
        };
        template <class T, std::size_t N = (1 << 2)>
        auto f(T t, Options options = {}) -> int {
          auto inner = [&](int i) { return i; };
          return inner(1);
        }
        TEST(Thing, Works) {
        }
        }  // namespace a::b
        """
        self.assertEqual(self.names(text), [("get", 1), ("operator=", 3), ("f", 5), ("TEST(Thing, Works)", 2)])

    def test_member_initialisers_belong_to_the_constructor(self):
        self.assertEqual(self.names("C::C(int a) : a_{a}, b_{1} {\n  x();\n}\nvoid g() {\n}\n"), [("C::C", 3), ("g", 2)])

    def test_tables_strings_and_comments_are_not_functions(self):
        text = 'const char* kText = "void f() {";\n// void f() {\nint kTable[] = {\n1,\n2};\nstd::array kA{\nB{1}};\n'
        self.assertEqual(self.names(text), [])

    def test_lambda_constant_is_a_function(self):
        self.assertEqual(self.names("constexpr auto kLess = [](int a) {\n  return f(a);\n};\n"), [("kLess", 3)])

    def test_fuzz_entry_point_is_a_function(self):
        self.assertEqual(self.names('extern "C" int Entry(int x) {\nreturn 0;\n}\nextern "C" {\nvoid g() {}\n}\n'),
                         [("Entry", 3), ("g", 1)])


if __name__ == "__main__":
    unittest.main()
