// SPDX-License-Identifier: Apache-2.0
// HostMemory: the "device memory" of the CPU backend: allocations and their ledgers, the budget, red zones,
// and the poisoning of memory that nobody may read. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <metrale/gpu/allocation_book.h>
#include <metrale/gpu/types.h>

#include "backends/cpu/numa.h"

namespace metrale::backends::cpu {

class HostMemory {
 public:
  // 0 for `max_bytes`: what the host can spare.
  HostMemory(std::uint64_t max_bytes, std::uint64_t red_zone_bytes,
             const NumaPlacement& placement = {NumaPolicy::kNone, {}});
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

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
  [[nodiscard]] std::vector<gpu::RedZoneHit> scan_red_zones() const;
  void poison_red_zones(std::uint64_t first_id, std::uint64_t last_id);
  // Frees all of the ledger; returns how many allocations there were.
  std::size_t sweep();

  [[nodiscard]] const gpu::AllocationBook& book() const { return book_; }
  [[nodiscard]] const gpu::AllocationLedger& ledger() const { return book_.device; }
  [[nodiscard]] bool has_red_zones() const { return red_zone_bytes_ != 0; }

  // The host address of a range inside one live allocation of any kind. Throws InvalidArgument naming `what`.
  [[nodiscard]] std::byte* range(DevicePtr ptr, std::uint64_t bytes, const char* what) const;

 private:
  [[nodiscard]] std::byte* acquire(std::size_t bytes, std::size_t padding);
  void release(const gpu::AllocationInfo& info, std::uint64_t padding);
  void refund(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t unpromised_bytes() const;  // under budget_mutex_

  const std::uint64_t max_bytes_;
  const std::uint64_t available_at_start_;
  const std::uint64_t red_zone_bytes_;
  const NumaPlacement placement_;
  gpu::AllocationBook book_;
  mutable std::mutex budget_mutex_;
  std::uint64_t in_use_bytes_ = 0;  // ledger and arena; guarded by budget_mutex_

  // Freed blocks, poisoned and kept for a while so that a stale read finds NaN and not somebody's data.
  struct Quarantined {
    std::byte* block = nullptr;
    std::size_t bytes = 0;
  };
  void quarantine(std::byte* block, std::size_t bytes);
  std::mutex quarantine_mutex_;
  std::deque<Quarantined> quarantine_;
  std::uint64_t quarantined_bytes_ = 0;
};

}  // namespace metrale::backends::cpu
