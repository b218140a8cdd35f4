// SPDX-License-Identifier: Apache-2.0
// The nodes of the radix tree and the arena they live in. A node is an edge: the blocks from its parent's end
// to its own. Nodes are named by 32-bit indices and never move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <metrale/base/ids.h>
#include <metrale/prefix/types.h>

namespace metrale::prefix {

using NodeIndex = std::uint32_t;
inline constexpr NodeIndex kNone = std::numeric_limits<NodeIndex>::max();
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// The block ids of an edge and behind them its token ids, in one allocation.
class EdgeData {
 public:
  EdgeData() = default;
  // Throws std::bad_alloc.
  EdgeData(std::uint32_t capacity, std::uint32_t block_size)
      : words_(std::make_unique_for_overwrite<std::uint32_t[]>(words(capacity, block_size))),
        capacity_(capacity) {}
  // Empty where there is no memory.
  [[nodiscard]] static EdgeData try_make(std::uint32_t capacity, std::uint32_t block_size) noexcept {
    EdgeData data;
    data.words_.reset(new (std::nothrow) std::uint32_t[words(capacity, block_size)]);
    if (data.words_) data.capacity_ = capacity;
    return data;
  }
  EdgeData(EdgeData&& other) noexcept
      : words_(std::move(other.words_)), capacity_(std::exchange(other.capacity_, 0)) {}
  EdgeData& operator=(EdgeData&& other) noexcept {
    words_ = std::move(other.words_);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }
  EdgeData(const EdgeData&) = delete;
  EdgeData& operator=(const EdgeData&) = delete;
  ~EdgeData() = default;

  [[nodiscard]] std::uint32_t capacity() const { return capacity_; }  // blocks
  [[nodiscard]] std::uint32_t block(std::uint32_t i) const { return words_[i]; }
  [[nodiscard]] const std::uint32_t* tokens() const { return words_.get() + capacity_; }

  // Overwrites blocks [at, at + count) of a buffer of this block size; `blocks` are ids.
  void copy_in(std::uint32_t at, std::uint32_t count, const void* blocks, const std::uint32_t* tokens,
               std::uint32_t block_size) noexcept {
    static_assert(sizeof(BlockId) == sizeof(std::uint32_t) && std::is_trivially_copyable_v<BlockId>);
    std::memcpy(words_.get() + at, blocks, std::size_t{count} * sizeof(std::uint32_t));
    std::memcpy(words_.get() + capacity_ + std::size_t{at} * block_size, tokens,
                std::size_t{count} * block_size * sizeof(std::uint32_t));
  }
  // The only block of a buffer for one, with fewer tokens than it has room for.
  void copy_in_tail(std::uint32_t block, const std::uint32_t* tokens, std::uint32_t count) noexcept {
    words_[0] = block;
    std::memcpy(words_.get() + capacity_, tokens, std::size_t{count} * sizeof(std::uint32_t));
  }
  [[nodiscard]] const std::uint32_t* blocks() const { return words_.get(); }

 private:
  static std::size_t words(std::uint32_t capacity, std::uint32_t block_size) {
    return std::size_t{capacity} * (std::size_t{block_size} + 1);
  }
  std::unique_ptr<std::uint32_t[]> words_;
  std::uint32_t capacity_ = 0;
};

struct Node {
  EdgeData data;
  const std::string* root_name = nullptr;  // roots only: the key of the root map
  std::int64_t expires_ns = kNever;        // of the clock
  NodeIndex parent = kNone;
  NodeIndex first_child = kNone;  // the newest
  NodeIndex next_sibling = kNone;
  NodeIndex prev_sibling = kNone;
  NodeIndex lru_prev = kNone;  // less recently used
  NodeIndex lru_next = kNone;
  std::uint32_t size = 0;   // blocks of the edge; 0 for roots only
  std::uint32_t depth = 0;  // blocks from the root to this end
  std::uint32_t pins = 0;   // handles that end here
  std::uint32_t held_children = 0;
  std::uint32_t heap_at = kNone;  // in the expiry heap
  std::uint32_t hash = 0;         // under which the table of children has it
  std::uint16_t tail_tokens = 0;  // not 0: a partial block, which is a leaf for ever
  std::uint8_t priority = 0;
  bool dead = false;    // seen to have expired
  bool listed = false;  // in an LRU list

  [[nodiscard]] bool is_root() const { return parent == kNone; }
  [[nodiscard]] bool is_tail() const { return tail_tokens != 0; }
  // Pinned, or before something pinned.
  [[nodiscard]] bool is_held() const { return pins != 0 || held_children != 0; }
};

class NodeArena {
 public:
  [[nodiscard]] Node& operator[](NodeIndex i) { return chunks_[i / kChunk][i % kChunk]; }
  [[nodiscard]] const Node& operator[](NodeIndex i) const { return chunks_[i / kChunk][i % kChunk]; }

  // Afterwards `count` calls of make cannot fail. Throws std::bad_alloc.
  void reserve(std::uint32_t count) {
    while (num_free() < count) {
      chunks_.reserve(chunks_.size() + 1);
      chunks_.push_back(std::make_unique<Node[]>(kChunk));
    }
  }
  [[nodiscard]] NodeIndex make() noexcept {
    ++num_used_;
    if (free_ == kNone) return fresh_++;
    const NodeIndex made = free_;
    Node& node = (*this)[made];
    free_ = node.next_sibling;
    node.next_sibling = kNone;
    return made;
  }
  void destroy(NodeIndex i) noexcept {
    --num_used_;
    (*this)[i] = Node();
    (*this)[i].next_sibling = std::exchange(free_, i);
  }
  [[nodiscard]] std::uint32_t num_used() const { return num_used_; }
  // Indices are below it.
  [[nodiscard]] std::uint32_t limit() const { return fresh_; }
  [[nodiscard]] std::size_t bytes() const { return chunks_.size() * kChunk * sizeof(Node); }

 private:
  static constexpr std::uint32_t kChunk = 256;
  [[nodiscard]] std::uint32_t num_free() const {
    return static_cast<std::uint32_t>(chunks_.size()) * kChunk - num_used_;
  }

  std::vector<std::unique_ptr<Node[]>> chunks_;
  NodeIndex free_ = kNone;  // linked by next_sibling
  NodeIndex fresh_ = 0;
  std::uint32_t num_used_ = 0;
};

}  // namespace metrale::prefix
