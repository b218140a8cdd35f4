// SPDX-License-Identifier: Apache-2.0
// What a test asks of the fake cuFile, and what it then counts. Exported as fake_cufile_knobs().
#pragma once

#include <atomic>
#include <cstddef>

namespace metrale::test {

struct CufileKnobs {
  std::atomic<int> driver_code{0};    // of cuFileDriverOpen
  std::atomic<int> handle_code{0};    // of cuFileHandleRegister
  std::atomic<int> buffer_code{0};    // of cuFileBufRegister
  std::atomic<int> transfer_code{0};  // the next transfers give it negated; 1: errno EIO and -1
  std::atomic<long> driver_opens{0};
  std::atomic<long> open_handles{0};
  std::atomic<long> open_buffers{0};
  std::atomic<long> based_transfers{0};  // within a registered buffer
  std::atomic<long> unknown_bases{0};    // with an offset from memory that is not registered
};

}  // namespace metrale::test
