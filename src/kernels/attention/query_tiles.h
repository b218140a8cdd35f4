// SPDX-License-Identifier: Apache-2.0
// What paged_attention and mla_attention share on the CPU: a step's query tokens cut into tiles, tiles and
// splits divided among threads, and the folding of what each split gives. A tile's rows are (query token,
// query head), token first; its heads are consecutive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/thread_pool.h>
#include <metrale/kernels/attention.h>

#include "kernels/attention/split.h"

namespace metrale::kernels {

inline constexpr std::size_t kTileRows = 64;       // rows that share a tile's keys
inline constexpr std::size_t kTasksPerThread = 4;  // fewer tasks than that are divided by splits too

// The step as a kernel's arguments give it.
struct QueryRows {
  std::string_view kernel;     // named in errors
  std::uint64_t counts;        // StepCounts
  std::uint64_t query_starts;  // uint32[num_seqs + 1]
  std::uint64_t context_lens;  // uint32[num_seqs]
  std::uint64_t out;           // type[num_tokens][num_heads][value_dim], row stride out_stride
  std::uint64_t workspace;     // float[workspace_rows][num_heads][max splits][value_dim + 2]
  std::uint64_t max_context;   // tokens that a row of block tables holds
  std::uint32_t max_tokens;
  std::uint32_t max_seqs;
  std::uint32_t workspace_rows;
  std::uint32_t window;
  std::uint32_t num_heads;   // query heads of a token
  std::uint32_t tile_heads;  // of them, those that share a tile; of the last tile, what is left
  std::uint32_t value_dim;   // of a head's result
  std::uint32_t out_stride;  // elements
  quant::ElementType type;   // of the result

  [[nodiscard]] std::uint32_t groups() const { return (num_heads + tile_heads - 1) / tile_heads; }
  [[nodiscard]] std::uint32_t heads_of(std::uint32_t group) const {
    return std::min(tile_heads, num_heads - group * tile_heads);
  }
};

// Consecutive query tokens of one sequence.
struct QueryTile {
  std::uint32_t seq;
  std::uint32_t first_token;  // row of the step
  std::uint32_t tokens;
  std::uint32_t first_position;  // of first_token
};

// Positions [begin, end) that a query sees.
struct Visible {
  std::uint64_t begin;
  std::uint64_t end;
};

// Splits [begin, end) that some query of a tile sees.
struct SplitRange {
  std::uint32_t begin;
  std::uint32_t end;
};

// Memory of a thread, divided into runs that begin at multiples of 64 bytes.
class ScratchRuns {
 public:
  // Room for `floats`, each run rounded up to 16; what was taken before is given up.
  void reserve(std::size_t floats) {
    if (buffer_.size_bytes() < floats * sizeof(float)) buffer_ = AlignedBuffer(floats * sizeof(float), 64);
    next_ = reinterpret_cast<float*>(buffer_.data());
  }
  [[nodiscard]] float* take(std::size_t count) {
    float* result = next_;
    next_ += round_up(count, std::size_t{16});
    return result;
  }

 private:
  AlignedBuffer buffer_;
  float* next_ = nullptr;
};

// Scratch of a tile's rows.
struct FoldState {
  KeyRange* ranges = nullptr;  // [rows]
  SoftmaxState part;           // of one split
  SoftmaxState total;          // of all folded so far

  // `dims`: of a row's values.
  void take(ScratchRuns& runs, std::size_t rows, std::size_t dims) {
    ranges = reinterpret_cast<KeyRange*>(runs.take(2 * rows));
    for (SoftmaxState* state : {&part, &total}) {
      state->max = runs.take(rows);
      state->sum = runs.take(rows);
      state->values = runs.take(rows * dims);
    }
  }
};

// One group of heads of one query tile, on the thread that made it.
class TileRows {
 public:
  TileRows(const QueryRows& step, const QueryTile& tile, std::uint32_t group, const FoldState& state);
  TileRows(const TileRows&) = delete;
  TileRows& operator=(const TileRows&) = delete;

  // All splits, folded as they come.
  void attend_all();
  // One split, left in the workspace; nothing where no query sees it.
  void attend_one(std::uint32_t split, std::uint32_t stride_splits);
  // Folds what attend_one left for every split.
  void combine(std::uint32_t stride_splits);

 protected:
  ~TileRows() = default;

  [[nodiscard]] const QueryTile& tile() const { return tile_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] const KeyRange* ranges() const { return state_.ranges; }
  // Of a row: its token of the step and its query head.
  [[nodiscard]] std::size_t token(std::size_t row) const { return tile_.first_token + row / heads_; }
  [[nodiscard]] std::size_t head(std::size_t row) const { return first_head_ + row % heads_; }

 private:
  virtual void do_load_queries() = 0;
  // The rows' ranges are set. `next_keys`: keys of the next split, where this thread goes on to it.
  virtual void do_attend(std::uint32_t split, std::uint32_t next_keys, const SoftmaxState& result) = 0;

  [[nodiscard]] const SoftmaxState& state_of(std::uint32_t split) const;
  [[nodiscard]] Visible visible_to(std::size_t row) const;
  [[nodiscard]] float* workspace(std::size_t row, std::uint32_t split, std::uint32_t stride_splits) const;
  void set_ranges(std::uint32_t split);
  void fold(std::uint32_t split);
  void start_total(std::size_t row);
  void finish();

  const QueryRows& step_;
  const QueryTile tile_;
  const std::size_t first_head_;
  const std::size_t heads_;
  const std::size_t rows_;
  const std::size_t padded_;  // value_dim rounded up to 16
  const SplitRange splits_;
  const FoldState state_;
};

// Rows of a tile's group.
[[nodiscard]] inline std::size_t rows_in(const QueryRows& step, const QueryTile& tile, std::uint32_t group) {
  return std::size_t{tile.tokens} * step.heads_of(group);
}

// How a step is divided.
struct StepPlan {
  std::vector<QueryTile> tiles;
  SplitRange splits;  // that some tile sees
  bool by_splits;     // every split of a tile is a task of its own
};
// Throws InvalidArgument where the step is larger than the launch was made for or its arrays contradict each
// other.
[[nodiscard]] StepPlan plan_step(const QueryRows& step, std::size_t threads);

// Attends every row of the step; `make(tile, group)` gives the TileRows of a tile's group.
template <class Make>
void attend_step(ThreadPool& pool, const QueryRows& step, const Make& make) {
  const StepPlan plan = plan_step(step, pool.size());
  const std::size_t groups = step.groups();
  const std::size_t tasks = plan.tiles.size() * groups;
  const auto of_task = [&](std::size_t task) {
    return make(plan.tiles[task / groups], static_cast<std::uint32_t>(task % groups));
  };
  if (!plan.by_splits) {
    // Later tiles see more keys: longest first, so that the last task to end is a short one.
    pool.parallel_for(tasks, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) of_task(tasks - 1 - i).attend_all();
    });
    return;
  }
  const std::size_t count = plan.splits.end - plan.splits.begin;
  pool.parallel_for(tasks * count, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto split = plan.splits.begin + static_cast<std::uint32_t>(i % count);
      of_task(i / count).attend_one(split, plan.splits.end);
    }
  });
  pool.parallel_for(tasks, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) of_task(i).combine(plan.splits.end);
  });
}

}  // namespace metrale::kernels
