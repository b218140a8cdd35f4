// SPDX-License-Identifier: Apache-2.0
// Scheduler: which sequences run in the next step, and in which KV blocks. Pure host logic over a block pool
// and a prefix cache; it knows tokens, not logits.
//
//   SequenceId id = scheduler.add({.tokens = prompt});
//   while (!scheduler.idle()) {
//     const StepPlan& plan = scheduler.plan();   // admits, allocates, preempts
//     ... copy plan.copies, set plan.tables, compute plan.items ...
//     scheduler.complete();                      // what was computed counts, and can be found by others
//     ... for each item with logits: scheduler.append(item.sequence, token), or remove(item.sequence) ...
//   }
//
// Order. A sequence ranks by its priority, then by when it was added. It waits until those ahead of it are
// admitted; where memory runs out the last of the running ones is preempted. A later sequence overtakes one
// that waits when it is admitted before it, and one that runs when it begins in a step that has nothing left
// for that one. What max_overtakes have overtaken ranks ahead of all priorities from then on, and has a part
// in every step. (All that begin in the step where the bound is reached count: at most max_batch_size - 1.)
//
// Threads: one caller.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/ids.h>
#include <metrale/gpu/arena.h>
#include <metrale/kv/paged_cache.h>
#include <metrale/prefix/prefix_cache.h>

namespace metrale::engine {

using SequenceId = Id<struct SequenceTag, std::uint64_t>;

// Where the keys and values of preempted sequences go, such as a tier below the device. Calls come from the
// thread that steps, while no step is in flight.
class PreemptionStore {
 public:
  virtual ~PreemptionStore() = default;
  PreemptionStore(const PreemptionStore&) = delete;
  PreemptionStore& operator=(const PreemptionStore&) = delete;

  // Keeps the first `num_tokens` positions that lie in `blocks`, which are given back afterwards. False: does
  // not, and they will be computed again.
  [[nodiscard]] bool save(SequenceId sequence, std::span<const BlockId> blocks, std::uint32_t num_tokens) {
    return do_save(sequence, blocks, num_tokens);
  }
  // Brings what was saved into other blocks and forgets it. False: cannot; they are computed again.
  [[nodiscard]] bool restore(SequenceId sequence, std::span<const BlockId> blocks, std::uint32_t num_tokens) {
    return do_restore(sequence, blocks, num_tokens);
  }
  // The sequence ended while it was saved.
  void forget(SequenceId sequence) noexcept { do_forget(sequence); }

 protected:
  PreemptionStore() = default;

 private:
  [[nodiscard]] virtual bool do_save(SequenceId sequence, std::span<const BlockId> blocks,
                                     std::uint32_t num_tokens) = 0;
  [[nodiscard]] virtual bool do_restore(SequenceId sequence, std::span<const BlockId> blocks,
                                        std::uint32_t num_tokens) = 0;
  virtual void do_forget(SequenceId sequence) noexcept = 0;
};

struct SchedulerConfig {
  gpu::EngineLimits limits;
  std::uint32_t max_prompt_chunk = 0;    // tokens of one sequence in a step; 0: what the budget leaves
  std::uint32_t max_overtakes = 64;      // the bound of fairness, above
  PreemptionStore* preempted = nullptr;  // outlives the scheduler; null: computed again
};

// A sequence as it is added.
struct NewSequence {
  std::vector<std::int32_t> tokens{};  // at least one
  std::uint32_t max_tokens = 0;        // that it will ever have, which must fit the pool; 0: max_seq_len
  std::int32_t priority = 0;
  std::string tenant{};
  prefix::Retention retention{};
};

// One sequence's part of a step.
struct StepItem {
  SequenceId sequence;
  std::uint32_t table_row = 0;
  std::uint32_t start = 0;                 // its tokens that are computed already
  std::span<const std::int32_t> tokens{};  // the next ones; valid until append() or remove()
  bool reaches_end = false;                // the last token is among them: its logits choose the next one
};
// Before the step's kernels: the bytes of one block in every layer.
struct BlockCopy {
  BlockId from;
  BlockId to;
};
// Before the step's kernels: entries [first, first + blocks.size()) of a row of the block tables.
struct TableUpdate {
  std::uint32_t table_row = 0;
  std::uint32_t first = 0;
  std::vector<BlockId> blocks{};
};
struct StepPlan {
  std::vector<StepItem> items{};
  std::vector<BlockCopy> copies{};
  std::vector<TableUpdate> tables{};
};

struct SchedulerCounters {
  std::uint64_t added = 0;
  std::uint64_t admitted = 0;  // again after a preemption, too
  std::uint64_t preempted = 0;
  std::uint64_t restored = 0;  // by the PreemptionStore
  std::uint64_t forked = 0;
  std::uint64_t removed = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t recomputed_tokens = 0;    // of those, what had been computed before a preemption
  std::uint64_t cached_tokens = 0;        // found in the prefix cache instead
  std::uint64_t deduplicated_blocks = 0;  // given back because the prefix cache had the same one
  std::uint32_t most_overtaken = 0;       // by how many later ones any sequence was overtaken
};

struct SequenceInfo {
  std::uint32_t cached_tokens = 0;  // found in the prefix cache when it was first admitted
  std::uint32_t preemptions = 0;
  bool running = false;
};

class Scheduler {
 public:
  // The pool and the prefix cache outlive the scheduler, which is the only one to take blocks from the pool.
  // Throws InvalidArgument for limits out of range or a prefix cache of another block size.
  Scheduler(const SchedulerConfig& config, kv::PagedKvCache& pool, prefix::PrefixCache& prefixes);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Waits for its turn. Throws InvalidArgument where it is empty, too long or larger than the pool.
  SequenceId add(NewSequence sequence);
  // Another sequence with the same tokens, which goes on by itself. Of a running one with all its tokens
  // computed it shares the blocks where there is a table row, and copies the partial last one; else it waits.
  SequenceId fork(SequenceId sequence);
  // A token after the last. The sequence must have all its tokens computed, and fewer than max_tokens.
  void append(SequenceId sequence, std::int32_t token);
  // Ends it, at any point between steps; what it computed stays in the prefix cache.
  void remove(SequenceId sequence);

