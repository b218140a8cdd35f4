// SPDX-License-Identifier: Apache-2.0
#include "prefix/tree.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include <metrale/base/assert.h>

namespace metrale::prefix {
namespace {

void append_part(std::string& name, char tag, std::string_view part) {
  name += tag;
  const std::uint64_t length = part.size();
  name.append(reinterpret_cast<const char*>(&length), sizeof(length));
  name += part;
}

// From `at` on in whole steps, as long as they are equal. A step's comparisons do not wait for each other.
template <std::size_t kStep>
std::size_t skip_equal(const std::uint32_t* a, const std::uint32_t* b, std::size_t at, std::size_t count) {
  for (; at + kStep <= count; at += kStep) {
    std::uint32_t differing = 0;
    for (std::size_t i = 0; i < kStep; ++i) differing |= a[at + i] ^ b[at + i];
    if (differing != 0) break;
  }
  return at;
}

}  // namespace

std::size_t common_tokens(const std::uint32_t* a, const std::uint32_t* b, std::size_t count) {
  std::size_t at = skip_equal<128>(a, b, 0, count);
  at = skip_equal<16>(a, b, at, count);
  return skip_equal<1>(a, b, at, count);
}

Tree::Tree(const RadixTreeConfig& config, const Clock& clock)
    : block_size_(config.block_size),
      hash_seed_(config.hash_seed),
      hash_(config.hash),
      clock_(clock),
      block_cached_(config.num_blocks) {}

// ---- finding

std::string Tree::root_name(const PrefixKey& key) {
  std::string name;
  name.reserve(key.tenant_salt.size() + key.adapter.size() + 2 * (1 + sizeof(std::uint64_t)));
  append_part(name, 'T', key.tenant_salt);
  append_part(name, 'A', key.adapter);
  return name;
}

NodeIndex Tree::find_root(const PrefixKey& key) const {
  if (roots_.empty()) return kNone;
  const auto found = roots_.find(root_name(key));
  return found == roots_.end() ? kNone : found->second;
}

std::uint32_t Tree::hash(NodeIndex parent, const std::uint32_t* tokens, std::uint32_t count) const {
  const std::uint64_t seed = hash_seed_ + (std::uint64_t{parent} + 1) * 0x9E37'79B9'7F4A'7C15;
  const std::uint64_t full = hash_(std::as_bytes(std::span(tokens, count)), seed);
  return static_cast<std::uint32_t>(full ^ (full >> 32));
}

NodeIndex Tree::find_child(NodeIndex parent, const std::uint32_t* tokens) const {
  return children_.find(hash(parent, tokens, block_size_), [&](NodeIndex i) {
    const Node& node = nodes_[i];
    return node.parent == parent && !node.is_tail() &&
           std::memcmp(node.data.tokens(), tokens, block_size_ * sizeof(std::uint32_t)) == 0;
  });
}

NodeIndex Tree::find_tail(NodeIndex parent, const std::uint32_t* tokens, std::uint32_t count) const {
  return children_.find(hash(parent, tokens, count), [&](NodeIndex i) {
    const Node& node = nodes_[i];
    return node.parent == parent && node.tail_tokens == count &&
           std::memcmp(node.data.tokens(), tokens, count * sizeof(std::uint32_t)) == 0;
  });
}

Tree::Place Tree::walk(NodeIndex root, const std::uint32_t* tokens, std::uint32_t num_blocks,
                       std::int64_t now_ns) const {
  Place place{root, 0, 0};
  while (place.depth < num_blocks) {
    const std::uint32_t* rest = tokens + std::size_t{place.depth} * block_size_;
    const NodeIndex child = find_child(place.node, rest);
    if (child == kNone || nodes_[child].expires_ns <= now_ns) break;
    const Node& node = nodes_[child];
    const std::size_t count = std::size_t{std::min(node.size, num_blocks - place.depth)} * block_size_;
    const auto same =
        static_cast<std::uint32_t>(common_tokens(node.data.tokens(), rest, count) / block_size_);
    place = {child, same, place.depth + same};
    if (same < node.size) break;
  }
  return place;
}

std::pair<NodeIndex, std::uint32_t> Tree::best_tail(NodeIndex parent, const std::uint32_t* tokens,
                                                    std::size_t count, std::int64_t now_ns) const {
  std::pair<NodeIndex, std::uint32_t> best{kNone, 0};
  NodeIndex child = nodes_[parent].first_child;
  for (std::size_t i = 0; i < kTailCandidates && child != kNone; ++i, child = nodes_[child].next_sibling) {
    const Node& node = nodes_[child];
    if (node.expires_ns <= now_ns) continue;
    const std::size_t length = node.is_tail() ? node.tail_tokens : block_size_;
    const auto same =
        static_cast<std::uint32_t>(common_tokens(node.data.tokens(), tokens, std::min(length, count)));
    if (same > best.second) best = {child, same};
  }
  return best;
}

void Tree::name_blocks(NodeIndex node, std::span<BlockId> names) const {
  for (; !nodes_[node].is_root(); node = nodes_[node].parent) {
    const Node& edge = nodes_[node];
    const std::span<BlockId> part = names.subspan(edge.depth - edge.size, edge.size);
    for (std::uint32_t i = 0; i < edge.size; ++i) part[i] = BlockId(edge.data.block(i));
  }
}

Found Tree::lookup(const PrefixKey& key, std::span<const TokenId> tokens, bool counted) {
  Found found;
  const NodeIndex root = find_root(key);
  const std::int64_t now = now_if_needed();
  if (root != kNone) {
    const std::uint32_t* words = as_words(tokens);
    Place place = walk(root, words, static_cast<std::uint32_t>(tokens.size() / block_size_), now);
    if (place.part < nodes_[place.node].size) place.node = split(place.node, place.part);
    NodeIndex next = kNone;  // the child that the rest shares most with
    std::uint32_t shared = 0;
    const std::uint32_t* rest = words + std::size_t{place.depth} * block_size_;
    const std::size_t num_rest = tokens.size() - std::size_t{place.depth} * block_size_;
    if (counted && num_rest > 0) std::tie(next, shared) = best_tail(place.node, rest, num_rest, now);
    if (shared > 0 && nodes_[next].size > 1) next = split(next, 1);
    found.blocks.resize(place.depth);
    name_blocks(place.node, found.blocks);
    if (place.depth > 0) pin(found.end = place.node);
    if (shared > 0) {
      pin(found.tail_end = next);
      found.tail = SharedTail{BlockId(nodes_[next].data.block(0)), shared};
    }
  }
  if (counted) {
    ++counters_.lookups;
    counters_.lookup_tokens += tokens.size();
    counters_.hits += found.end != kNone ? 1 : 0;
    counters_.hit_tokens += found.blocks.size() * block_size_;
    counters_.tail_hits += found.tail ? 1 : 0;
    counters_.tail_tokens += found.tail ? found.tail->tokens : 0;
  }
  return found;
}

std::size_t Tree::peek(const PrefixKey& key, std::span<const TokenId> tokens) const {
  const NodeIndex root = find_root(key);
  if (root == kNone) return 0;
  const auto num_blocks = static_cast<std::uint32_t>(tokens.size() / block_size_);
  return std::size_t{walk(root, as_words(tokens), num_blocks, now_if_needed()).depth} * block_size_;
}

// ---- pins

void Tree::pin(NodeIndex index) noexcept {
  ++num_pins_;
  const bool was_held = nodes_[index].is_held();
  ++nodes_[index].pins;
  if (was_held) return;
  for (;;) {
    lru_.erase(index);
    evictable_blocks_ -= nodes_[index].size;
    index = nodes_[index].parent;
    Node& parent = nodes_[index];
    if (parent.is_root()) return;
    if (parent.is_held()) {
      ++parent.held_children;
      return;
    }
    ++parent.held_children;
  }
}

void Tree::unpin(NodeIndex index) noexcept {
  METRALE_ASSERT(nodes_[index].pins > 0);
  --num_pins_;
  --nodes_[index].pins;
  while (!nodes_[index].is_held()) {
    lru_.push_back(index);
    evictable_blocks_ += nodes_[index].size;
    index = nodes_[index].parent;
    if (nodes_[index].is_root()) return;
    --nodes_[index].held_children;
  }
}

// ---- shape

NodeIndex Tree::split(NodeIndex index, std::uint32_t at) {
  Node& lower = nodes_[index];
  METRALE_ASSERT(at > 0 && at < lower.size);
  EdgeData upper_data(at, block_size_);
  EdgeData lower_data(lower.size - at, block_size_);
  nodes_.reserve(1);
  children_.reserve(1);
  expiry_.reserve(num_mortal_ + 1);

  const std::uint32_t* lower_tokens = lower.data.tokens() + std::size_t{at} * block_size_;
  upper_data.copy_in(0, at, lower.data.blocks(), lower.data.tokens(), block_size_);
  lower_data.copy_in(0, lower.size - at, lower.data.blocks() + at, lower_tokens, block_size_);
  capacity_blocks_ = capacity_blocks_ - lower.data.capacity() + lower.size;
  const NodeIndex upper_index = nodes_.make();
  Node& upper = nodes_[upper_index];
  upper.data = std::move(upper_data);
  upper.size = at;
  upper.depth = lower.depth - lower.size + at;
  upper.priority = lower.priority;
  upper.dead = lower.dead;
  upper.held_children = lower.is_held() ? 1 : 0;
  upper.hash = lower.hash;
  children_.replace(lower.hash, index, upper_index);

  const NodeIndex parent = lower.parent;
  unlink_child(index);
  link_child(parent, upper_index);
  lower.data = std::move(lower_data);
  lower.size -= at;
  lower.hash = hash(upper_index, lower.data.tokens(), block_size_);
  children_.insert(lower.hash, index);
  link_child(upper_index, index);
  set_expiry(upper, upper_index, lower.expires_ns);
  if (lower.listed) lru_.insert_after(upper_index, index);
  return upper_index;
}

void Tree::link_child(NodeIndex parent, NodeIndex child) noexcept {
  Node& node = nodes_[child];
  node.parent = parent;
  node.prev_sibling = kNone;
  node.next_sibling = std::exchange(nodes_[parent].first_child, child);
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = child;
}

void Tree::unlink_child(NodeIndex child) noexcept {
  const Node& node = nodes_[child];
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = node.prev_sibling;
  (node.prev_sibling == kNone ? nodes_[node.parent].first_child : nodes_[node.prev_sibling].next_sibling) =
      node.next_sibling;
}

void Tree::remove(NodeIndex index) noexcept {
  Node& node = nodes_[index];
  const NodeIndex parent = node.parent;
  children_.erase(node.hash, index);
  lru_.erase(index);
  set_expiry(node, index, kNever);
  unlink_child(index);
  capacity_blocks_ -= node.data.capacity();
  nodes_.destroy(index);
  const Node& above = nodes_[parent];
  if (above.is_root() && above.first_child == kNone) {
    roots_.erase(roots_.find(*above.root_name));
    nodes_.destroy(parent);
  }
}

void Tree::set_expiry(Node& node, NodeIndex index, std::int64_t expires_ns) noexcept {
  if (node.expires_ns != kNever) --num_mortal_;
  if (expires_ns != kNever) ++num_mortal_;
  node.expires_ns = expires_ns;
  const bool wanted = expires_ns != kNever && !node.dead;
  if (wanted && node.heap_at != kNone) expiry_.update(index);
  if (wanted && node.heap_at == kNone) expiry_.push(index);
  if (!wanted && node.heap_at != kNone) expiry_.erase(index);
}

// ---- eviction

void Tree::bury_expired(std::int64_t now) noexcept {
  for (NodeIndex top = expiry_.top(); top != kNone && nodes_[top].expires_ns <= now; top = expiry_.top()) {
    expiry_.erase(top);
    if (nodes_[top].listed) {
      lru_.erase(top);
      nodes_[top].dead = true;
      lru_.push_back(top);
    }
    nodes_[top].dead = true;
  }
}

std::vector<BlockId> Tree::evict(std::size_t count) {
  count = std::min(count, evictable_blocks_);
  std::vector<BlockId> evicted;
  evicted.reserve(count);
  if (expiry_.top() != kNone) bury_expired(now_ns());
  while (evicted.size() < count) {
    const NodeIndex victim = lru_.victim();
    const Node& node = nodes_[victim];
    METRALE_ASSERT(node.first_child == kNone && !node.is_held());
    const auto cut = static_cast<std::uint32_t>(std::min<std::size_t>(node.size, count - evicted.size()));
    for (std::uint32_t i = 0; i < cut; ++i) evicted.emplace_back(node.data.block(node.size - 1 - i));
    if (node.dead) counters_.expired_blocks += cut;
    cut_end(victim, cut);
  }
  counters_.evicted_blocks += evicted.size();
  return evicted;
}

// The last `count` blocks of a leaf that nobody holds.
void Tree::cut_end(NodeIndex index, std::uint32_t count) noexcept {
  Node& node = nodes_[index];
  for (std::uint32_t i = node.size - count; i < node.size; ++i) block_cached_[node.data.block(i)] = false;
  cached_blocks_ -= count;
  evictable_blocks_ -= count;
  node.size -= count;
  node.depth -= count;
  if (node.size == 0) {
    remove(index);
    return;
  }
  if (node.heap_at != kNone) expiry_.update(index);
  if (std::size_t{node.size} * 2 > node.data.capacity()) return;
  // Half of it is air: give that back, or do without where there is no memory for the copy.
  EdgeData shrunk = EdgeData::try_make(node.size, block_size_);
  if (shrunk.capacity() == 0) return;
  shrunk.copy_in(0, node.size, node.data.blocks(), node.data.tokens(), block_size_);
  capacity_blocks_ -= node.data.capacity() - shrunk.capacity();
  node.data = std::move(shrunk);
}

std::size_t Tree::overhead_bytes() const {
  constexpr std::size_t kAllocatorBytes = 16;
  const std::size_t edges = capacity_blocks_ * sizeof(BlockId) + nodes_.num_used() * kAllocatorBytes;
  const std::size_t air = (capacity_blocks_ - cached_blocks_) * block_size_ * sizeof(TokenId);
  return nodes_.bytes() + children_.bytes() + expiry_.bytes() + edges + air + block_cached_.size() / 8;
}

}  // namespace metrale::prefix
