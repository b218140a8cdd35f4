// SPDX-License-Identifier: Apache-2.0
// StopText: finds the texts that end an answer in what is streamed, and holds back what may become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace metrale::engine {

class StopText {
 public:
  // None of them is empty.
  explicit StopText(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // What can be shown now. Once a stop text is complete, everything before the first one; nothing afterwards.
  [[nodiscard]] std::string push(std::string_view text);
  // What was held back: the answer ended otherwise.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace metrale::engine
