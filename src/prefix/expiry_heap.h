// SPDX-License-Identifier: Apache-2.0
// ExpiryHeap: the nodes that have an end of life, soonest first; of those that end together the deeper one,
// so that a node never comes before what hangs on it. Each node knows its place (heap_at).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "prefix/node.h"

namespace metrale::prefix {

class ExpiryHeap {
 public:
  explicit ExpiryHeap(NodeArena& nodes) : nodes_(nodes) {}

  // Afterwards push cannot fail while the heap has fewer than `total` nodes. Throws std::bad_alloc.
  void reserve(std::size_t total);
  void push(NodeIndex node) noexcept;
  void erase(NodeIndex node) noexcept;
  // To be called after the node's end of life or depth has changed.
  void update(NodeIndex node) noexcept;
  [[nodiscard]] NodeIndex top() const { return heap_.empty() ? kNone : heap_.front(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  [[nodiscard]] std::size_t bytes() const { return heap_.capacity() * sizeof(NodeIndex); }
  [[nodiscard]] bool is_consistent() const;

 private:
  [[nodiscard]] bool before(NodeIndex a, NodeIndex b) const;
  void put(std::size_t at, NodeIndex node) noexcept;
  void sift_up(std::size_t at) noexcept;
  void sift_down(std::size_t at) noexcept;

  NodeArena& nodes_;
  std::vector<NodeIndex> heap_;
};

}  // namespace metrale::prefix
