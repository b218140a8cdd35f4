// SPDX-License-Identifier: Apache-2.0
// Copies and fills. Ordinary host memory goes through staging pieces, so that enqueuing never waits.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/checked.h>

#include "backends/cuda/cuda_backend.h"

namespace metrale::backends::cuda {
namespace {

constexpr std::span<const std::uint64_t> kNoAddresses;

// On a thread of the driver: the host's half of a staged copy.
void copy_on_the_host(void* piece) {
  const auto& copy = *static_cast<const StagingPiece*>(piece);
  std::memcpy(copy.to, copy.from, copy.bytes);
}

// Calls `copy(offset, bytes)` for each part of at most a piece.
template <class Copy>
void in_pieces(std::size_t bytes, const Copy& copy) {
  for (std::size_t at = 0; at < bytes; at += kStagingPieceBytes) {
    copy(at, std::min(kStagingPieceBytes, bytes - at));
  }
}

// The bytes that `rows` rows at a pitch span.
std::uint64_t span_2d(std::size_t pitch_bytes, std::size_t row_bytes, std::size_t rows) {
  return checked_add(checked_mul(pitch_bytes, rows - 1), row_bytes);
}

}  // namespace

void CudaBackend::expect_range(DevicePtr ptr, std::uint64_t bytes, const char* what) const {
  memory_.book().expect_range(ptr, bytes, what);
}

// ---- blocking

void CudaBackend::finish_transfer(Result enqueued, std::string_view call) const {
  host_->check(enqueued, call);
  const Result result = host_->driver().stream_synchronize(memory_.transfer_stream());
  if (result != kSuccess) host_->fail(result, fmt::format("cuStreamSynchronize after {}", call));
}

void CudaBackend::do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) {
  const ContextScope scope = enter();
  expect_range(dst, src.size(), "copy to the device");
  finish_transfer(
      host_->driver().copy_h2d_async(dst.address(), src.data(), src.size(), memory_.transfer_stream()),
      "cuMemcpyHtoDAsync");
}

void CudaBackend::do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) {
  const ContextScope scope = enter();
  expect_range(src, dst.size(), "copy to the host");
  finish_transfer(
      host_->driver().copy_d2h_async(dst.data(), src.address(), dst.size(), memory_.transfer_stream()),
      "cuMemcpyDtoHAsync");
}

void CudaBackend::do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  const ContextScope scope = enter();
  expect_range(dst, bytes, "destination of a copy");
  expect_range(src, bytes, "source of a copy");
  finish_transfer(host_->driver().copy_async(dst.address(), src.address(), bytes, memory_.transfer_stream()),
                  "cuMemcpyAsync");
}

void CudaBackend::do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) {
  const ContextScope scope = enter();
  expect_range(dst, bytes, "memset");
  finish_transfer(host_->driver().memset_async(dst.address(), value, bytes, memory_.transfer_stream()),
                  "cuMemsetD8Async");
}

// ---- enqueued

// Something on `stream` uses the piece: until the stream has passed this point, or for a graph's life.
void CudaBackend::hold(StagingPiece& piece, DriverStream stream, CudaCapture* capture) {
  if (capture == nullptr) staging_.give_back_after(piece, stream);
}

// After a failure the caller may free its memory, which parts that are enqueued still reach for.
template <class EnqueuePart>
void CudaBackend::in_pieces_or_settle(std::size_t bytes, DriverStream stream, CudaCapture* capture,
                                      const EnqueuePart& enqueue_part) {
  StagingPiece* piece = nullptr;
  try {
    in_pieces(bytes, [&](std::size_t at, std::size_t part_bytes) {
      piece = &staging_.take();
      if (capture != nullptr) capture->pieces.push_back(piece);
      enqueue_part(*piece, at, part_bytes);
      hold(*piece, stream, capture);
      piece = nullptr;
    });
  } catch (...) {
    if (capture == nullptr) {
      host_->tear_down([&] { return host_->driver().stream_synchronize(stream); }, "cuStreamSynchronize");
      if (piece != nullptr) staging_.give_back(*piece);
    }
    throw;
  }
}

void CudaBackend::enqueue_h2d_staged(DevicePtr dst, std::span<const std::byte> src, DriverStream stream) {
  in_pieces(src.size(), [&](std::size_t at, std::size_t bytes) {
    StagingPiece& piece = staging_.take();
    std::memcpy(piece.memory, src.data() + at, bytes);
    const Result result = host_->driver().copy_h2d_async(dst.address() + at, piece.memory, bytes, stream);
    if (result != kSuccess) staging_.give_back(piece);
    host_->check(result, "cuMemcpyHtoDAsync");
    hold(piece, stream, nullptr);
  });
}

