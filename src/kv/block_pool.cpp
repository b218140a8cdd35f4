// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kv/block_pool.h>

namespace metrale::kv {
namespace {

constexpr std::size_t kHistoryLength = 16;

}  // namespace

BlockPool::BlockPool(std::uint32_t num_blocks, bool trace) : free_(num_blocks), counts_(num_blocks, 0) {
  for (std::uint32_t i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;
  if (trace) events_.resize(num_blocks);
}

std::optional<BlockId> BlockPool::try_alloc(CallSite site) {
  if (free_.empty()) return std::nullopt;
  const BlockId block(free_.back());
  free_.pop_back();
  counts_[block.value()] = 1;
  if (!events_.empty()) record(block, "alloc", site);
  return block;
}

void BlockPool::inc_ref(BlockId block, CallSite site) {
  if (block.value() >= counts_.size() || counts_[block.value()] == 0 ||
      counts_[block.value()] == std::numeric_limits<std::uint32_t>::max()) [[unlikely]] {
    misuse(block, "inc_ref", site);
  }
  ++counts_[block.value()];
  if (!events_.empty()) record(block, "inc_ref", site);
}

bool BlockPool::dec_ref(BlockId block, CallSite site) {
  if (block.value() >= counts_.size() || counts_[block.value()] == 0) [[unlikely]]
    misuse(block, "dec_ref", site);
  const bool last = --counts_[block.value()] == 0;
  // free_ was sized for every block at construction: this never allocates.
  if (last) free_.push_back(block.value());
  if (!events_.empty()) record(block, "dec_ref", site);
  return last;
}

std::uint32_t BlockPool::ref_count(BlockId block) const {
  if (block.value() >= counts_.size()) {
    throw InvalidArgument(fmt::format("KV block {} of {}: no such block", block.value(), counts_.size()));
  }
  return counts_[block.value()];
}

std::vector<BlockEvent> BlockPool::history(BlockId block) const {
  return block.value() < events_.size() ? events_[block.value()] : std::vector<BlockEvent>{};
}

void BlockPool::clear() {
  free_.clear();
  counts_.clear();
  events_.clear();
}

void BlockPool::record(BlockId block, std::string_view operation, CallSite site) {
  auto& events = events_[block.value()];
  if (events.size() == kHistoryLength) events.erase(events.begin());
  events.push_back({operation, counts_[block.value()], site});
}

void BlockPool::misuse(BlockId block, std::string_view operation, CallSite site) const {
  if (block.value() >= counts_.size()) {
    throw InvalidArgument(fmt::format("{} of KV block {} at {}:{}: the pool has {} blocks", operation,
                                      block.value(), site.file, site.line, counts_.size()));
  }
  std::string text =
      fmt::format("{} of KV block {} at {}:{}: the block {}", operation, block.value(), site.file, site.line,
                  counts_[block.value()] == 0 ? "is free" : "has too many references");
  for (const BlockEvent& event : history(block)) {
    text += fmt::format("; {} -> {} at {}:{}", event.operation, event.count_after, event.site.file,
                        event.site.line);
  }
  throw InvalidArgument(text);
}

}  // namespace metrale::kv
