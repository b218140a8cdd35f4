// SPDX-License-Identifier: Apache-2.0
#include "result_order.h"

#include <utility>

#include <metrale/base/assert.h>

namespace metrale::app {

std::uint64_t ResultOrder::open() {
  if (keeps_order_) waiting_.emplace_back();
  return next_++;
}

void ResultOrder::close(std::uint64_t place, FinishedLine result) {
  if (!keeps_order_) {
    write_(result);
    ++written_;
    return;
  }
  METRALE_ASSERT(place >= first_ && place < next_);
  held_bytes_ += result.text.size();
  waiting_[place - first_] = std::move(result);
  while (!waiting_.empty() && !waiting_.front().text.empty()) {
    write_(waiting_.front());
    ++written_;
    ++first_;
    held_bytes_ -= waiting_.front().text.size();
    waiting_.pop_front();
  }
}

std::uint64_t ResultOrder::let_out() {
  std::uint64_t count = 0;
  for (; !waiting_.empty(); waiting_.pop_front(), ++first_) {
    if (waiting_.front().text.empty()) continue;
    write_(waiting_.front());
    ++written_;
    ++count;
  }
  held_bytes_ = 0;
  return count;
}

}  // namespace metrale::app
