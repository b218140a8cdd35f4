// SPDX-License-Identifier: Apache-2.0
// PrefixCache: finds the KV blocks of a prompt that somebody computed before. It stores block ids and token
// ids, never bytes; the references it holds are told to the caller, who owns the pool.
//
//   Match match = cache.lookup(key, prompt);                    // pins what it found
//   Reservation mine = cache.reserve(key, prompt, block_table); // nothing of it can be found yet
//   ... compute from match.matched_tokens() on ...
//   const InsertAcquired acquired = mine.commit();              // now it can; settle the references
//   ... when the pool is short: for (BlockId block : cache.evict(shortfall)) pool.dec_ref(block);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/prefix/types.h>

namespace metrale::prefix {

class PrefixCache;

// A cached block whose first tokens are the next tokens of the prompt. It is somebody else's: copy the first
// `tokens` positions into a block of your own, and call tail_copied().
struct SharedTail {
  BlockId block;
  std::uint32_t tokens = 0;  // at least 1, fewer than a block
};

// The pins of one lookup: while it lives, the blocks it names stay cached. Dropping it gives back exactly
// those pins. Move-only; used by one thread at a time, dropped on any. The cache outlives it.
class Match {
 public:
  Match() = default;
  Match(Match&& other) noexcept { swap(other); }
  Match& operator=(Match&& other) noexcept {
    Match(std::move(other)).swap(*this);
    return *this;
  }
  Match(const Match&) = delete;
  Match& operator=(const Match&) = delete;
  ~Match() { release(); }

  [[nodiscard]] std::size_t matched_tokens() const { return blocks_.size() * block_size_; }
  // The cached full blocks in prompt order: matched_tokens() / block_size of them.
  [[nodiscard]] std::span<const BlockId> blocks() const { return blocks_; }
  // Pinned until tail_copied() or release().
  [[nodiscard]] const std::optional<SharedTail>& tail() const { return tail_; }
  void tail_copied() noexcept;

  // The same pins once more, for a sequence that goes on from here; without the tail.
  [[nodiscard]] Match fork() const;
  // Idempotent.
  void release() noexcept;

 private:
  friend class PrefixCache;
  friend class RadixTree;
  static constexpr std::uint32_t kNothing = 0xFFFF'FFFF;

  void swap(Match& other) noexcept;

  PrefixCache* cache_ = nullptr;
  std::uint32_t block_size_ = 0;
  std::uint32_t end_ = kNothing;       // the cache's name for where the match ends
  std::uint32_t tail_end_ = kNothing;  // and for the block to copy from
  std::vector<BlockId> blocks_;
  std::optional<SharedTail> tail_;
};

// A publication under way: its tokens and blocks are known, and nothing of them can be found before publish()
// or commit(). Dropped before that, it leaves no trace. What it published, and the cached prefix before it,
// stays pinned while it lives. Move-only; used by one thread at a time. The cache outlives it.
class Reservation {
 public:
  Reservation() = default;

  // Makes the full blocks within the first `ready_tokens` findable: their bytes are there. To be called again
  // as more get ready; below an earlier call's count it does nothing new. Throws InvalidArgument where the
  // reservation is closed or has fewer tokens, and whatever insert() throws; it can be called again then.
  [[nodiscard]] InsertAcquired publish(std::size_t ready_tokens);
  // Publishes everything, the partial last block too where it was given, and closes.
  [[nodiscard]] InsertAcquired commit();
  // Nothing more becomes findable. Idempotent; what was published stays cached.
  void roll_back() noexcept;
  [[nodiscard]] bool is_open() const { return cache_ != nullptr; }

 private:
  friend class PrefixCache;
  InsertAcquired insert(std::size_t num_tokens, std::size_t num_blocks);

  struct NotOwned {
    void operator()(PrefixCache*) const noexcept {}
  };
  std::unique_ptr<PrefixCache, NotOwned> cache_;  // a pointer that is null once moved from
  std::string tenant_salt_;
  std::string adapter_;
  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  Retention retention_;
  Match pins_;
};

// All calls are thread-safe: requests are submitted and cancelled on threads of their own, and a handle
// dropped there must not wait for the scheduler's next step. An implementation locks inside and calls nothing
// of the caller's there.
class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // False where nothing is ever found; then block tables need not be kept for publication.
  [[nodiscard]] bool is_active() const { return do_is_active(); }
  [[nodiscard]] std::uint32_t block_size() const { return block_size_; }

