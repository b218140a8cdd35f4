// SPDX-License-Identifier: Apache-2.0
#include "prefix/expiry_heap.h"

#include <algorithm>

namespace metrale::prefix {

void ExpiryHeap::reserve(std::size_t total) {
  if (total > heap_.capacity()) heap_.reserve(std::max(total, heap_.capacity() * 2));
}

void ExpiryHeap::push(NodeIndex node) noexcept {
  heap_.push_back(node);
  put(heap_.size() - 1, node);
  sift_up(heap_.size() - 1);
}

void ExpiryHeap::erase(NodeIndex node) noexcept {
  const std::size_t at = nodes_[node].heap_at;
  nodes_[node].heap_at = kNone;
  const NodeIndex last = heap_.back();
  heap_.pop_back();
  if (last == node) return;
  put(at, last);
  update(last);
}

void ExpiryHeap::update(NodeIndex node) noexcept {
  sift_up(nodes_[node].heap_at);
  sift_down(nodes_[node].heap_at);
}

bool ExpiryHeap::is_consistent() const {
  for (std::size_t at = 0; at < heap_.size(); ++at) {
    if (nodes_[heap_[at]].heap_at != at) return false;
    if (at > 0 && before(heap_[at], heap_[(at - 1) / 2])) return false;
  }
  return true;
}

bool ExpiryHeap::before(NodeIndex a, NodeIndex b) const {
  const Node& x = nodes_[a];
  const Node& y = nodes_[b];
  return x.expires_ns != y.expires_ns ? x.expires_ns < y.expires_ns : x.depth > y.depth;
}

void ExpiryHeap::put(std::size_t at, NodeIndex node) noexcept {
  heap_[at] = node;
  nodes_[node].heap_at = static_cast<std::uint32_t>(at);
}

void ExpiryHeap::sift_up(std::size_t at) noexcept {
  const NodeIndex node = heap_[at];
  for (; at > 0 && before(node, heap_[(at - 1) / 2]); at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
  put(at, node);
}

void ExpiryHeap::sift_down(std::size_t at) noexcept {
  const NodeIndex node = heap_[at];
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], node)) break;
    put(at, heap_[child]);
    at = child;
  }
  put(at, node);
}

}  // namespace metrale::prefix
