// SPDX-License-Identifier: Apache-2.0
// Tree::insert: plan, check, allocate, and only then change.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "prefix/tree.h"

namespace metrale::prefix {

struct Tree::Plan {
  std::span<const TokenId> tokens;
  std::span<const BlockId> blocks;
  NodeIndex* end = nullptr;               // of the caller's match
  std::vector<BlockId>* names = nullptr;  // of the caller's match
  std::uint8_t priority = 0;
  std::int64_t expires_ns = kNever;

  NodeIndex root = kNone;
  Place place;                                        // as far as the tree has the tokens
  std::uint32_t num_full = 0;                         // full blocks of tokens
  std::uint32_t tail_tokens = 0;                      // of a partial block to be adopted
  NodeIndex same_tail = kNone;                        // the tail that the tree has already
  std::array<NodeIndex, kTailCandidates> replaced{};  // tails that the new blocks continue
  std::size_t num_replaced = 0;

  EdgeData edge;
  EdgeData tail;
  bool extends = false;  // place.node takes the new blocks; `edge` is its new data, or empty where they fit
  InsertAcquired acquired;

  [[nodiscard]] const std::uint32_t* rest(std::uint32_t depth, std::uint32_t block_size) const {
    return as_words(tokens) + std::size_t{depth} * block_size;
  }
  // Blocks to be adopted: the table's last ones, or none.
  [[nodiscard]] std::span<const BlockId> adopted() const {
    return blocks.subspan(place.depth, num_full - place.depth + (tail_tokens != 0 ? 1 : 0));
  }
};

InsertAcquired Tree::insert(const PrefixKey& key, std::span<const TokenId> tokens,
                            std::span<const BlockId> blocks, NodeIndex* end, std::vector<BlockId>* names,
                            const Retention& retention) {
  Plan plan;
  plan.tokens = tokens;
  plan.blocks = blocks;
  plan.end = end;
  plan.names = names;
  plan.priority = retention.priority;
  if (retention.ttl) {
    const std::int64_t now = now_ns();
    plan.expires_ns =
        now + std::min<std::int64_t>(retention.ttl->count(), kNever - 1 - std::max<std::int64_t>(now, 0));
  }
  plan.root = find_root(key);
  plan.num_full = static_cast<std::uint32_t>(tokens.size() / block_size_);
  if (plan.root != kNone) plan.place = walk(plan.root, as_words(tokens), plan.num_full, kAnyTime);
  check_match(plan);

  // Retention, pins and tails begin and end between nodes.
  Place& place = plan.place;
  if (plan.root != kNone && place.part < nodes_[place.node].size) {
    place.node = split(place.node, place.part);
  }
  std::vector<BlockId> present(place.depth);
  if (plan.root != kNone) name_blocks(place.node, present);
  plan_duplicates(plan, present);
  if (blocks.size() > plan.num_full) plan_tail(plan);
  plan_replaced(plan);
  check_adopted(plan);
  allocate(plan, key);
  apply(plan);
  return std::move(plan.acquired);
}

// ---- planning

void Tree::plan_duplicates(Plan& plan, std::span<const BlockId> names) const {
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (plan.blocks[i] != names[i]) plan.acquired.duplicates.push_back({i, plan.blocks[i], names[i]});
  }
}

// The partial block is adopted unless some cached block starts with its tokens and is kept as long.
void Tree::plan_tail(Plan& plan) const {
  const auto count = static_cast<std::uint32_t>(plan.tokens.size() % block_size_);
  plan.tail_tokens = count;
  if (plan.root == kNone || plan.place.depth < plan.num_full) return;
  const std::uint32_t* tokens = plan.rest(plan.num_full, block_size_);
  NodeIndex covering = plan.same_tail = find_tail(plan.place.node, tokens, count);
  if (covering == kNone) {
    const auto [best, shared] = best_tail(plan.place.node, tokens, count, now_if_needed());
    if (shared == count && nodes_[best].priority >= plan.priority &&
        nodes_[best].expires_ns >= plan.expires_ns)
      covering = best;
  }
  if (covering == kNone) return;
  plan.tail_tokens = 0;
  const BlockId given = plan.blocks[plan.num_full];
  const BlockId cached(nodes_[covering].data.block(0));
  if (given != cached) plan.acquired.duplicates.push_back({plan.num_full, given, cached});
}

