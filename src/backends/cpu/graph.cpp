// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/graph.h"

#include <fmt/format.h>

namespace metrale::backends::cpu {

void CpuGraph::check_uses(const gpu::AllocationBook& book) {
  uses_.check(book, [this](std::size_t node) { return describe(nodes_.commands()[node]); });
}

std::shared_ptr<CpuGraph> CpuGraph::start_replay(const std::shared_ptr<CpuGraph>& graph) {
  {
    const std::scoped_lock lock(graph->mutex_);
    ++graph->replays_;
  }
  return {graph.get(), [keep = graph](CpuGraph* running) { running->end_replay(); }};
}

void CpuGraph::end_replay() {
  const std::scoped_lock lock(mutex_);
  if (--replays_ == 0) idle_.notify_all();
}

void CpuGraph::wait_until_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return replays_ == 0; });
}

FailurePtr CpuGraph::run_nodes(ThreadPool& pool, const HostMemory& memory) const {
  const std::vector<Command>& nodes = nodes_.commands();
  std::size_t at = 0;
  return run_and_catch(
      [&] {
        for (; at < nodes.size(); ++at) execute(nodes[at], nodes_, pool, memory);
      },
      [&] { return fmt::format("graph node {} ({})", at, describe(nodes[at])); });
}

}  // namespace metrale::backends::cpu
