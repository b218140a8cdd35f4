// SPDX-License-Identifier: Apache-2.0
// Scheduler: who waits, who runs, what the next step computes. Blocks: scheduler_blocks.cpp.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/engine/scheduler.h>

#include "engine/scheduled_sequence.h"

namespace metrale::engine {

bool Scheduler::Ranks::operator()(const Sequence* a, const Sequence* b) const {
  if (a->is_starving != b->is_starving) return a->is_starving;
  if (!a->is_starving && a->given.priority != b->given.priority) {
    return a->given.priority > b->given.priority;
  }
  return a->arrival < b->arrival;
}

Scheduler::Scheduler(const SchedulerConfig& config, kv::PagedKvCache& pool, prefix::PrefixCache& prefixes)
    : config_(config), pool_(&pool), prefixes_(&prefixes) {
  config_.limits.validate();
  if (pool.block_size() != config_.limits.block_size || prefixes.block_size() != config_.limits.block_size) {
    throw InvalidArgument(
        fmt::format("blocks of {} tokens in the limits, {} in the KV cache, {} in the prefix cache",
                    config_.limits.block_size, pool.block_size(), prefixes.block_size()));
  }
  if (config_.max_prompt_chunk == 0) config_.max_prompt_chunk = config_.limits.max_batch_tokens;
  for (std::uint32_t row = config_.limits.max_batch_size; row-- > 0;) free_rows_.push_back(row);
}

Scheduler::~Scheduler() {
  for (auto& [id, sequence] : sequences_) {
    if (sequence->num_saved) config_.preempted->forget(id);
    if (sequence->is_running()) release(*sequence);
  }
}

Scheduler::Sequence& Scheduler::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) throw InvalidArgument(fmt::format("no sequence {} here", id.value()));
  return *found->second;
}

Scheduler::Sequence& Scheduler::create(NewSequence&& given) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = SequenceId(next_id_);
  sequence->arrival = next_id_;
  sequence->given = std::move(given);
  Sequence& made = *sequence;
  sequences_.emplace(made.id, std::move(sequence));
  ++next_id_;
  return made;
}

SequenceId Scheduler::add(NewSequence sequence) {
  if (sequence.tokens.empty()) throw InvalidArgument("a sequence needs at least one token");
  if (sequence.max_tokens == 0) sequence.max_tokens = config_.limits.max_seq_len;
  if (sequence.tokens.size() > sequence.max_tokens || sequence.max_tokens > config_.limits.max_seq_len) {
    throw InvalidArgument(fmt::format("a sequence of {} tokens that may have {}: max_seq_len is {}",
                                      sequence.tokens.size(), sequence.max_tokens,
                                      config_.limits.max_seq_len));
  }
  if (blocks_for(sequence.max_tokens) > pool_->num_blocks()) {
    throw InvalidArgument(
        fmt::format("the request needs {} KV blocks of {} tokens, the cache has {}: raise --kv-blocks, or "
                    "ask for fewer tokens",
                    blocks_for(sequence.max_tokens), config_.limits.block_size, pool_->num_blocks()));
  }
  Sequence& made = create(std::move(sequence));
  enqueue(made);
  ++counters_.added;
  return made.id;
}

void Scheduler::enqueue(Sequence& sequence) {
  waiting_by_arrival_.emplace(sequence.arrival, &sequence);
  waiting_.insert(&sequence);
}

void Scheduler::dequeue(Sequence& sequence) {
  waiting_.erase(&sequence);
  waiting_by_arrival_.erase(sequence.arrival);
}

SequenceId Scheduler::fork(SequenceId id) {
  Sequence& from = find(id);
  Sequence& made = create(NewSequence(from.given));
  made.info.cached_tokens = from.info.cached_tokens;
  ++counters_.added;
  ++counters_.forked;
  const std::size_t num_full = from.computed / config_.limits.block_size;
  const bool has_partial = from.computed % config_.limits.block_size != 0;
  const bool has_place = !free_rows_.empty() && would_fit(has_partial ? 1 : 0) &&
                         (waiting_.empty() || !(*waiting_.begin())->is_starving);
  if (!from.is_running() || from.left() != 0 || !has_place) {
    enqueue(made);
    return made.id;
  }
  made.match = from.match.fork();
  for (std::size_t i = 0; i < num_full; ++i) {
    pool_->inc_ref(from.blocks[i]);
    made.blocks.push_back(from.blocks[i]);
  }
  made.num_published = from.num_published;
  made.computed = from.computed;
  if (has_partial) {
    expects(allocate(made, 1), "a block that was there is gone");
    pool_->inc_ref(from.blocks[num_full]);
    made.copy = BlockCopy{from.blocks[num_full], made.blocks[num_full]};
  }
  count_overtaken(made);
  enter(made);
  return made.id;
}

