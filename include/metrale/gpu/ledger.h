// SPDX-License-Identifier: Apache-2.0
// AllocationLedger: what a backend has handed out and not got back. Shared by all implementations;
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <metrale/gpu/types.h>

namespace metrale::gpu {

class AllocationLedger {
 public:
  // Records an allocation and returns its id.
  std::uint64_t add(DevicePtr base, std::uint64_t bytes, CallSite site);
  // Removes and returns the entry whose base is `base`; empty where there is none.
  [[nodiscard]] std::optional<AllocationInfo> remove(DevicePtr base);
  // The live allocation that contains `address`.
  [[nodiscard]] std::optional<AllocationInfo> containing(std::uint64_t address) const;
  [[nodiscard]] bool is_live(std::uint64_t id) const;

  [[nodiscard]] std::uint64_t live_bytes() const;
  [[nodiscard]] std::uint64_t live_count() const;
  // Grows with every removal: an unchanged value means that everything seen live still is.
  [[nodiscard]] std::uint64_t removals() const;
  [[nodiscard]] std::vector<AllocationInfo> entries() const;
  [[nodiscard]] std::vector<AllocationSiteReport> report(std::size_t top, std::uint64_t min_bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, AllocationInfo> by_base_;
  std::map<std::uint64_t, std::uint64_t> base_by_id_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t removals_ = 0;
};

}  // namespace metrale::gpu
