// SPDX-License-Identifier: Apache-2.0
// The metrale program as a user starts it, over a tiny model directory.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <support/subprocess.h>
#include <support/temp_dir.h>
#include <support/tiny_model.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace metrale::test {

inline ProcessResult metrale(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), METRALE_PROGRAM);
  return run_process(arguments, options);
}

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct ProgramTest : testing::Test {
  ProgramTest() { write_tiny_model(tiny_model("tiny_base"), model()); }

  [[nodiscard]] std::string model() const { return dir.file("model"); }
  // metrale generate -m MODEL …
  [[nodiscard]] ProcessResult generate(std::vector<std::string> arguments,
                                       const ProcessOptions& options = {}) const {
    arguments.insert(arguments.begin(), {"generate", "-m", model()});
    return metrale(std::move(arguments), options);
  }

  TempDir dir;
};

}  // namespace metrale::test
