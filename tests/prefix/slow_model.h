// SPDX-License-Identifier: Apache-2.0
// SlowModel: the prefix cache as anyone would write it down first, a list of (key, tokens up to the block's
// end) with their blocks. Every question is answered by looking at all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/prefix/radix_tree.h>

namespace metrale::prefix {

using Tokens = std::vector<TokenId>;

// What a handle pins: everything up to `end`, and everything up to the block it may copy from.
struct ModelPin {
  std::size_t key = 0;
  Tokens end;
  Tokens tail_end;
};

class SlowModel {
 public:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

  struct Entry {
    std::size_t key = 0;
    Tokens tokens;  // from the root
    BlockId block;
    std::uint8_t priority = 0;
    std::int64_t expires = kForever;
    std::uint64_t used = 0;
  };

  explicit SlowModel(std::uint32_t block_size) : block_size_(block_size) {}

  std::int64_t now = 0;
  std::vector<Entry> entries;

  [[nodiscard]] Entry* find(std::size_t key, const Tokens& tokens) {
    for (Entry& entry : entries) {
      if (entry.key == key && entry.tokens == tokens) return &entry;
    }
    return nullptr;
  }
  static Tokens first(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  static bool starts_with(const Tokens& tokens, const Tokens& start) {
    return tokens.size() >= start.size() && std::equal(start.begin(), start.end(), tokens.begin());
  }
  [[nodiscard]] bool is_tail(const Entry& entry) const { return entry.tokens.size() % block_size_ != 0; }
  [[nodiscard]] bool is_dead(const Entry& entry) const { return entry.expires <= now; }

  [[nodiscard]] std::vector<BlockId> match(std::size_t key, const Tokens& tokens) {
    std::vector<BlockId> blocks;
    for (std::size_t end = block_size_; end <= tokens.size(); end += block_size_) {
      const Entry* entry = find(key, first(tokens, end));
      if (entry == nullptr || is_dead(*entry)) break;
      blocks.push_back(entry->block);
    }
    return blocks;
  }
  // The entries one block behind the first `depth` tokens.
  [[nodiscard]] std::vector<const Entry*> children(std::size_t key, const Tokens& tokens,
                                                   std::size_t depth) const {
    std::vector<const Entry*> found;
    for (const Entry& entry : entries) {
      const bool next = entry.tokens.size() > depth && entry.tokens.size() <= depth + block_size_;
      if (entry.key == key && next && starts_with(entry.tokens, first(tokens, depth)))
        found.push_back(&entry);
    }
    return found;
  }
  // How many tokens behind the first `depth` the entry has in common with `tokens`.
  static std::uint32_t shared(const Entry& entry, const Tokens& tokens, std::size_t depth) {
    std::size_t at = depth;
    while (at < tokens.size() && at < entry.tokens.size() && tokens[at] == entry.tokens[at]) ++at;
    return static_cast<std::uint32_t>(at - depth);
  }

  // A tail is on nobody's way: what goes on with its tokens has a block of its own for them.
  [[nodiscard]] bool is_held(const Entry& entry) const {
    return std::any_of(pins_.begin(), pins_.end(), [&](const ModelPin* pin) {
      if (pin->key != entry.key) return false;
      if (is_tail(entry)) return pin->tail_end == entry.tokens;
      return starts_with(pin->end, entry.tokens) || starts_with(pin->tail_end, entry.tokens);
    });
  }
  [[nodiscard]] bool is_leaf(const Entry& entry) const {
    return is_tail(entry) || std::none_of(entries.begin(), entries.end(), [&](const Entry& other) {
             return other.key == entry.key && other.tokens.size() > entry.tokens.size() &&
                    starts_with(other.tokens, entry.tokens);
           });
  }
  [[nodiscard]] std::size_t num_evictable() const {
    return static_cast<std::size_t>(
        std::count_if(entries.begin(), entries.end(), [&](const Entry& entry) { return !is_held(entry); }));
  }

  void add_pin(const ModelPin* pin) { pins_.push_back(pin); }
  // Changes or removes a pin; what is free after it counts as used now.
  template <class Change>
  void change_pins(Change&& change) {
    std::vector<bool> held;
    for (const Entry& entry : entries) held.push_back(is_held(entry));
    change();
    ++uses_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (held[i] && !is_held(entries[i])) entries[i].used = uses_;
    }
  }
  void remove_pin(const ModelPin* pin) {
    change_pins([&] { std::erase(pins_, pin); });
  }