  // The longest cached prefix in full blocks, pinned; and where the next block starts as a cached one does,
  // that one as tail(). A model needs at least one token to compute: leave the last one out to be sure of it.
  [[nodiscard]] Match lookup(const PrefixKey& key, std::span<const TokenId> tokens);
  // As lookup, without the tail and without being counted: keeps a prefix for as long as the handle lives.
  [[nodiscard]] Match pin(const PrefixKey& key, std::span<const TokenId> tokens);
  // How many tokens lookup would match. No pins, no recency, no counters.
  [[nodiscard]] std::size_t peek(const PrefixKey& key, std::span<const TokenId> tokens) const;

  // Publishes tokens whose bytes are in `blocks`: one block for each full block of tokens, and one more for
  // the partial last block where that shall be shared too. A block is read-only once given: a sequence that
  // goes on within a tail copies it first, as any other reader does. `matched` is the sequence's handle or
  // null; it must match a prefix of `tokens` under `key`, and afterwards pins (and names) all the full blocks
  // of `tokens`. Throws InvalidArgument, having changed nothing, for a wrong count of blocks, a block unknown
  // to the pool, given twice or cached elsewhere, or a handle of another prefix; std::bad_alloc likewise.
  [[nodiscard]] InsertAcquired insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                      std::span<const BlockId> blocks, Match* matched = nullptr,
                                      const Retention& retention = {});
  // The first half of a two-phase insert; arguments are copied. Throws as insert does for wrong counts.
  [[nodiscard]] Reservation reserve(const PrefixKey& key, std::span<const TokenId> tokens,
                                    std::span<const BlockId> blocks, const Retention& retention = {});

  // Up to `count` blocks whose cache reference ends: give each one back to the pool. Expired prefixes go
  // first, then lower classes, then what was used least recently, from the ends of prefixes. Pinned blocks
  // never go.
  [[nodiscard]] std::vector<BlockId> evict(std::size_t count) { return do_evict(count); }
  // How many blocks evict could return now. Exact, O(1).
  [[nodiscard]] std::size_t evictable_blocks() const { return do_evictable_blocks(); }
  [[nodiscard]] std::size_t cached_blocks() const { return do_cached_blocks(); }
  [[nodiscard]] PrefixCounters counters() const { return do_counters(); }

 protected:
  explicit PrefixCache(std::uint32_t block_size) : block_size_(block_size) {
    expects(block_size >= 1 && block_size <= 4096, "prefix cache: block_size must be 1 to 4096 tokens");
  }

  enum class LookupKind : std::uint8_t { kCounted, kPinOnly };

 private:
  friend class Match;

  void check_blocks(std::span<const TokenId> tokens, std::span<const BlockId> blocks,
                    const Retention& retention) const;

  [[nodiscard]] virtual bool do_is_active() const = 0;
  [[nodiscard]] virtual Match do_lookup(const PrefixKey& key, std::span<const TokenId> tokens,
                                        LookupKind kind) = 0;
  [[nodiscard]] virtual std::size_t do_peek(const PrefixKey& key, std::span<const TokenId> tokens) const = 0;
  [[nodiscard]] virtual InsertAcquired do_insert(const PrefixKey& key, std::span<const TokenId> tokens,
                                                 std::span<const BlockId> blocks, Match* matched,
                                                 const Retention& retention) = 0;
  [[nodiscard]] virtual std::vector<BlockId> do_evict(std::size_t count) = 0;
  [[nodiscard]] virtual std::size_t do_evictable_blocks() const = 0;
  [[nodiscard]] virtual std::size_t do_cached_blocks() const = 0;
  [[nodiscard]] virtual PrefixCounters do_counters() const = 0;
  // One more pin, one pin less at a place that a match ends in.
  virtual void do_pin(std::uint32_t end) noexcept = 0;
  virtual void do_unpin(std::uint32_t end) noexcept = 0;

  std::uint32_t block_size_;
};

}  // namespace metrale::prefix
