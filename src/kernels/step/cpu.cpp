// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/step.h>

#include "kernels/host_args.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

void apply_table_deltas(ThreadPool&, const ApplyTableDeltasArgs& args) {
  const std::uint32_t count = read_rows("apply_table_deltas", args.num_deltas, args.max_deltas);
  const auto* entries = host_ptr<const std::uint32_t>(args.entries);
  const auto* blocks = host_ptr<const std::uint32_t>(args.blocks);
  auto* tables = host_ptr<std::uint32_t>(args.tables);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (entries[i] >= args.table_entries) {
      throw InvalidArgument(
          fmt::format("apply_table_deltas: entry {} of delta {} is beyond the block tables of {} entries",
                      entries[i], i, args.table_entries));
    }
  }
  for (std::uint32_t i = 0; i < count; ++i) tables[entries[i]] = blocks[i];
}

}  // namespace

void register_step(gpu::CpuKernelTable& table) {
  table.add<apply_table_deltas>(kApplyTableDeltas);
}

}  // namespace metrale::kernels