void CudaBackend::enqueue_h2d_retained(DevicePtr dst, std::span<const std::byte> src, DriverStream stream,
                                       CudaCapture* capture) {
  if (memory_.is_pinned(src.data(), src.size())) {
    host_->check(host_->driver().copy_h2d_async(dst.address(), src.data(), src.size(), stream),
                 "cuMemcpyHtoDAsync");
    return;
  }
  const auto enqueue_part = [&](StagingPiece& piece, std::size_t at, std::size_t bytes) {
    piece.to = piece.memory;
    piece.from = src.data() + at;
    piece.bytes = bytes;
    host_->check(host_->driver().launch_host_function(stream, copy_on_the_host, &piece), "cuLaunchHostFunc");
    host_->check(host_->driver().copy_h2d_async(dst.address() + at, piece.memory, bytes, stream),
                 "cuMemcpyHtoDAsync");
  };
  in_pieces_or_settle(src.size(), stream, capture, enqueue_part);
}

void CudaBackend::enqueue_d2h(std::span<std::byte> dst, DevicePtr src, DriverStream stream,
                              CudaCapture* capture) {
  if (memory_.is_pinned(dst.data(), dst.size())) {
    host_->check(host_->driver().copy_d2h_async(dst.data(), src.address(), dst.size(), stream),
                 "cuMemcpyDtoHAsync");
    return;
  }
  const auto enqueue_part = [&](StagingPiece& piece, std::size_t at, std::size_t bytes) {
    piece.to = dst.data() + at;
    piece.from = piece.memory;
    piece.bytes = bytes;
    host_->check(host_->driver().copy_d2h_async(piece.memory, src.address() + at, bytes, stream),
                 "cuMemcpyDtoHAsync");
    host_->check(host_->driver().launch_host_function(stream, copy_on_the_host, &piece), "cuLaunchHostFunc");
  };
  in_pieces_or_settle(dst.size(), stream, capture, enqueue_part);
}

void CudaBackend::do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(dst, src.size(), "copy to the device");
  submit(
      stream, [] { return std::string(); }, kNoAddresses,
      [&](DriverStream to, CudaCapture*) { enqueue_h2d_staged(dst, src, to); });
}

void CudaBackend::do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src,
                                             gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(dst, src.size(), "copy to the device");
  const std::array addresses{dst.address()};
  submit(
      stream, [&] { return fmt::format("copy of {} bytes to the device", src.size()); }, addresses,
      [&](DriverStream to, CudaCapture* capture) { enqueue_h2d_retained(dst, src, to, capture); });
}

void CudaBackend::do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(src, dst.size(), "copy to the host");
  const std::array addresses{src.address()};
  submit(
      stream, [&] { return fmt::format("copy of {} bytes to the host", dst.size()); }, addresses,
      [&](DriverStream from, CudaCapture* capture) { enqueue_d2h(dst, src, from, capture); });
}

void CudaBackend::do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(dst, bytes, "destination of a copy");
  expect_range(src, bytes, "source of a copy");
  const std::array addresses{dst.address(), src.address()};
  submit(
      stream, [&] { return fmt::format("copy of {} bytes on the device", bytes); }, addresses,
      [&](DriverStream on, CudaCapture*) {
        host_->check(host_->driver().copy_async(dst.address(), src.address(), bytes, on), "cuMemcpyAsync");
      });
}

void CudaBackend::do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                                       std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                                       gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(dst, span_2d(dst_pitch_bytes, row_bytes, rows), "destination of a 2D copy");
  expect_range(src, span_2d(src_pitch_bytes, row_bytes, rows), "source of a 2D copy");
  const std::array addresses{dst.address(), src.address()};
  Copy2d copy;
  copy.src_device = src.address();
  copy.src_pitch = src_pitch_bytes;
  copy.dst_device = dst.address();
  copy.dst_pitch = dst_pitch_bytes;
  copy.width_bytes = row_bytes;
  copy.height = rows;
  submit(
      stream, [&] { return fmt::format("copy of {} rows of {} bytes on the device", rows, row_bytes); },
      addresses,
      [&](DriverStream on, CudaCapture*) {
        host_->check(host_->driver().copy_2d_async(&copy, on), "cuMemcpy2DAsync");
      });
}

void CudaBackend::do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes,
                                  gpu::StreamRef stream) {
  const ContextScope scope = enter();
  expect_range(dst, bytes, "memset");
  const std::array addresses{dst.address()};
  submit(
      stream, [&] { return fmt::format("memset of {} bytes", bytes); }, addresses,
      [&](DriverStream on, CudaCapture*) {
        host_->check(host_->driver().memset_async(dst.address(), value, bytes, on), "cuMemsetD8Async");
      });
}

}  // namespace metrale::backends::cuda
