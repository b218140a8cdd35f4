// SPDX-License-Identifier: Apache-2.0
// Scheduler: blocks, from the pool to the prefix cache and back.
#include <map>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>
#include <metrale/engine/scheduler.h>

#include "engine/scheduled_sequence.h"

namespace metrale::engine {

std::size_t Scheduler::blocks_for(std::size_t tokens) const {
  return ceil_div<std::size_t>(tokens, config_.limits.block_size);
}

std::size_t Scheduler::available_blocks() const {
  return pool_->num_free_blocks() + prefixes_->evictable_blocks();
}

// Each running sequence keeps a block that it may need soon, or the newcomer would be preempted at once. It
// may also be waiting for a copy, whose source stays used though the prefix cache counts it as evictable.
bool Scheduler::would_fit(std::size_t blocks) const {
  return blocks + running_.size() <= available_blocks();
}

std::size_t Scheduler::held_blocks() const {
  return pool_->num_blocks() - available_blocks();
}

std::size_t Scheduler::evict(std::size_t count) {
  const std::vector<BlockId> evicted = prefixes_->evict(count);
  for (const BlockId block : evicted) pool_->return_evicted_block(block);
  return evicted.size();
}

// The one place where sequences get blocks. All or none.
bool Scheduler::allocate(Sequence& sequence, std::size_t count) {
  while (count > pool_->num_free_blocks()) {
    if (evict(count - pool_->num_free_blocks()) == 0) return false;
  }
  sequence.blocks.reserve(sequence.blocks.size() + count);
  for (std::size_t i = 0; i < count; ++i) sequence.blocks.push_back(pool_->alloc_block());
  return true;
}

bool Scheduler::ensure_next_block(Sequence& sequence) {
  const std::size_t index = sequence.computed / config_.limits.block_size;
  if (index < sequence.blocks.size()) return true;
  while (!allocate(sequence, 1)) {
    Sequence& last = **running_.rbegin();
    preempt(last);
    if (&last == &sequence) return false;
  }
  tables_.push_back({sequence.row(), static_cast<std::uint32_t>(index), {sequence.blocks.back()}});
  return true;
}

// Makes the blocks of the first `num_tokens` findable: the full ones, and with `with_tail` the partial last
// one, which nobody writes any more.
void Scheduler::publish(Sequence& sequence, std::size_t num_tokens, bool with_tail) {
  const std::size_t num_full = num_tokens / config_.limits.block_size;
  const bool has_tail = with_tail && num_tokens % config_.limits.block_size != 0 && !sequence.copy;
  if (!prefixes_->is_active() || (num_full <= sequence.num_published && !has_tail)) return;
  const std::size_t count = has_tail ? num_full + 1 : num_full;
  const std::size_t length = has_tail ? num_tokens : num_full * config_.limits.block_size;
  prefix::InsertAcquired acquired;
  try {
    acquired =
        prefixes_->insert(sequence.key(), std::span<const std::int32_t>(sequence.given.tokens).first(length),
                          std::span(sequence.blocks).first(count), &sequence.match, sequence.given.retention);
  } catch (const std::bad_alloc&) {
    // Nothing changed: others compute it themselves, or the next publication of this sequence brings it.
    log().warn("no memory to cache a prefix of {} tokens", length);
    return;
  }
  for (const BlockId block : acquired.adopted) pool_->inc_ref(block);
  for (const BlockId block : acquired.dropped) pool_->return_evicted_block(block);
  sequence.num_published = static_cast<std::uint32_t>(num_full);
  if (with_tail) return;
  // The same tokens were computed twice at a time: the sequence goes on in the cache's block.
  for (const prefix::DuplicateBlock& duplicate : acquired.duplicates) {
    pool_->inc_ref(duplicate.cached);
    sequence.blocks[duplicate.index] = duplicate.cached;
    pool_->dec_ref(duplicate.given);
    tables_.push_back({sequence.row(), duplicate.index, {duplicate.cached}});
    ++counters_.deduplicated_blocks;
  }
}

void Scheduler::drop_copy(Sequence& sequence) noexcept {
  if (!sequence.copy) return;
  pool_->dec_ref(sequence.copy->from);
  sequence.match.tail_copied();
  sequence.copy.reset();
}

// Gives back what a running sequence has. It waits, or is over.
void Scheduler::release(Sequence& sequence) noexcept {
  drop_copy(sequence);
  sequence.match.release();
  for (const BlockId block : sequence.blocks) pool_->dec_ref(block);
  sequence.blocks.clear();
  free_rows_.push_back(sequence.row());  // it has room for every row
  sequence.table_row.reset();
  sequence.info.running = false;
  sequence.computed = 0;
  sequence.num_published = 0;
}

std::string Scheduler::check_invariants() const {
  std::map<std::uint32_t, std::uint32_t> users;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->is_running() == waiting_.contains(sequence.get())) {
      return fmt::format("sequence {} neither waits nor runs", id.value());
    }
    if (!sequence->is_running() && !sequence->blocks.empty()) {
      return fmt::format("sequence {} waits and has blocks", id.value());
    }
    for (const BlockId block : sequence->blocks) ++users[block.value()];
    if (const std::optional<BlockCopy>& copy = sequence->copy) ++users[copy->from.value()];
  }
  if (running_.size() + free_rows_.size() != config_.limits.max_batch_size) return "a table row is lost";
  std::size_t num_free = 0;
  std::size_t num_cached = 0;
  for (std::uint32_t block = 0; block < pool_->num_blocks(); ++block) {
    const std::uint32_t refs = pool_->ref_count(BlockId(block));
    const auto found = users.find(block);
    const std::uint32_t used = found == users.end() ? 0 : found->second;
    if (refs < used || refs - used > 1) {
      return fmt::format("block {} has {} references and {} users", block, refs, used);
    }
    num_cached += refs - used;
    num_free += refs == 0 ? 1 : 0;
  }
  if (num_free != pool_->num_free_blocks()) return "the pool's count of free blocks is wrong";
  if (num_cached != prefixes_->cached_blocks()) {
    return fmt::format("{} blocks have a reference of the prefix cache, which has {}", num_cached,
                       prefixes_->cached_blocks());
  }
  return {};
}

}  // namespace metrale::engine
