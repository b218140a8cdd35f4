// SPDX-License-Identifier: Apache-2.0
// Tree::check_invariants: what must hold between any two calls, worked out again from the nodes alone.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "prefix/tree.h"

namespace metrale::prefix {

std::string Tree::check_invariants() const {
  for (const auto& [name, root] : roots_) {
    const Node& node = nodes_[root];
    if (!node.is_root() || node.root_name != &name) return fmt::format("root {} does not know its key", root);
    if (node.first_child == kNone) return fmt::format("root {} is empty", root);
  }
  if (std::string problem = check_totals(); !problem.empty()) return problem;
  return check_lists();
}

// Walks down from the roots, so what it does not meet is lost, and what it meets too often runs in a circle.
std::string Tree::check_totals() const {
  std::size_t met = 0;
  std::size_t blocks = 0;
  std::size_t evictable = 0;
  std::size_t capacity = 0;
  std::size_t mortal = 0;
  std::size_t pins = 0;
  std::vector<bool> seen(block_cached_.size());
  std::vector<NodeIndex> open;
  for (const auto& entry : roots_) open.push_back(entry.second);
  while (!open.empty()) {
    const NodeIndex index = open.back();
    open.pop_back();
    if (++met > nodes_.num_used()) return "a cycle, or a node in two places";
    if (std::string problem = check_node(index); !problem.empty()) return problem;
    const Node& node = nodes_[index];
    for (std::uint32_t i = 0; i < node.size; ++i) {
      const std::uint32_t block = node.data.block(i);
      if (block >= seen.size() || seen[block])
        return fmt::format("block {} is cached twice or unknown", block);
      seen[block] = true;
    }
    blocks += node.size;
    evictable += node.is_held() ? 0 : node.size;
    capacity += node.data.capacity();
    mortal += node.expires_ns != kNever ? 1 : 0;
    pins += node.pins;
    for (NodeIndex child = node.first_child; child != kNone; child = nodes_[child].next_sibling)
      open.push_back(child);
  }
  if (met != nodes_.num_used())
    return fmt::format("{} nodes of {} hang on no root", nodes_.num_used() - met, met);
  if (children_.size() != met - roots_.size()) return "the table of children has another number of nodes";
  if (seen != block_cached_) return "the set of cached blocks is not what the nodes hold";
  if (blocks != cached_blocks_)
    return fmt::format("{} blocks are cached, {} are counted", blocks, cached_blocks_);
  if (evictable != evictable_blocks_)
    return fmt::format("{} evictable, {} counted", evictable, evictable_blocks_);
  if (capacity != capacity_blocks_)
    return fmt::format("room for {} blocks, {} counted", capacity, capacity_blocks_);
  if (mortal != num_mortal_) return fmt::format("{} mortal nodes, {} counted", mortal, num_mortal_);
  if (pins != num_pins_) return fmt::format("{} pins, {} counted", pins, num_pins_);
  return {};
}

std::string Tree::check_node(NodeIndex index) const {
  const Node& node = nodes_[index];
  std::uint32_t held = 0;
  NodeIndex before = kNone;
  for (NodeIndex child = node.first_child; child != kNone; child = nodes_[child].next_sibling) {
    const Node& below = nodes_[child];
    if (below.parent != index || below.prev_sibling != before)
      return fmt::format("node {} has lost its place", child);
    if (!node.is_root() && (below.priority > node.priority || below.expires_ns > node.expires_ns)) {
      return fmt::format("node {} is kept longer than {} before it", child, index);
    }
    held += below.is_held() ? 1 : 0;
    before = child;
  }
  if (node.is_root()) {
    return node.size == 0 && node.pins == 0 && !node.listed ? ""
                                                            : fmt::format("root {} holds something", index);
  }
  if (node.size == 0 || node.size > node.data.capacity())
    return fmt::format("node {} has no right size", index);
  if (node.depth != nodes_[node.parent].depth + node.size)
    return fmt::format("node {} has a wrong depth", index);
  if (node.held_children != held)
    return fmt::format("node {}: {} held children, not {}", index, held, node.held_children);
  if (node.is_tail() && (node.first_child != kNone || node.size != 1 || node.tail_tokens >= block_size_)) {
    return fmt::format("tail {} is no leaf of one partial block", index);
  }
  const NodeIndex found = node.is_tail() ? find_tail(node.parent, node.data.tokens(), node.tail_tokens)
                                         : find_child(node.parent, node.data.tokens());
  if (found != index) return fmt::format("node {} is not found under its first block", index);
  if (node.listed == node.is_held()) return fmt::format("node {} is held and evictable, or neither", index);
  const bool in_heap = node.expires_ns != kNever && !node.dead;
  if ((node.heap_at != kNone) != in_heap) return fmt::format("node {} and the expiry heap disagree", index);
  if (node.dead && node.expires_ns == kNever) return fmt::format("node {} died of nothing", index);
  return {};
}

std::string Tree::check_lists() const {
  if (!expiry_.is_consistent()) return "the expiry heap is out of order";
  std::vector<std::size_t> rank(nodes_.limit(), 0);
  std::size_t next_rank = 0;
  for (std::size_t list = 0; list < LruLists::kClasses; ++list) {
    NodeIndex before = kNone;
    for (NodeIndex i = lru_.first(list); i != kNone; i = nodes_[i].lru_next) {
      const Node& node = nodes_[i];
      if (rank[i] != 0 || !node.listed) return fmt::format("node {} is in a list by mistake", i);
      if (LruLists::class_of(node) != list || node.lru_prev != before)
        return fmt::format("node {}: wrong list", i);
      rank[i] = ++next_rank;
      before = i;
    }
    if (lru_.last(list) != before) return fmt::format("list {} does not end where it ends", list);
  }
  for (NodeIndex i = 0; i < nodes_.limit(); ++i) {
    const Node& node = nodes_[i];
    if (node.listed && rank[i] == 0) return fmt::format("node {} is in no list", i);
    if (rank[i] != 0 && !nodes_[node.parent].is_root() && nodes_[node.parent].listed &&
        rank[node.parent] < rank[i]) {
      return fmt::format("node {} would be evicted after {} before it", i, node.parent);
    }
  }
  return {};
}

}  // namespace metrale::prefix