void Scheduler::append(SequenceId id, std::int32_t token) {
  Sequence& sequence = find(id);
  // One that was forked without a place waits with everything still to compute.
  expects(!sequence.is_running() || sequence.left() == 0, "a token after one that is not computed");
  expects(sequence.num_tokens() < sequence.given.max_tokens, "a token more than max_tokens");
  sequence.given.tokens.push_back(token);
}

void Scheduler::remove(SequenceId id) {
  Sequence& sequence = find(id);
  if (sequence.is_running()) {
    publish(sequence, sequence.computed, /*with_tail=*/true);
    running_.erase(&sequence);
    release(sequence);
  } else {
    dequeue(sequence);
    if (sequence.num_saved) config_.preempted->forget(id);
  }
  sequences_.erase(id);
  ++counters_.removed;
}

const StepPlan& Scheduler::plan() {
  abandon();
  admit();
  // At least max_batch_size: whatever decodes, the first of the prompts has a part too.
  std::uint32_t budget = config_.limits.max_batch_tokens;
  // Decoding first: a running answer never waits for somebody's prompt. Only the last ranks are preempted, so
  // none that is in the plan.
  for (auto at = running_.begin(); at != running_.end() && budget > 0;) {
    Sequence& sequence = **at++;
    if (sequence.left() != 1) continue;
    if (!ensure_next_block(sequence)) break;
    // The next one may have been preempted.
    at = running_.upper_bound(&sequence);
    plan_item(sequence, 1, budget);
  }
  for (Sequence* sequence : running_) {
    if (budget == 0) break;
    if (sequence->left() > 1) {
      plan_item(*sequence, std::min({sequence->left(), budget, config_.max_prompt_chunk}), budget);
    }
  }
  plan_.tables = tables_;
  return plan_;
}

void Scheduler::plan_item(Sequence& sequence, std::uint32_t length, std::uint32_t& budget) {
  sequence.in_step = length;
  plan_.items.push_back(
      {.sequence = sequence.id,
       .table_row = sequence.row(),
       .start = sequence.computed,
       .tokens = std::span<const std::int32_t>(sequence.given.tokens).subspan(sequence.computed, length),
       .reaches_end = length == sequence.left()});
  if (sequence.copy) plan_.copies.push_back(*sequence.copy);
  budget -= length;
}

void Scheduler::abandon() {
  for (const StepItem& item : plan_.items) {
    if (const auto found = sequences_.find(item.sequence); found != sequences_.end())
      found->second->in_step = 0;
  }
  plan_.items.clear();
  plan_.copies.clear();
  plan_.tables.clear();
}

void Scheduler::complete() {
  count_passed();
  for (const StepItem& item : plan_.items) {
    Sequence& sequence = find(item.sequence);
    drop_copy(sequence);
    const std::uint32_t again = std::min(sequence.reached, sequence.computed + sequence.in_step);
    if (again > sequence.computed) counters_.recomputed_tokens += again - sequence.computed;
    sequence.computed += sequence.in_step;
    counters_.computed_tokens += sequence.in_step;
    publish(sequence, sequence.computed, /*with_tail=*/false);
  }
  // Those that publishing changed come with the next plan.
  tables_.erase(tables_.begin(), tables_.begin() + static_cast<std::ptrdiff_t>(plan_.tables.size()));
  abandon();
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    Sequence& first = **waiting_.begin();
    if (!try_admit(first) && !(make_room_for(first) && try_admit(first))) return;
  }
}

bool Scheduler::try_admit(Sequence& sequence) {
  if (free_rows_.empty()) return false;
  if (const auto saved = sequence.num_saved) return try_restore(sequence, *saved);
  const std::size_t total = blocks_for(sequence.num_tokens());
  // The last token is computed in any case: its logits are wanted.
  const auto tokens = std::span<const std::int32_t>(sequence.given.tokens).first(sequence.num_tokens() - 1);
  {
    // What is found leaves the blocks that could be evicted, so it is pinned before they are counted.
    const prefix::Match found = prefixes_->pin(sequence.key(), tokens);
    if (!would_fit(total - found.blocks().size())) return false;
  }
  prefix::Match match = prefixes_->lookup(sequence.key(), tokens);
  // A block to copy from is pinned too: it may be the very one that is needed.
  if (!would_fit(total - match.blocks().size())) match.tail_copied();
  start(sequence, std::move(match));
  return true;
}

