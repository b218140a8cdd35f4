// SPDX-License-Identifier: Apache-2.0
// Runs a program to its end and keeps what it printed.
#pragma once

#include <string>
#include <vector>

namespace metrale {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal where a signal ended it
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::string input = {};                     // standard input
  std::vector<std::string> environment = {};  // "NAME=value", added to ours
  std::string out_path = {};                  // standard output goes there instead of into the result
  // Sent once standard error contains `signal_after` (0: never).
  int signal = 0;
  std::string signal_after = {};
};

// `arguments[0]` is the program. Throws std::runtime_error where it cannot be started.
[[nodiscard]] ProcessResult run_process(const std::vector<std::string>& arguments,
                                        const ProcessOptions& options = {});

}  // namespace metrale
