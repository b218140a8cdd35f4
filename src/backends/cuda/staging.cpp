// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staging.h"

#include <metrale/base/error.h>

namespace metrale::backends::cuda {
namespace {

constexpr std::size_t kPiecesPerSlab = 32;

}  // namespace

StagingPool::StagingPool(const CudaHost& host) : host_(host) {
  add_slab();
}

StagingPool::~StagingPool() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  drop(pieces_);
  for (void* slab : slabs_) host_.tear_down([&] { return host_.driver().host_free(slab); }, "cuMemFreeHost");
}

void StagingPool::drop(const std::vector<std::unique_ptr<StagingPiece>>& pieces) const noexcept {
  for (const auto& piece : pieces) {
    host_.tear_down([&] { return host_.driver().event_destroy(piece->passed); }, "cuEventDestroy");
  }
}

void StagingPool::add_slab() {
  void* slab = nullptr;
  const std::size_t bytes = kPiecesPerSlab * kStagingPieceBytes;
  const Result result = host_.driver().host_alloc(&slab, bytes, kHostPortable);
  if (result == kErrorOutOfMemory) throw OutOfMemory("pinned", bytes, 0, "for copies of ordinary memory");
  host_.check(result, "cuMemHostAlloc");
  std::vector<std::unique_ptr<StagingPiece>> made;
  try {
    made.reserve(kPiecesPerSlab);
    for (std::size_t i = 0; i < kPiecesPerSlab; ++i) {
      auto piece = std::make_unique<StagingPiece>();
      piece->memory = static_cast<std::byte*>(slab) + i * kStagingPieceBytes;
      host_.check(host_.driver().event_create(&piece->passed, kEventDisableTiming), "cuEventCreate");
      made.push_back(std::move(piece));
    }
    slabs_.reserve(slabs_.size() + 1);
    pieces_.reserve(pieces_.size() + made.size());
  } catch (...) {
    drop(made);
    host_.tear_down([&] { return host_.driver().host_free(slab); }, "cuMemFreeHost");
    throw;
  }
  slabs_.push_back(slab);
  for (auto& piece : made) pieces_.push_back(std::move(piece));
}

StagingPiece& StagingPool::take() {
  const std::scoped_lock lock(mutex_);
  for (std::size_t tried = 0; tried < pieces_.size(); ++tried) {
    next_ = (next_ + 1) % pieces_.size();
    StagingPiece& piece = *pieces_[next_];
    if (piece.is_held) continue;
    if (piece.is_used) {
      const Result result = host_.driver().event_query(piece.passed);
      if (result == kErrorNotReady) continue;
      host_.check(result, "cuEventQuery");
    }
    piece.is_used = true;
    // Until give_back_after() says when it is free, nothing else takes it.
    piece.is_held = true;
    return piece;
  }
  const std::size_t first_new = pieces_.size();
  add_slab();
  next_ = first_new;
  StagingPiece& piece = *pieces_[next_];
  piece.is_used = true;
  piece.is_held = true;
  return piece;
}

void StagingPool::give_back_after(StagingPiece& piece, DriverStream stream) {
  // Without the record nothing tells when the piece is free: it stays held.
  host_.check(host_.driver().event_record(piece.passed, stream), "cuEventRecord");
  const std::scoped_lock lock(mutex_);
  piece.is_held = false;
}

void StagingPool::give_back(StagingPiece& piece) {
  const std::scoped_lock lock(mutex_);
  piece.is_used = false;
  piece.is_held = false;
}

}  // namespace metrale::backends::cuda
