// SPDX-License-Identifier: Apache-2.0
// PageMaker: a thread that makes the pages of fresh memory, so that those who write there need not. What
// memory holds is not changed: it may be written meanwhile.
#pragma once

#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace metrale::weights {

class PageMaker {
 public:
  PageMaker() = default;
  ~PageMaker() = default;  // stops
  PageMaker(const PageMaker&) = delete;
  PageMaker& operator=(const PageMaker&) = delete;

  // Once. In the order of `ranges`, which stay mapped until stop(), and as fast as it can: a virtual machine
  // may have to get its memory first, more slowly than a disk reads. Where there is no thread to be had, the
  // system cannot do it (Linux before 5.14), or memory may not be written, all that is left is made by who
  // writes it.
  void start(std::vector<std::span<std::byte>> ranges);
  // Blocking: nothing is touched any more. After the few pages at hand.
  void stop() { thread_ = {}; }

 private:
  std::jthread thread_;
};

}  // namespace metrale::weights