void Scheduler::start(Sequence& sequence, prefix::Match&& match) {
  dequeue(sequence);
  sequence.match = std::move(match);
  const auto found = sequence.match.blocks();
  for (const BlockId block : found) {
    pool_->inc_ref(block);
    sequence.blocks.push_back(block);
  }
  sequence.num_published = static_cast<std::uint32_t>(found.size());
  expects(allocate(sequence, blocks_for(sequence.num_tokens()) - found.size()),
          "blocks that were there are gone");
  sequence.computed = static_cast<std::uint32_t>(sequence.match.matched_tokens());
  if (const auto& tail = sequence.match.tail()) {
    pool_->inc_ref(tail->block);
    sequence.copy = BlockCopy{tail->block, sequence.blocks[found.size()]};
    sequence.computed += tail->tokens;
  }
  if (sequence.info.preemptions == 0) sequence.info.cached_tokens = sequence.computed;
  counters_.cached_tokens += sequence.computed;
  count_overtaken(sequence);
  enter(sequence);
}

bool Scheduler::try_restore(Sequence& sequence, std::uint32_t saved) {
  if (!would_fit(blocks_for(sequence.num_tokens()))) return false;
  dequeue(sequence);
  expects(allocate(sequence, blocks_for(sequence.num_tokens())), "blocks that were there are gone");
  sequence.num_saved.reset();
  if (config_.preempted->restore(sequence.id, sequence.blocks, saved)) {
    sequence.computed = saved;
    ++counters_.restored;
  }
  count_overtaken(sequence);
  enter(sequence);
  return true;
}

void Scheduler::enter(Sequence& sequence) {
  sequence.table_row = free_rows_.back();
  free_rows_.pop_back();
  sequence.info.running = true;
  running_.insert(&sequence);
  tables_.push_back({sequence.row(), 0, sequence.blocks});
  sequence.admission = ++counters_.admitted;
}

// Running sequences of a lower priority give way where that is enough.
bool Scheduler::make_room_for(const Sequence& sequence) {
  const auto gives_way = [&](const Sequence* other) {
    return !other->is_starving && other->given.priority < sequence.given.priority;
  };
  std::size_t freed = 0;
  std::size_t count = 0;
  const std::size_t needed = blocks_for(sequence.num_tokens());
  for (auto at = running_.rbegin(); at != running_.rend() && gives_way(*at); ++at) {
    freed += (*at)->blocks.size();
    ++count;
    if (available_blocks() + freed >= needed + running_.size() - count) break;
  }
  if (count == 0 || available_blocks() + freed < needed + running_.size() - count) return false;
  for (; count > 0; --count) preempt(**running_.rbegin());
  return true;
}

// By one more. True where it ranks ahead of all priorities from now on, which the caller sees to.
bool Scheduler::overtake(Sequence& sequence) {
  ++sequence.overtaken;
  counters_.most_overtaken = std::max(counters_.most_overtaken, sequence.overtaken);
  return sequence.overtaken >= config_.max_overtakes && !sequence.is_starving;
}

void Scheduler::count_overtaken(const Sequence& admitted) {
  std::vector<Sequence*> starving;
  for (auto& [arrival, sequence] : waiting_by_arrival_) {
    if (arrival > admitted.arrival) break;
    if (overtake(*sequence)) starving.push_back(sequence);
  }
  for (Sequence* sequence : starving) {
    waiting_.erase(sequence);
    sequence->is_starving = true;
    waiting_.insert(sequence);
  }
}

// Those that begin in this step pass the ones before them that run and have no part in it.
void Scheduler::count_passed() {
  std::vector<const Sequence*> begin;
  for (const StepItem& item : plan_.items) {
    Sequence& sequence = find(item.sequence);
    if (!std::exchange(sequence.has_begun, true)) begin.push_back(&sequence);
  }
  if (begin.empty()) return;
  std::vector<Sequence*> starving;
  for (Sequence* sequence : running_) {
    if (sequence->in_step != 0 || sequence->left() == 0) continue;
    bool starves = false;
    for (const Sequence* other : begin) {
      // One that was admitted before it has overtaken it there.
      const bool passes = other->arrival > sequence->arrival && other->admission > sequence->admission;
      if (passes && overtake(*sequence)) starves = true;
    }
    if (starves) starving.push_back(sequence);
  }
  for (Sequence* sequence : starving) {
    running_.erase(sequence);
    sequence->is_starving = true;
    running_.insert(sequence);
  }
}

void Scheduler::preempt(Sequence& sequence) {
  running_.erase(&sequence);
  if (config_.preempted != nullptr && sequence.computed > 0 && !sequence.copy &&
      config_.preempted->save(sequence.id, std::span(sequence.blocks).first(blocks_for(sequence.computed)),
                              sequence.computed)) {
    sequence.num_saved = sequence.computed;
  }
  publish(sequence, sequence.computed, /*with_tail=*/true);
  sequence.reached = std::max(sequence.reached, sequence.computed);
  release(sequence);
  ++sequence.info.preemptions;
  ++counters_.preempted;
  enqueue(sequence);
}

std::span<const std::int32_t> Scheduler::tokens(SequenceId sequence) const {
  return find(sequence).given.tokens;
}

SequenceInfo Scheduler::info(SequenceId sequence) const {
  return find(sequence).info;
}

}  // namespace metrale::engine
