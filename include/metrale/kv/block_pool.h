// SPDX-License-Identifier: Apache-2.0
// BlockPool: which KV blocks are free and how many users each other one has. Pure host logic; alloc and free
// are O(1). Not thread-safe: its owner (the scheduler) is the only caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/call_site.h>
#include <metrale/base/ids.h>

namespace metrale::kv {

// One step in a block's life, kept when tracing.
struct BlockEvent {
  std::string_view operation;  // "alloc", "inc_ref", "dec_ref"
  std::uint32_t count_after = 0;
  CallSite site;
};

class BlockPool {
 public:
  // All blocks start free; block 0 is handed out first. `trace` keeps each block's last events for error
  // messages.
  explicit BlockPool(std::uint32_t num_blocks, bool trace = false);

  // The block freed last, with a count of 1; empty when none is free.
  [[nodiscard]] std::optional<BlockId> try_alloc(CallSite site = CallSite::here());
  // Throws InvalidArgument for a block that is free or unknown, or has 2^32 - 1 users.
  void inc_ref(BlockId block, CallSite site = CallSite::here());
  // True where this was the last reference and the block is free now. Throws InvalidArgument, changing
  // nothing, for a block that is free already or unknown.
  bool dec_ref(BlockId block, CallSite site = CallSite::here());

  [[nodiscard]] std::uint32_t ref_count(BlockId block) const;
  [[nodiscard]] std::uint32_t num_blocks() const { return static_cast<std::uint32_t>(counts_.size()); }
  [[nodiscard]] std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  // Oldest first; empty when not tracing.
  [[nodiscard]] std::vector<BlockEvent> history(BlockId block) const;
  // Forgets every block: afterwards the pool has none.
  void clear();

 private:
  void record(BlockId block, std::string_view operation, CallSite site);
  [[noreturn]] void misuse(BlockId block, std::string_view operation, CallSite site) const;

  std::vector<std::uint32_t> free_;    // a stack: the back is next
  std::vector<std::uint32_t> counts_;  // 0: free
  std::vector<std::vector<BlockEvent>> events_;
};

}  // namespace metrale::kv
