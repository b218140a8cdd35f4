// SPDX-License-Identifier: Apache-2.0
// LruLists: the nodes that nobody holds, by class (0: expired, then priorities), least recently used first. A
// node always stands behind everything that hangs on it, in its own class or a lower one; so the first node
// of the lowest class is a leaf.
#pragma once

#include <array>
#include <cstddef>

#include "prefix/node.h"

namespace metrale::prefix {

class LruLists {
 public:
  static constexpr std::size_t kClasses = 1 + kPriorityClasses;

  explicit LruLists(NodeArena& nodes) : nodes_(nodes) {}

  static std::size_t class_of(const Node& node) { return node.dead ? 0 : 1U + node.priority; }

  void push_back(NodeIndex i) noexcept { link(i, lists_[class_of(nodes_[i])].last); }
  // Right behind `other`, whose class it shares.
  void insert_after(NodeIndex i, NodeIndex other) noexcept { link(i, other); }
  // To be called before the node's class changes.
  void erase(NodeIndex i) noexcept {
    Node& node = nodes_[i];
    List& list = lists_[class_of(node)];
    (node.lru_prev == kNone ? list.first : nodes_[node.lru_prev].lru_next) = node.lru_next;
    (node.lru_next == kNone ? list.last : nodes_[node.lru_next].lru_prev) = node.lru_prev;
    node.lru_prev = node.lru_next = kNone;
    node.listed = false;
  }
  [[nodiscard]] NodeIndex victim() const {
    for (const List& list : lists_) {
      if (list.first != kNone) return list.first;
    }
    return kNone;
  }
  [[nodiscard]] NodeIndex first(std::size_t list) const { return lists_[list].first; }
  [[nodiscard]] NodeIndex last(std::size_t list) const { return lists_[list].last; }

 private:
  struct List {
    NodeIndex first = kNone;
    NodeIndex last = kNone;
  };
  void link(NodeIndex i, NodeIndex prev) noexcept {
    Node& node = nodes_[i];
    List& list = lists_[class_of(node)];
    NodeIndex& from_prev = prev == kNone ? list.first : nodes_[prev].lru_next;
    node.lru_prev = prev;
    node.lru_next = from_prev;
    (from_prev == kNone ? list.last : nodes_[from_prev].lru_prev) = i;
    from_prev = i;
    node.listed = true;
  }

  NodeArena& nodes_;
  std::array<List, kClasses> lists_{};
};

}  // namespace metrale::prefix
