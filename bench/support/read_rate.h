// SPDX-License-Identifier: Apache-2.0
// ReadRate: how fast the threads of a pool read memory together, the limit that decoding is compared with.
#pragma once

#include <cstddef>
#include <span>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/thread_pool.h>

namespace metrale::bench {

class ReadRate {
 public:
  // 1.25 GiB in huge pages: nothing of it stays in a cache. The pool outlives it.
  explicit ReadRate(ThreadPool& pool);

  // What is read: of the caller to fill, zero before.
  [[nodiscard]] std::span<std::byte> memory() const { return buffer_.span(); }

  // Reads all of it once, every thread its part. Bytes a second, in 1e9.
  [[nodiscard]] double measure();

 private:
  ThreadPool& pool_;
  mutable AlignedBuffer buffer_;
};

}  // namespace metrale::bench
