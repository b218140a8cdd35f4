// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <metrale/base/assert.h>
#include <metrale/prefix/radix_tree.h>

#include "prefix/tree.h"

namespace metrale::prefix {

using Lock = std::lock_guard<std::mutex>;

RadixTree::RadixTree(const RadixTreeConfig& config, const Clock& clock) : PrefixCache(config.block_size) {
  expects(config.num_blocks > 0, "radix tree: num_blocks must be the size of the block pool, it is 0");
  expects(config.hash != nullptr, "radix tree: no hash function");
  tree_ = std::make_unique<Tree>(config, clock);
}

RadixTree::~RadixTree() {
  METRALE_ASSERT(tree_->num_pins() == 0);  // a handle has outlived its cache
}

bool RadixTree::contains_block(BlockId block) const {
  const Lock lock(mutex_);
  return tree_->contains_block(block);
}

std::size_t RadixTree::overhead_bytes() const {
  const Lock lock(mutex_);
  return tree_->overhead_bytes();
}

std::string RadixTree::check_invariants() const {
  const Lock lock(mutex_);
  return tree_->check_invariants();
}

Match RadixTree::do_lookup(const PrefixKey& key, std::span<const TokenId> tokens, LookupKind kind) {
  Found found;
  {
    const Lock lock(mutex_);
    found = tree_->lookup(key, tokens, kind == LookupKind::kCounted);
  }
  Match match;
  match.cache_ = this;
  match.block_size_ = block_size();
  match.end_ = found.end;
  match.tail_end_ = found.tail_end;
  match.blocks_ = std::move(found.blocks);
  match.tail_ = found.tail;
  return match;
}

std::size_t RadixTree::do_peek(const PrefixKey& key, std::span<const TokenId> tokens) const {
  const Lock lock(mutex_);
  return tree_->peek(key, tokens);
}

InsertAcquired RadixTree::do_insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                    std::span<const BlockId> blocks, Match* matched,
                                    const Retention& retention) {
  const Lock lock(mutex_);
  if (matched == nullptr) return tree_->insert(key, tokens, blocks, nullptr, nullptr, retention);
  InsertAcquired acquired = tree_->insert(key, tokens, blocks, &matched->end_, &matched->blocks_, retention);
  matched->cache_ = this;
  matched->block_size_ = block_size();
  return acquired;
}

std::vector<BlockId> RadixTree::do_evict(std::size_t count) {
  const Lock lock(mutex_);
  return tree_->evict(count);
}

std::size_t RadixTree::do_evictable_blocks() const {
  const Lock lock(mutex_);
  return tree_->evictable_blocks();
}

std::size_t RadixTree::do_cached_blocks() const {
  const Lock lock(mutex_);
  return tree_->cached_blocks();
}

PrefixCounters RadixTree::do_counters() const {
  const Lock lock(mutex_);
  return tree_->counters();
}

void RadixTree::do_pin(std::uint32_t end) noexcept {
  const Lock lock(mutex_);
  tree_->pin(end);
}

void RadixTree::do_unpin(std::uint32_t end) noexcept {
  const Lock lock(mutex_);
  tree_->unpin(end);
}

}  // namespace metrale::prefix
