// SPDX-License-Identifier: Apache-2.0
// A scheduler with its pool and prefix cache, and a device that does what plans say: of each position of each
// block it knows which sequence of tokens, of which tenant, was computed up to there. A step that would read
// anything but a sequence's own past fails the test.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/engine/scheduler.h>
#include <metrale/gpu/mock.h>
#include <metrale/prefix/no_prefix_caching.h>
#include <metrale/prefix/radix_tree.h>

namespace metrale::engine::test {

constexpr std::uint32_t kBlockSize = 16;

using Tokens = std::vector<std::int32_t>;

struct SimulatorOptions {
  std::uint32_t num_blocks = 64;
  std::uint32_t max_seq_len = 256;
  std::uint32_t max_batch_size = 4;
  std::uint32_t max_batch_tokens = 64;
  std::uint32_t max_prompt_chunk = 0;
  std::uint32_t max_overtakes = 8;
  bool prefix_caching = true;
  PreemptionStore* preempted = nullptr;
};

class Simulator {
 public:
  using Past = std::uint64_t;  // a digest of tenant and tokens

  explicit Simulator(const SimulatorOptions& options = {})
      : pool_({.block_size = kBlockSize,
               .num_layers = 1,
               .dims = {.num_kv_heads = 1, .head_dim = 8},
               .dtype = {},
               .layer_dims = {},
               .layer_dtypes = {},
               .cache_blocks_per_seq = {}},
              options.num_blocks, *gpu_),
        prefixes_(make_prefixes(options)),
        max_batch_tokens_(options.max_batch_tokens),
        bytes_(options.num_blocks, std::vector<Past>(kBlockSize, 0)),
        tables_(options.max_batch_size,
                std::vector<std::uint32_t>(options.max_seq_len / kBlockSize, ~std::uint32_t{0})) {
    SchedulerConfig config;
    config.limits = {.max_seq_len = options.max_seq_len,
                     .max_batch_size = options.max_batch_size,
                     .max_batch_tokens = options.max_batch_tokens,
                     .block_size = kBlockSize};
    config.max_prompt_chunk = options.max_prompt_chunk;
    config.max_overtakes = options.max_overtakes;
    config.preempted = options.preempted;
    scheduler_ = std::make_unique<Scheduler>(config, pool_, *prefixes_);
  }

  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] kv::PagedKvCache& pool() { return pool_; }
  [[nodiscard]] prefix::PrefixCache& prefixes() { return *prefixes_; }
  [[nodiscard]] std::vector<Past>& bytes(BlockId block) { return bytes_[block.value()]; }

  SequenceId add(const Tokens& tokens, std::uint32_t max_tokens = 0, std::int32_t priority = 0,
                 const std::string& tenant = "") {
    const SequenceId id = scheduler_->add({.tokens = tokens,
                                           .max_tokens = max_tokens,
                                           .priority = priority,
                                           .tenant = tenant,
                                           .retention = {}});
    tenants_[id] = tenant;
    return id;
  }
  SequenceId fork(SequenceId from) {
    const SequenceId id = scheduler_->fork(from);
    tenants_[id] = tenants_.at(from);
    return id;
  }
  void remove(SequenceId id) {
    scheduler_->remove(id);
    tenants_.erase(id);
  }

  // One step, carried out. The sequences whose next token it chose.
  std::vector<SequenceId> step() {
    const StepPlan& plan = scheduler_->plan();
    carry_out(plan);
    std::vector<SequenceId> ends;
    for (const StepItem& item : plan.items) {
      if (item.reaches_end) ends.push_back(item.sequence);
    }
    last_tokens_ = 0;
    for (const StepItem& item : plan.items) last_tokens_ += item.tokens.size();
    scheduler_->complete();
    EXPECT_EQ(scheduler_->check_invariants(), "");
    return ends;
  }
  [[nodiscard]] std::size_t last_tokens() const { return last_tokens_; }

  void carry_out(const StepPlan& plan) {
    for (const TableUpdate& update : plan.tables) {
      for (std::size_t i = 0; i < update.blocks.size(); ++i) {
        tables_.at(update.table_row).at(update.first + i) = update.blocks[i].value();
      }
    }
    for (const BlockCopy& copy : plan.copies) bytes_[copy.to.value()] = bytes_[copy.from.value()];
    std::size_t tokens = 0;
    for (const StepItem& item : plan.items) {
      compute(item);
      tokens += item.tokens.size();
    }
    EXPECT_LE(tokens, max_batch_tokens_);
    EXPECT_LE(plan.items.size(), tables_.size());
  }

 private:
  std::unique_ptr<prefix::PrefixCache> make_prefixes(const SimulatorOptions& options) {
    if (!options.prefix_caching) return std::make_unique<prefix::NoPrefixCaching>(kBlockSize);
    return std::make_unique<prefix::RadixTree>(
        prefix::RadixTreeConfig{.block_size = kBlockSize, .num_blocks = options.num_blocks}, clock_);
  }

  static Past next(Past past, std::int32_t token) {
    const std::array<std::uint64_t, 2> both{past, static_cast<std::uint64_t>(token) + 1};
    return hash64(std::as_bytes(std::span(both)), 7);
  }

  Past& at(const StepItem& item, std::uint32_t position) {
    const std::uint32_t block = tables_.at(item.table_row).at(position / kBlockSize);
    return bytes_.at(block).at(position % kBlockSize);
  }

  void compute(const StepItem& item) {
    const auto all = scheduler_->tokens(item.sequence);
    ASSERT_LE(item.start + item.tokens.size(), all.size());
    const std::string& tenant = tenants_.at(item.sequence);
    Past past = hash64(std::as_bytes(std::span(tenant)), 3);
    for (std::uint32_t i = 0; i < item.start; ++i) {
      past = next(past, all[i]);
      ASSERT_EQ(at(item, i), past) << "sequence " << item.sequence.value() << " reads position " << i
                                   << " of somebody else's past";
    }
    for (std::uint32_t i = item.start; i < item.start + item.tokens.size(); ++i) {
      past = next(past, all[i]);
      at(item, i) = past;
    }
  }

  std::unique_ptr<gpu::MockBackend> gpu_ = gpu::make_mock_backend();
  ManualClock clock_;
  kv::PagedKvCache pool_;
  std::unique_ptr<prefix::PrefixCache> prefixes_;
  std::unique_ptr<Scheduler> scheduler_;
  std::size_t max_batch_tokens_;
  std::vector<std::vector<Past>> bytes_;            // [block][position]
  std::vector<std::vector<std::uint32_t>> tables_;  // [row][entry]
  std::map<SequenceId, std::string> tenants_;
  std::size_t last_tokens_ = 0;
};

inline Tokens counting(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<std::int32_t>(i);
  return tokens;
}

}  // namespace metrale::engine::test
