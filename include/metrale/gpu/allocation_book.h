// SPDX-License-Identifier: Apache-2.0
// AllocationBook: the live allocations of every kind that a backend has handed out, and the questions that
// every backend asks of them. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/gpu/ledger.h>
#include <metrale/gpu/types.h>

namespace metrale::gpu {

struct AllocationUse {
  const AllocationLedger* ledger = nullptr;
  AllocationInfo info;
};

class AllocationBook {
 public:
  AllocationLedger device;   // alloc(): what the ledger of the interface shows
  AllocationLedger arena;    // alloc_arena()
  AllocationLedger pinned;   // alloc_pinned(), by device address
  AllocationLedger foreign;  // variables of modules, which nobody frees

  // Takes the allocation whose base is `ptr` off one of them. Throws InvalidArgument naming `call`.
  static AllocationInfo remove(AllocationLedger& ledger, DevicePtr ptr, const char* call);
  // The live allocation of any kind that holds `address`.
  [[nodiscard]] std::optional<AllocationUse> use_of(std::uint64_t address) const;
  // As GpuBackend::allocation_of.
  [[nodiscard]] DeviceRange allocation_of(DevicePtr ptr) const;
  // Throws InvalidArgument naming `what` where the range does not lie in one live allocation.
  void expect_range(DevicePtr ptr, std::uint64_t bytes, const char* what) const;
  // Grows whenever an allocation of any kind dies.
  [[nodiscard]] std::uint64_t removals() const;
};

// Warns of what is still on a ledger that is about to be swept: how much, and the largest call sites.
void warn_of_leaks(const AllocationLedger& ledger);

// The allocations that the nodes of a graph point into.
class GraphUses {
 public:
  // Not thread-safe: while the capture goes on.
  void note(const AllocationBook& book, std::size_t node, std::uint64_t address);
  // Throws InvalidArgument naming the node (as `describe(node)` does) and the allocation where one was freed.
  template <class Describe>
  void check(const AllocationBook& book, const Describe& describe) {
    const std::uint64_t removals = book.removals();
    if (checked_removals_.load() == removals) return;
    if (const NodeUse* freed = find_freed()) throw InvalidArgument(message(*freed, describe(freed->node)));
    checked_removals_.store(removals);
  }

  [[nodiscard]] bool all_live() const { return find_freed() == nullptr; }

  GraphUses() = default;
  ~GraphUses() = default;
  GraphUses(GraphUses&& other) noexcept : uses_(std::move(other.uses_)) {}
  GraphUses& operator=(GraphUses&&) = delete;
  GraphUses(const GraphUses&) = delete;
  GraphUses& operator=(const GraphUses&) = delete;

 private:
  struct NodeUse {
    std::size_t node = 0;  // the first that points into it
    AllocationUse use;
  };
  [[nodiscard]] const NodeUse* find_freed() const;
  [[nodiscard]] static std::string message(const NodeUse& freed, const std::string& description);

  std::vector<NodeUse> uses_;
  std::atomic<std::uint64_t> checked_removals_{0};
};

}  // namespace metrale::gpu
