// SPDX-License-Identifier: Apache-2.0
// ProgressLine: one line on a terminal that is redrawn and erased; nothing at all where standard error is no
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace metrale::app {

class ProgressLine {
 public:
  explicit ProgressLine(std::string_view label);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::uint64_t done_bytes, std::uint64_t total_bytes);
  // The text is made only where it will be seen.
  void show(const std::function<std::string()>& text);
  void clear();

 private:
  std::string_view label_;
  bool on_terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace metrale::app
