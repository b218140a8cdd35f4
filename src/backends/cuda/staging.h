// SPDX-License-Identifier: Apache-2.0
// Staging: pinned pieces between ordinary host memory and the device, so that a copy of ordinary memory is
// enqueued like any other. The driver's own copies of such memory wait for the stream.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/host.h"

namespace metrale::backends::cuda {

inline constexpr std::size_t kStagingPieceBytes = std::size_t{256} << 10;

// One piece and the host's part of the copy that it is in. Its address stays.
struct StagingPiece {
  std::byte* memory = nullptr;  // kStagingPieceBytes, pinned
  DriverEvent passed = nullptr;
  // Guarded by the pool.
  bool is_used = false;  // free again when `passed` is complete
  bool is_held = false;  // by a copy that is being enqueued, or by a graph
  // What the host function copies.
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Thread-safe; callers have made the context current.
class StagingPool {
 public:
  // Blocking: makes the first slab of pieces.
  explicit StagingPool(const CudaHost& host);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // A piece whose last copy is over. Throws OutOfMemory.
  [[nodiscard]] StagingPiece& take();
  // The piece is free once the stream passes this point.
  void give_back_after(StagingPiece& piece, DriverStream stream);
  // A piece that a graph held, and whose replays are over; or one that nothing was enqueued for.
  void give_back(StagingPiece& piece);

 private:
  void add_slab();
  // Destroys their events.
  void drop(const std::vector<std::unique_ptr<StagingPiece>>& pieces) const noexcept;

  const CudaHost& host_;
  std::mutex mutex_;
  std::vector<void*> slabs_;
  std::vector<std::unique_ptr<StagingPiece>> pieces_;
  std::size_t next_ = 0;  // where the search begins
};

}  // namespace metrale::backends::cuda
