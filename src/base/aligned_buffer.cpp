// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <sys/mman.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>

namespace metrale {

AlignedBuffer::AlignedBuffer(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
  expects(alignment != 0 && (alignment & (alignment - 1)) == 0, "alignment must be a power of two");
  if (bytes == 0) return;
  // aligned_alloc wants a size that is a multiple of the alignment.
  const std::size_t padded = try_add(bytes, alignment - 1).value_or(0) & ~(alignment - 1);
  if (padded != 0) data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, padded));
  if (data_ == nullptr) {
    bytes_ = 0;
    throw OutOfMemory("host", bytes, 0);
  }
  // Advice only: without huge pages the memory is as good, only slower.
  if (alignment >= kHugePageBytes) ::madvise(data_, padded, MADV_HUGEPAGE);
}

void AlignedBuffer::reset() noexcept {
  std::free(std::exchange(data_, nullptr));
  bytes_ = 0;
}

}  // namespace metrale