  // Takes over what the tree says it did, after asking whether it may have done that.
  void insert(std::size_t key, const Tokens& tokens, const std::vector<BlockId>& blocks,
              const Retention& retention, const InsertAcquired& acquired) {
    const std::int64_t expires = retention.ttl ? now + retention.ttl->count() : kForever;
    const std::size_t full = tokens.size() / block_size_;
    std::vector<BlockId> adopted;
    std::vector<DuplicateBlock> duplicates;
    ++uses_;
    for (std::size_t i = 0; i < full; ++i) {
      const Tokens prefix = first(tokens, (i + 1) * block_size_);
      Entry* entry = find(key, prefix);
      if (entry == nullptr) {
        adopted.push_back(blocks[i]);
        entry = &entries.emplace_back(Entry{key, prefix, blocks[i], retention.priority, expires, uses_});
      } else if (entry->block != blocks[i]) {
        duplicates.push_back({static_cast<std::uint32_t>(i), blocks[i], entry->block});
      }
      keep(*entry, retention.priority, expires);
    }
    if (blocks.size() > full) {
      Entry* same = find(key, tokens);
      if (same != nullptr) {
        keep(*same, retention.priority, expires);
        if (same->block != blocks[full]) {
          duplicates.push_back({static_cast<std::uint32_t>(full), blocks[full], same->block});
        }
      } else if (acquired.duplicates.size() > duplicates.size()) {
        const DuplicateBlock cover = acquired.duplicates.back();
        EXPECT_TRUE(covers(key, tokens, full * block_size_, cover.cached))
            << "block " << cover.cached.value();
        duplicates.push_back({static_cast<std::uint32_t>(full), blocks[full], cover.cached});
      } else {
        adopted.push_back(blocks[full]);
        entries.push_back({key, tokens, blocks[full], retention.priority, expires, uses_});
      }
    }
    EXPECT_EQ(acquired.adopted, adopted);
    EXPECT_EQ(acquired.duplicates, duplicates);
    EXPECT_EQ(acquired.cached_tokens, full * block_size_);
    for (const BlockId block : acquired.dropped) drop_tail(key, tokens, block, retention.priority, expires);
  }

  // Removes a victim, which must have been the right one.
  void evict(BlockId block) {
    const Entry* victim = nullptr;
    for (const Entry& entry : entries) {
      if (entry.block == block) victim = &entry;
    }
    ASSERT_NE(victim, nullptr) << "block " << block.value() << " was not cached";
    EXPECT_TRUE(!is_held(*victim) && is_leaf(*victim)) << "block " << block.value();
    for (const Entry& other : entries) {
      if (is_held(other) || !is_leaf(other)) continue;
      EXPECT_LE(rank(*victim), rank(other)) << "block " << block.value() << " before " << other.block.value();
    }
    std::erase_if(entries, [&](const Entry& entry) { return entry.block == block; });
  }

 private:
  // Of two leaves the one with the lower rank goes first.
  [[nodiscard]] std::pair<int, std::uint64_t> rank(const Entry& entry) const {
    if (is_dead(entry)) return {0, 0};
    return {1 + entry.priority, entry.used};
  }
  void keep(Entry& entry, std::uint8_t priority, std::int64_t expires) const {
    entry.priority = std::max(entry.priority, priority);
    entry.expires = std::max(entry.expires, expires);
    if (!is_held(entry)) entry.used = uses_;
  }
  [[nodiscard]] bool covers(std::size_t key, const Tokens& tokens, std::size_t depth, BlockId block) const {
    for (const Entry* child : children(key, tokens, depth)) {
      if (child->block == block) return !is_dead(*child) && starts_with(child->tokens, tokens);
    }
    return false;
  }
  void drop_tail(std::size_t key, const Tokens& tokens, BlockId block, std::uint8_t priority,
                 std::int64_t expires) {
    const auto dropped = std::find_if(entries.begin(), entries.end(),
                                      [&](const Entry& entry) { return entry.block == block; });
    ASSERT_NE(dropped, entries.end()) << "block " << block.value() << " was not cached";
    EXPECT_TRUE(dropped->key == key && is_tail(*dropped) && !is_held(*dropped));
    EXPECT_TRUE(dropped->tokens.size() < tokens.size() && starts_with(tokens, dropped->tokens));
    EXPECT_TRUE(dropped->priority <= priority && dropped->expires <= expires);
    entries.erase(dropped);
  }

  std::uint32_t block_size_;
  std::uint64_t uses_ = 0;
  std::vector<const ModelPin*> pins_;
};

}  // namespace metrale::prefix