  // The next step, valid until complete(), abandon() or the next plan(). Empty where nothing can run.
  [[nodiscard]] const StepPlan& plan();
  // The plan was carried out: its tokens are computed.
  void complete();
  // It was not: the sequences stand where they were.
  void abandon();

  // Up to `count` unused blocks of the prefix cache go back to the pool.
  std::size_t evict(std::size_t count);

  [[nodiscard]] bool idle() const { return sequences_.empty(); }
  [[nodiscard]] std::size_t num_waiting() const { return waiting_.size(); }
  [[nodiscard]] std::size_t num_running() const { return running_.size(); }
  // Distinct blocks that running sequences use.
  [[nodiscard]] std::size_t held_blocks() const;
  [[nodiscard]] std::span<const std::int32_t> tokens(SequenceId sequence) const;
  [[nodiscard]] SequenceInfo info(SequenceId sequence) const;
  [[nodiscard]] const SchedulerCounters& counters() const { return counters_; }
  // Empty where all is right, or what is wrong first: every block is free, cached or held, and has as many
  // references as users. O(blocks). For tests and audits.
  [[nodiscard]] std::string check_invariants() const;

 private:
  struct Sequence;
  // Ahead first.
  struct Ranks {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };
  using Queue = std::set<Sequence*, Ranks>;

  Sequence& find(SequenceId id) const;
  Sequence& create(NewSequence&& given);
  void enqueue(Sequence& sequence);
  void dequeue(Sequence& sequence);
  void admit();
  bool try_admit(Sequence& sequence);
  bool try_restore(Sequence& sequence, std::uint32_t saved);
  void start(Sequence& sequence, prefix::Match&& match);
  void enter(Sequence& sequence);
  bool make_room_for(const Sequence& sequence);
  void count_overtaken(const Sequence& admitted);
  void count_passed();
  [[nodiscard]] bool overtake(Sequence& sequence);
  [[nodiscard]] bool allocate(Sequence& sequence, std::size_t count);
  // False: the sequence itself was preempted.
  bool ensure_next_block(Sequence& sequence);
  [[nodiscard]] std::size_t available_blocks() const;
  [[nodiscard]] std::size_t blocks_for(std::size_t tokens) const;
  [[nodiscard]] bool would_fit(std::size_t blocks) const;
  void preempt(Sequence& sequence);
  void publish(Sequence& sequence, std::size_t num_tokens, bool with_tail);
  void release(Sequence& sequence) noexcept;
  void drop_copy(Sequence& sequence) noexcept;
  void plan_item(Sequence& sequence, std::uint32_t length, std::uint32_t& budget);

  SchedulerConfig config_;
  kv::PagedKvCache* pool_;
  prefix::PrefixCache* prefixes_;
  std::uint64_t next_id_ = 1;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Queue waiting_;
  std::map<std::uint64_t, Sequence*> waiting_by_arrival_;
  Queue running_;
  std::vector<TableUpdate> tables_;  // since the last complete()
  std::vector<std::uint32_t> free_rows_;
  StepPlan plan_;
  SchedulerCounters counters_;
};

}  // namespace metrale::engine
