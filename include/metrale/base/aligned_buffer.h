// SPDX-License-Identifier: Apache-2.0
// AlignedBuffer: an owner of host bytes at a chosen alignment, not initialised.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace metrale {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `alignment` is a power of two; at kHugePageBytes or more the system is asked for huge pages. Throws
  // OutOfMemory (tier "host").
  AlignedBuffer(std::size_t bytes, std::size_t alignment);
  ~AlignedBuffer() { reset(); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer moved(std::move(other));
    std::swap(data_, moved.data_);
    std::swap(bytes_, moved.bytes_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }
  void reset() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace metrale
