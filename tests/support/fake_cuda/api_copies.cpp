// SPDX-License-Identifier: Apache-2.0
// Copies and fills. One that touches host memory which is not page-locked waits for its stream, as the
// driver's may.
#include <cstring>

#include "support/fake_cuda/api.h"
#include "support/fake_cuda/graph.h"

namespace fake_cuda {
namespace {

using driver::DeviceAddress;
using driver::DriverStream;

template <class T>
T* at(DeviceAddress address) {
  return reinterpret_cast<T*>(address);
}

bool reaches(DeviceAddress address, std::size_t bytes) {
  const std::scoped_lock lock(machine().mutex);
  return is_memory(machine(), address, bytes);
}

bool is_page_locked(const void* host, std::size_t bytes) {
  const std::scoped_lock lock(machine().mutex);
  return is_pinned(machine(), host, bytes);
}

Result copy_pageable(DriverStream handle, Command copy) {
  const auto stream = find_stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  {
    const std::scoped_lock lock(machine().mutex);
    ++machine().pageable_copies;
    if (stream->capture != nullptr) {
      stream->capture->is_invalid = true;
      return kCaptureUnsupported;
    }
  }
  const Result result = submit(handle, std::move(copy));
  stream->wait();
  return result;
}

Result copy_async(DeviceAddress dst, DeviceAddress src, std::size_t bytes, DriverStream stream) {
  if (!reaches(dst, bytes) || !reaches(src, bytes)) return driver::kErrorInvalidValue;
  return submit(stream, [=] { std::memmove(at<void>(dst), at<void>(src), bytes); });
}

Result copy_h2d_async(DeviceAddress dst, const void* src, std::size_t bytes, DriverStream stream) {
  if (!reaches(dst, bytes)) return driver::kErrorInvalidValue;
  Command copy = [=] { std::memcpy(at<void>(dst), src, bytes); };
  return is_page_locked(src, bytes) ? submit(stream, std::move(copy))
                                    : copy_pageable(stream, std::move(copy));
}

Result copy_d2h_async(void* dst, DeviceAddress src, std::size_t bytes, DriverStream stream) {
  if (!reaches(src, bytes)) return driver::kErrorInvalidValue;
  Command copy = [=] { std::memcpy(dst, at<void>(src), bytes); };
  return is_page_locked(dst, bytes) ? submit(stream, std::move(copy))
                                    : copy_pageable(stream, std::move(copy));
}

Result copy_2d_async(const driver::Copy2d* wanted, DriverStream stream) {
  const driver::Copy2d c = *wanted;
  if (c.src_memory_type != driver::kMemoryTypeDevice || c.dst_memory_type != driver::kMemoryTypeDevice ||
      c.height == 0 || c.width_bytes > c.src_pitch || c.width_bytes > c.dst_pitch ||
      !reaches(c.src_device, c.src_pitch * (c.height - 1) + c.width_bytes) ||
      !reaches(c.dst_device, c.dst_pitch * (c.height - 1) + c.width_bytes)) {
    return driver::kErrorInvalidValue;
  }
  return submit(stream, [c] {
    for (std::size_t row = 0; row < c.height; ++row) {
      std::memcpy(at<void>(c.dst_device + row * c.dst_pitch), at<void>(c.src_device + row * c.src_pitch),
                  c.width_bytes);
    }
  });
}

Result memset_async(DeviceAddress dst, unsigned char value, std::size_t bytes, DriverStream stream) {
  if (!reaches(dst, bytes)) return driver::kErrorInvalidValue;
  return submit(stream, [=] { std::memset(at<void>(dst), value, bytes); });
}

}  // namespace

std::vector<Entry> copy_calls() {
  using enum CallKind;
  return {entry<"cuMemcpyAsync", kContext, copy_async>(),
          entry<"cuMemcpyHtoDAsync", kContext, copy_h2d_async>(),
          entry<"cuMemcpyDtoHAsync", kContext, copy_d2h_async>(),
          entry<"cuMemcpy2DAsync", kContext, copy_2d_async>(),
          entry<"cuMemsetD8Async", kContext, memset_async>()};
}

}  // namespace fake_cuda
