// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/scheduler.h"

#include <utility>

namespace metrale::backends::cpu {

Scheduler::Scheduler(ThreadPool& pool, std::uint64_t seed) : pool_(pool), seed_(seed), random_(seed) {}

void Scheduler::expect_strand() {
  pool_.reserve_tasks(1);
  const std::scoped_lock lock(mutex_);
  ready_.reserve(expected_ + 1);
  ++expected_;
}

void Scheduler::make_ready(std::shared_ptr<Strand> strand) {
  {
    const std::scoped_lock lock(mutex_);
    ready_.push(std::move(strand));
    ready_count_.store(ready_.size(), std::memory_order_relaxed);
  }
  // One task for each ready strand; which task gets which strand does not matter.
  pool_.post([this] { run_one(); });
}

void Scheduler::run_one() {
  std::shared_ptr<Strand> strand;
  {
    const std::scoped_lock lock(mutex_);
    if (seed_ != 0) std::swap(ready_[0], ready_[random_() % ready_.size()]);
    strand = ready_.pop();
    ready_count_.store(ready_.size(), std::memory_order_relaxed);
  }
  strand->run();
}

}  // namespace metrale::backends::cpu
