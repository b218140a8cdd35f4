// SPDX-License-Identifier: Apache-2.0
// RadixTree: the prefix cache as a tree of token blocks, path-compressed: an edge holds as many blocks as
// nobody branches off from. docs/prefix.md draws it and says what each call costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/base/hash.h>
#include <metrale/prefix/prefix_cache.h>

namespace metrale::prefix {

class Tree;

struct RadixTreeConfig {
  std::uint32_t block_size = 16;  // tokens
  std::uint32_t num_blocks = 0;   // of the pool: block ids are below it
  // A secret seed keeps a tenant from making lookups slow with colliding prompts. It changes no result:
  // hashes only find, tokens decide.
  std::uint64_t hash_seed = 0;
  std::uint64_t (*hash)(std::span<const std::byte>, std::uint64_t seed) = &hash64;
};

// One mutex guards everything; each call holds it for its own few microseconds.
class RadixTree final : public PrefixCache {
 public:
  // `clock` outlives the tree; it is read only while some prefix has a time to live. Throws InvalidArgument
  // for a config without blocks.
  RadixTree(const RadixTreeConfig& config, const Clock& clock);
  ~RadixTree() override;
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  [[nodiscard]] bool contains_block(BlockId block) const;
  // Bytes held for the tree itself: nodes, table, block ids; token ids of cached blocks are not counted.
  [[nodiscard]] std::size_t overhead_bytes() const;
  // Walks everything. Empty where all is right, or what is wrong first. For tests and audits: O(cached
  // blocks).
  [[nodiscard]] std::string check_invariants() const;

 private:
  [[nodiscard]] bool do_is_active() const override { return true; }
  [[nodiscard]] Match do_lookup(const PrefixKey& key, std::span<const TokenId> tokens,
                                LookupKind kind) override;
  [[nodiscard]] std::size_t do_peek(const PrefixKey& key, std::span<const TokenId> tokens) const override;
  [[nodiscard]] InsertAcquired do_insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                         std::span<const BlockId> blocks, Match* matched,
                                         const Retention& retention) override;
  [[nodiscard]] std::vector<BlockId> do_evict(std::size_t count) override;
  [[nodiscard]] std::size_t do_evictable_blocks() const override;
  [[nodiscard]] std::size_t do_cached_blocks() const override;
  [[nodiscard]] PrefixCounters do_counters() const override;
  void do_pin(std::uint32_t end) noexcept override;
  void do_unpin(std::uint32_t end) noexcept override;

  mutable std::mutex mutex_;
  std::unique_ptr<Tree> tree_;
};

}  // namespace metrale::prefix
