// SPDX-License-Identifier: Apache-2.0
// CpuGraph: recorded commands that run again and again as one command of a stream, in the order of capture.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <metrale/gpu/allocation_book.h>

#include "backends/cpu/command.h"
#include "backends/cpu/failure.h"
#include "backends/cpu/host_memory.h"

namespace metrale::backends::cpu {

class CpuGraph {
 public:
  CpuGraph(Batch nodes, gpu::GraphUses uses) : nodes_(std::move(nodes)), uses_(std::move(uses)) {}

  // Throws InvalidArgument naming the node and the allocation where one was freed. Thread-safe.
  void check_uses(const gpu::AllocationBook& book);
  // A reference that counts as a running replay until it is dropped. Thread-safe.
  [[nodiscard]] static std::shared_ptr<CpuGraph> start_replay(const std::shared_ptr<CpuGraph>& graph);
  // Null where all nodes ran. Nodes after one that failed do not run.
  [[nodiscard]] FailurePtr run_nodes(ThreadPool& pool, const HostMemory& memory) const;
  // Blocking: until no replay runs.
  void wait_until_idle();

 private:
  void end_replay();

  const Batch nodes_;
  gpu::GraphUses uses_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint64_t replays_ = 0;  // guarded by mutex_
};

}  // namespace metrale::backends::cpu
