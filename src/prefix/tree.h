// SPDX-License-Identifier: Apache-2.0
// Tree: the radix tree itself, without locks and handles. What allocates happens before what changes: a call
// that throws has changed nothing that can be observed (an edge may have been split in two, which means the
// same).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <metrale/prefix/radix_tree.h>

#include "prefix/child_table.h"
#include "prefix/expiry_heap.h"
#include "prefix/lru_lists.h"
#include "prefix/node.h"

namespace metrale::prefix {

// What a lookup found, pinned.
struct Found {
  NodeIndex end = kNone;
  NodeIndex tail_end = kNone;
  std::vector<BlockId> blocks;
  std::optional<SharedTail> tail;
};

class Tree {
 public:
  Tree(const RadixTreeConfig& config, const Clock& clock);
  Tree(const Tree&) = delete;  // its parts refer to each other
  Tree& operator=(const Tree&) = delete;
  ~Tree() = default;

  [[nodiscard]] Found lookup(const PrefixKey& key, std::span<const TokenId> tokens, bool counted);
  [[nodiscard]] std::size_t peek(const PrefixKey& key, std::span<const TokenId> tokens) const;
  // `end` and `names` are the caller's pin and its block ids, or null.
  [[nodiscard]] InsertAcquired insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                      std::span<const BlockId> blocks, NodeIndex* end,
                                      std::vector<BlockId>* names, const Retention& retention);
  [[nodiscard]] std::vector<BlockId> evict(std::size_t count);
  void pin(NodeIndex node) noexcept;
  void unpin(NodeIndex node) noexcept;

  [[nodiscard]] std::size_t evictable_blocks() const { return evictable_blocks_; }
  [[nodiscard]] std::size_t cached_blocks() const { return cached_blocks_; }
  [[nodiscard]] std::size_t num_pins() const { return num_pins_; }
  [[nodiscard]] const PrefixCounters& counters() const { return counters_; }
  [[nodiscard]] bool contains_block(BlockId block) const {
    return block.value() < block_cached_.size() && block_cached_[block.value()];
  }
  [[nodiscard]] std::size_t overhead_bytes() const;
  [[nodiscard]] std::string check_invariants() const;

 private:
  static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::min();  // every node lives
  static constexpr std::size_t kTailCandidates = 8;  // children looked at for a shared start

  // A place on an edge: behind `part` blocks of `node`, `depth` blocks from the root.
  struct Place {
    NodeIndex node = kNone;
    std::uint32_t part = 0;
    std::uint32_t depth = 0;
  };
  // What an insert is going to do, worked out before anything is allocated.
  struct Plan;

  static std::string root_name(const PrefixKey& key);
  [[nodiscard]] NodeIndex find_root(const PrefixKey& key) const;
  [[nodiscard]] std::uint32_t hash(NodeIndex parent, const std::uint32_t* tokens, std::uint32_t count) const;
  [[nodiscard]] NodeIndex find_child(NodeIndex parent, const std::uint32_t* tokens) const;
  [[nodiscard]] NodeIndex find_tail(NodeIndex parent, const std::uint32_t* tokens, std::uint32_t count) const;
  // As far as whole blocks match and nodes live at `now_ns`.
  [[nodiscard]] Place walk(NodeIndex root, const std::uint32_t* tokens, std::uint32_t num_blocks,
                           std::int64_t now_ns) const;
  // The child that shares most of the `count` tokens, and how many; fewer than a block.
  [[nodiscard]] std::pair<NodeIndex, std::uint32_t> best_tail(NodeIndex parent, const std::uint32_t* tokens,
                                                              std::size_t count, std::int64_t now_ns) const;
  // The ids of all blocks up to the node's end, which is names.size() deep.
  void name_blocks(NodeIndex node, std::span<BlockId> names) const;
  [[nodiscard]] std::int64_t now_ns() const { return clock_.now().count(); }
  [[nodiscard]] std::int64_t now_if_needed() const { return num_mortal_ != 0 ? now_ns() : kAnyTime; }

  // Cuts an edge in two; the node keeps the lower part, with its pins and children. Returns the new upper
  // one.
  NodeIndex split(NodeIndex node, std::uint32_t at);
  void link_child(NodeIndex parent, NodeIndex child) noexcept;
  void unlink_child(NodeIndex child) noexcept;
  void remove(NodeIndex node) noexcept;
  void cut_end(NodeIndex node, std::uint32_t count) noexcept;
  void set_expiry(Node& node, NodeIndex index, std::int64_t expires_ns) noexcept;
  void bury_expired(std::int64_t now) noexcept;

  void plan_tail(Plan& plan) const;
  void plan_replaced(Plan& plan) const;
  void plan_duplicates(Plan& plan, std::span<const BlockId> names) const;
  void check_match(const Plan& plan) const;
  void check_adopted(const Plan& plan);
  [[nodiscard]] bool can_extend(const Plan& plan) const;
  void allocate(Plan& plan, const PrefixKey& key);
  void grow(Plan& plan, std::uint32_t added);
  void apply(Plan& plan) noexcept;
  NodeIndex attach(const Plan& plan, NodeIndex parent, EdgeData&& data, std::uint32_t tail_tokens) noexcept;
  void extend(Plan& plan, NodeIndex node) noexcept;
  void touch_path(const Plan& plan, NodeIndex deepest) noexcept;
  void move_match(const Plan& plan, NodeIndex end) noexcept;

  // tree_check.cpp
  [[nodiscard]] std::string check_node(NodeIndex index) const;
  [[nodiscard]] std::string check_totals() const;
  [[nodiscard]] std::string check_lists() const;

  std::uint32_t block_size_;
  std::uint64_t hash_seed_;
  std::uint64_t (*hash_)(std::span<const std::byte>, std::uint64_t);
  const Clock& clock_;

  NodeArena nodes_;
  ChildTable children_;
  LruLists lru_{nodes_};
  ExpiryHeap expiry_{nodes_};
  std::unordered_map<std::string, NodeIndex> roots_;
  std::vector<bool> block_cached_;

  std::size_t cached_blocks_ = 0;
  std::size_t evictable_blocks_ = 0;
  std::size_t capacity_blocks_ = 0;  // of all edges
  std::size_t num_mortal_ = 0;       // nodes with an end of life
  std::size_t num_pins_ = 0;
  PrefixCounters counters_;
};

// Token ids compare as bits.
[[nodiscard]] inline const std::uint32_t* as_words(std::span<const TokenId> tokens) {
  return reinterpret_cast<const std::uint32_t*>(tokens.data());
}

// How many tokens two sequences share at their start.
[[nodiscard]] std::size_t common_tokens(const std::uint32_t* a, const std::uint32_t* b, std::size_t count);

}  // namespace metrale::prefix
