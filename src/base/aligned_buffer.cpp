// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>

namespace metrale {

AlignedBuffer::AlignedBuffer(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
  expects(alignment != 0 && (alignment & (alignment - 1)) == 0, "alignment must be a power of two");
  if (bytes == 0) return;
  // aligned_alloc wants a size that is a multiple of the alignment.
  const auto padded = try_add(bytes, alignment - 1);
  if (padded) data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, *padded & ~(alignment - 1)));
  if (data_ == nullptr) {
    bytes_ = 0;
    throw OutOfMemory("host", bytes, 0);
  }
}

void AlignedBuffer::reset() noexcept {
  std::free(std::exchange(data_, nullptr));
  bytes_ = 0;
}

}  // namespace metrale
