// SPDX-License-Identifier: Apache-2.0
// CudaMemory: device and pinned memory, its ledgers, the budget and red zones. Thread-safe; callers have made
// the context current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include <metrale/gpu/allocation_book.h>
#include <metrale/gpu/types.h>

#include "backends/cuda/host.h"

namespace metrale::backends::cuda {

class CudaMemory {
 public:
  CudaMemory(const CudaHost& host, std::uint64_t max_bytes, std::uint64_t red_zone_bytes);
  // Frees arena and pinned memory; the ledger was swept.
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // As the calls of GpuBackend.
  [[nodiscard]] DevicePtr alloc(std::size_t bytes, CallSite site);
  void free(DevicePtr ptr);
  [[nodiscard]] DevicePtr alloc_arena(std::size_t bytes);
  void free_arena(DevicePtr ptr);
  [[nodiscard]] std::span<std::byte> alloc_pinned(std::size_t bytes);
  void free_pinned(std::span<std::byte> memory);
  [[nodiscard]] DevicePtr device_address_of_pinned(const std::byte* host) const;
  [[nodiscard]] std::uint64_t total_bytes() const;
  [[nodiscard]] std::uint64_t free_bytes() const;
  [[nodiscard]] std::vector<gpu::RedZoneHit> scan_red_zones();
  void poison_red_zones(std::uint64_t first_id, std::uint64_t last_id);
  // Frees all of the ledger, whatever fails; returns how many allocations there were.
  std::size_t sweep();

  [[nodiscard]] const gpu::AllocationBook& book() const { return book_; }
  [[nodiscard]] bool has_red_zones() const { return red_zone_bytes_ != 0; }
  // The whole range is page-locked, by this backend or anybody else.
  [[nodiscard]] bool is_pinned(const std::byte* host, std::size_t bytes) const;
  // Copies may name this memory of a module from now on.
  void admit(const gpu::DeviceRange& range);
  // A stream for blocking copies and fills; nothing else is ordered by it.
  [[nodiscard]] DriverStream transfer_stream() const { return transfer_; }

 private:
  [[nodiscard]] DevicePtr acquire(std::size_t bytes, std::size_t padding);
  void release(const gpu::AllocationInfo& info);
  void refund(std::uint64_t bytes);
  // Gives back what acquire() gave and no ledger has taken.
  void give_back(DevicePtr base, std::size_t bytes) noexcept;
  // Page-locked memory as the driver gave it, or a mapping of our own that it registered.
  struct PinnedBlock {
    void* start = nullptr;
    std::size_t mapped_bytes = 0;  // 0: the driver's
  };
  [[nodiscard]] Result acquire_pinned(std::size_t bytes, PinnedBlock& block);
  [[nodiscard]] Result release(const PinnedBlock& block);
  [[nodiscard]] static const char* name_of_release(std::size_t mapped_bytes);
  [[nodiscard]] PinnedBlock take_pinned(DevicePtr base);
  void fill_red_zone(const gpu::AllocationInfo& info);
  [[nodiscard]] std::uint64_t budget_left() const;  // under budget_mutex_

  const CudaHost& host_;
  const std::uint64_t max_bytes_;
  const std::uint64_t red_zone_bytes_;
  gpu::AllocationBook book_;
  DriverStream transfer_ = nullptr;
  std::mutex pinned_mutex_;
  std::map<std::uint64_t, PinnedBlock> pinned_blocks_;  // by the page that it begins in
  mutable std::mutex budget_mutex_;
  std::uint64_t in_use_bytes_ = 0;  // ledger and arena; guarded by budget_mutex_
};

}  // namespace metrale::backends::cuda
