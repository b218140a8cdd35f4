// SPDX-License-Identifier: Apache-2.0
// ResultFile: the results of `metrale batch` as whole lines, in a file that a later run can go on with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <metrale/base/fd.h>

#include "batch_result.h"

namespace metrale::app {

enum class ExistingFile : std::uint8_t {
  kRefuse,
  kResume,     // keep its results and append
  kOverwrite,  // from the first append() on
};

class ResultFile {
 public:
  using OnKept = std::function<void(const KnownResult&)>;

  // An empty path is standard output; a device or pipe is written to as it is. A file is locked against other
  // runs. With kResume every result that stays is told to `on_kept`; one that is to run again is taken out,
  // and so is a last line without an end.
  //
  // Throws IoError; InvalidArgument where the file has something in it (kRefuse), or is the one behind
  // `input_fd`; FormatError where it is no file of results, which leaves it as it is; Cancelled on a signal.
  ResultFile(const std::string& path, ExistingFile existing, int input_fd, const OnKept& on_kept);
  // Removes a file that was made here and never written to or synced.
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // A whole line, its newline included. Throws IoError; a part that was written is taken off a file again.
  void append(std::string_view line);
  // Blocking: until a file's lines are on the disk. Throws IoError.
  void sync();

  [[nodiscard]] bool is_regular() const { return is_regular_; }

 private:
  void open();
  void lock() const;
  void resume(const OnKept& on_kept);

  std::string path_;
  UniqueFd file_;
  bool is_regular_ = false;
  bool is_new_ = false;  // made here and empty
  bool truncate_first_ = false;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace metrale::app
