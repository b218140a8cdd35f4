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
  // In the order of `ranges`, which stay mapped until the end, and as fast as it can: a virtual machine may
  // have to get its memory first, more slowly than a disk reads. Where there is no thread to be had, or the
  // system cannot do it (Linux before 5.14), pages are made by who writes them.
  explicit PageMaker(std::vector<std::span<std::byte>> ranges);
  // Stops after the few pages at hand.
  ~PageMaker() = default;
  PageMaker(const PageMaker&) = delete;
  PageMaker& operator=(const PageMaker&) = delete;

 private:
  std::jthread thread_;
};

}  // namespace metrale::weights
