// SPDX-License-Identifier: Apache-2.0
// ResultOrder: lets results out as they come, or holds each back until those before it are out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

namespace metrale::app {

struct FinishedLine {
  std::string text;  // of the result, newline included; never empty
  bool has_error = false;
};

class ResultOrder {
 public:
  using Write = std::function<void(const FinishedLine&)>;
  ResultOrder(bool keeps_order, Write write) : keeps_order_(keeps_order), write_(std::move(write)) {}

  // The next place in the order; its result comes later.
  [[nodiscard]] std::uint64_t open();
  // What `write` throws passes through.
  void close(std::uint64_t place, FinishedLine result);

  // Lets those out that still wait, in their order, before the ones that they wait for; returns how many. No
  // place is closed after it. What `write` throws passes through.
  std::uint64_t let_out();

  // Of results that wait for those before them.
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }
  // Places without a result, and results that wait.
  [[nodiscard]] std::uint64_t unwritten() const { return next_ - written_; }

 private:
  bool keeps_order_;
  Write write_;
  std::deque<FinishedLine> waiting_;  // from first_ on; without a text: not closed yet
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t written_ = 0;
  std::size_t held_bytes_ = 0;
};

}  // namespace metrale::app
