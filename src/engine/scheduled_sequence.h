// SPDX-License-Identifier: Apache-2.0
// Scheduler::Sequence: one sequence while it waits or runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/engine/scheduler.h>

namespace metrale::engine {

struct Scheduler::Sequence {
  [[nodiscard]] prefix::PrefixKey key() const { return {.tenant_salt = given.tenant, .adapter = {}}; }
  [[nodiscard]] std::uint32_t num_tokens() const { return static_cast<std::uint32_t>(given.tokens.size()); }
  [[nodiscard]] std::uint32_t left() const { return num_tokens() - computed; }
  [[nodiscard]] bool is_running() const { return table_row.has_value(); }
  // Of one that runs.
  [[nodiscard]] std::uint32_t row() const {
    if (!table_row) throw InvalidArgument("a sequence without a table row");
    return *table_row;
  }

  SequenceId id;
  std::uint64_t arrival = 0;  // unique, rising
  NewSequence given;          // its tokens grow
  bool is_starving = false;
  std::uint64_t admission = 0;  // the number of its last one
  bool has_begun = false;       // was in a step
  std::uint32_t overtaken = 0;
  SequenceInfo info;
  std::uint32_t reached = 0;               // tokens computed before a preemption
  std::optional<std::uint32_t> num_saved;  // tokens that the PreemptionStore has

  // While it runs. It has a reference to each of its blocks, and `match` pins those that are cached.
  std::optional<std::uint32_t> table_row;
  std::vector<BlockId> blocks;
  std::uint32_t computed = 0;
  std::uint32_t in_step = 0;
  std::uint32_t num_published = 0;  // full blocks
  prefix::Match match;
  std::optional<BlockCopy> copy;  // before its next step; has a reference to the source
};

}  // namespace metrale::engine
