// SPDX-License-Identifier: Apache-2.0
// StopText: finds the texts that end an answer in what is streamed, and holds back what may become one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace metrale::engine {

class StopText {
 public:
  // None of them is empty; they outlive it.
  explicit StopText(std::span<const std::string> stops = {}) : stops_(stops) {}

  // What can be shown now. Once a stop text is complete, everything before the first one; nothing afterwards.
  [[nodiscard]] std::string push(std::string_view text);
  // What was held back: the answer ended otherwise.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool found() const { return found_; }

 private:
  std::span<const std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace metrale::engine