// Shorter tails at the same place that the new tokens go on from are of no more use.
void Tree::plan_replaced(Plan& plan) const {
  if (plan.root == kNone || plan.adopted().empty()) return;
  const std::uint32_t* tokens = plan.rest(plan.place.depth, block_size_);
  const std::uint32_t count = plan.place.depth < plan.num_full ? block_size_ : plan.tail_tokens;
  NodeIndex child = nodes_[plan.place.node].first_child;
  for (std::size_t i = 0; i < kTailCandidates && child != kNone; ++i, child = nodes_[child].next_sibling) {
    const Node& node = nodes_[child];
    if (!node.is_tail() || node.is_held() || node.tail_tokens >= count) continue;
    if (node.priority > plan.priority || node.expires_ns > plan.expires_ns) continue;
    if (common_tokens(node.data.tokens(), tokens, node.tail_tokens) == node.tail_tokens) {
      plan.replaced[plan.num_replaced++] = child;
    }
  }
}

// The caller's match must end on the way to where its tokens are.
void Tree::check_match(const Plan& plan) const {
  if (plan.end == nullptr || *plan.end == kNone) return;
  NodeIndex node = plan.place.node;
  if (node != kNone && plan.place.part < nodes_[node].size) node = nodes_[node].parent;
  while (node != kNone && node != *plan.end) node = nodes_[node].parent;
  expects(node != kNone,
          "prefix cache: insert with a match that is no prefix of these tokens under this key");
}

void Tree::check_adopted(const Plan& plan) {
  const std::span<const BlockId> adopted = plan.adopted();
  std::size_t good = 0;
  while (good < adopted.size() && adopted[good].value() < block_cached_.size() &&
         !block_cached_[adopted[good].value()]) {
    block_cached_[adopted[good++].value()] = true;
  }
  for (std::size_t i = 0; i < good; ++i) block_cached_[adopted[i].value()] = false;
  if (good == adopted.size()) return;
  const std::uint32_t bad = adopted[good].value();
  if (bad >= block_cached_.size()) {
    throw InvalidArgument(fmt::format("prefix cache: insert of block {}, but the pool has {} blocks", bad,
                                      block_cached_.size()));
  }
  throw InvalidArgument(fmt::format(
      "prefix cache: insert of block {} at place {} of the table, but it is {}", bad, plan.place.depth + good,
      block_cached_[bad] ? "cached for other tokens already" : "in the table twice"));
}

// Whether the node's edge can take the new blocks itself: nobody branches off, nobody else pins exactly its
// end, and they will be kept for as long as it is.
bool Tree::can_extend(const Plan& plan) const {
  const Node& node = nodes_[plan.place.node];
  const bool ours = plan.end != nullptr && *plan.end == plan.place.node;
  return !node.is_root() && node.first_child == kNone && node.pins == (ours ? 1U : 0U) &&
         node.priority <= plan.priority && node.expires_ns <= plan.expires_ns;
}

// ---- memory

void Tree::allocate(Plan& plan, const PrefixKey& key) {
  const std::uint32_t added = plan.num_full - plan.place.depth;
  plan.acquired.adopted.reserve(plan.adopted().size());
  plan.acquired.dropped.reserve(plan.num_replaced);
  if (plan.names != nullptr) plan.names->reserve(plan.num_full);
  nodes_.reserve(3);
  children_.reserve(2);
  expiry_.reserve(num_mortal_ + 2);
  plan.extends = added > 0 && plan.root != kNone && can_extend(plan);
  if (plan.extends) {
    grow(plan, added);
  } else if (added > 0) {
    plan.edge = EdgeData(added, block_size_);
    plan.edge.copy_in(0, added, plan.adopted().data(), plan.rest(plan.place.depth, block_size_), block_size_);
  }
  if (plan.tail_tokens != 0) {
    plan.tail = EdgeData(1, block_size_);
    plan.tail.copy_in_tail(plan.blocks[plan.num_full].value(), plan.rest(plan.num_full, block_size_),
                           plan.tail_tokens);
  }
  if (plan.root == kNone && !plan.adopted().empty()) {
    const auto entry = roots_.emplace(root_name(key), kNone).first;
    plan.root = plan.place.node = entry->second = nodes_.make();
    nodes_[plan.root].root_name = &entry->first;
  }
}

