// SPDX-License-Identifier: Apache-2.0
// Output: where results go: standard output as they come, or a file that appears only when it is complete.
#pragma once

#include <string>
#include <string_view>

#include <metrale/base/fd.h>

namespace metrale::app {

class Output {
 public:
  // An empty path is standard output; a device or pipe is written to as it is. A file is written beside its
  // final place and renamed by commit(); throws IoError at once where that cannot be.
  explicit Output(const std::string& path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Writes all of it, or throws IoError.
  void write(std::string_view text);
  // The file takes its place (for standard output: nothing). Without it, the destructor removes what was
  // written.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  UniqueFd file_;
};

// Whether both are one regular file, there or not yet: what goes to one would replace the other.
[[nodiscard]] bool is_same_file(const std::string& a, const std::string& b);

}  // namespace metrale::app