// Writes the new blocks behind the node's own, where nobody looks yet; into a larger buffer where they do not
// fit.
void Tree::grow(Plan& plan, std::uint32_t added) {
  Node& node = nodes_[plan.place.node];
  EdgeData* edge = &node.data;
  if (node.data.capacity() - node.size < added) {
    plan.edge = EdgeData(node.size + std::max(added, node.size / 2), block_size_);
    plan.edge.copy_in(0, node.size, node.data.blocks(), node.data.tokens(), block_size_);
    edge = &plan.edge;
  }
  edge->copy_in(node.size, added, plan.adopted().data(), plan.rest(plan.place.depth, block_size_),
                block_size_);
}

// ---- changing

void Tree::apply(Plan& plan) noexcept {
  InsertAcquired& acquired = plan.acquired;
  const std::span<const BlockId> adopted = plan.adopted();
  acquired.adopted.assign(adopted.begin(), adopted.end());
  acquired.cached_tokens = std::size_t{plan.num_full} * block_size_;
  for (const BlockId block : adopted) block_cached_[block.value()] = true;

  NodeIndex end = plan.place.node;
  if (plan.extends) {
    extend(plan, end);
  } else if (plan.place.depth < plan.num_full) {
    end = attach(plan, end, std::move(plan.edge), 0);
  }
  NodeIndex deepest = plan.same_tail != kNone ? plan.same_tail : end;
  if (plan.tail_tokens != 0) deepest = attach(plan, end, std::move(plan.tail), plan.tail_tokens);
  for (std::size_t i = 0; i < plan.num_replaced; ++i) {
    acquired.dropped.emplace_back(nodes_[plan.replaced[i]].data.block(0));
    cut_end(plan.replaced[i], 1);
  }
  if (deepest != kNone) touch_path(plan, deepest);
  if (plan.end != nullptr && plan.num_full > 0) move_match(plan, end);

  ++counters_.inserts;
  counters_.inserted_blocks += acquired.adopted.size();
  counters_.duplicate_blocks += acquired.duplicates.size();
  counters_.dropped_blocks += acquired.dropped.size();
}

NodeIndex Tree::attach(const Plan& plan, NodeIndex parent, EdgeData&& data,
                       std::uint32_t tail_tokens) noexcept {
  const NodeIndex index = nodes_.make();
  Node& node = nodes_[index];
  node.data = std::move(data);
  node.size = node.data.capacity();
  node.depth = nodes_[parent].depth + node.size;
  node.tail_tokens = static_cast<std::uint16_t>(tail_tokens);
  node.priority = plan.priority;
  node.hash = hash(parent, node.data.tokens(), tail_tokens != 0 ? tail_tokens : block_size_);
  link_child(parent, index);
  children_.insert(node.hash, index);
  set_expiry(node, index, plan.expires_ns);
  lru_.push_back(index);
  capacity_blocks_ += node.size;
  cached_blocks_ += node.size;
  evictable_blocks_ += node.size;
  return index;
}

void Tree::extend(Plan& plan, NodeIndex index) noexcept {
  Node& node = nodes_[index];
  const std::uint32_t added = plan.num_full - plan.place.depth;
  if (plan.edge.capacity() != 0) {
    capacity_blocks_ = capacity_blocks_ - node.data.capacity() + plan.edge.capacity();
    node.data = std::move(plan.edge);
  }
  node.size += added;
  node.depth += added;
  if (node.heap_at != kNone) expiry_.update(index);
  cached_blocks_ += added;
  if (!node.is_held()) evictable_blocks_ += added;
}

// Everything up to the root is kept at least as long as the new blocks, and counts as used now; the deepest
// first.
void Tree::touch_path(const Plan& plan, NodeIndex deepest) noexcept {
  for (NodeIndex i = deepest; !nodes_[i].is_root(); i = nodes_[i].parent) {
    Node& node = nodes_[i];
    if (node.listed) lru_.erase(i);
    node.priority = std::max(node.priority, plan.priority);
    const std::int64_t expires_ns = std::max(node.expires_ns, plan.expires_ns);
    if (expires_ns != node.expires_ns) {
      node.dead = false;
      set_expiry(node, i, expires_ns);
    }
    if (!node.is_held()) lru_.push_back(i);
  }
}

void Tree::move_match(const Plan& plan, NodeIndex end) noexcept {
  if (*plan.end != end) {
    pin(end);
    if (*plan.end != kNone) unpin(*plan.end);
    *plan.end = end;
  }
  plan.names->resize(plan.num_full);
  name_blocks(end, *plan.names);
}

}  // namespace metrale::prefix
