// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <metrale/base/spin.h>

#include "backends/cpu/event.h"
#include "backends/cpu/graph.h"

namespace metrale::backends::cpu {

CpuStream::CpuStream(gpu::StreamRef ref, Scheduler& scheduler, const HostMemory& memory)
    : ref_(ref), scheduler_(scheduler), memory_(memory), random_(scheduler.seed() ^ ref.value()) {
  scheduler.expect_strand();
}

void CpuStream::do_run() {
  while (has_command()) {
    if (!step(running_.commands()[next_])) return;
    pass();
  }
}

bool CpuStream::has_command() {
  if (next_ < running_.commands().size()) return true;
  running_.clear();
  next_ = 0;
  {
    const std::scoped_lock lock(mutex_);
    std::swap(running_, pending_);
    if (running_.empty()) {
      is_scheduled_ = false;
      return false;
    }
  }
  // A stream that is fed without end must not keep a worker from the others.
  if (!scheduler_.has_ready()) return true;
  scheduler_.make_ready(shared_from_this());
  return false;
}

bool CpuStream::step(Command& command) {
  if (scheduler_.seed() != 0 && takes_a_detour()) {
    scheduler_.make_ready(shared_from_this());
    return false;
  }
  if (auto* const wait = std::get_if<WaitCommand>(&command)) {
    if (!wait->record->complete_or_ready_later(shared_from_this())) return false;
    fail(wait->record->failure());
  } else if (auto* const record = std::get_if<RecordCommand>(&command)) {
    record->record->complete(own_failure_, scheduler_);
  } else if (auto* const graph = std::get_if<GraphCommand>(&command)) {
    if (own_failure_ == nullptr) fail(graph->graph->run_nodes(scheduler_.pool(), memory_));
    graph->graph.reset();
  } else if (own_failure_ == nullptr) {
    fail(run_and_catch([&] { execute(command, running_, scheduler_.pool(), memory_); },
                       [&] { return describe(command); }));
  }
  return true;
}

void CpuStream::fail(FailurePtr failure) {
  if (failure == nullptr || own_failure_ != nullptr) return;
  own_failure_ = failure;
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(failure);
}

void CpuStream::pass() {
  ++next_;
  completed_.store(++passed_count_);
  if (passed_count_ < wake_at_.load()) return;
  const std::scoped_lock lock(mutex_);
  wake_at_.store(kNobodyWaits);
  passed_.notify_all();
}

void CpuStream::wait() {
  std::uint64_t target = 0;
  {
    const std::scoped_lock lock(mutex_);
    target = enqueued_;
  }
  const auto passed = [&] { return completed_.load() >= target; };
  if (spin_until(passed)) return;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_at_.store(std::min(wake_at_.load(), target));
    if (passed()) return;
    passed_.wait(lock);
  }
}

FailurePtr CpuStream::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// Seeded schedules only: stands aside for other streams now and then, and holds a worker up now and then, so
// that what needs a wait and has none goes wrong.
bool CpuStream::takes_a_detour() {
  const std::uint64_t draw = random_();
  if (draw % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 8 % 100));
  return draw / 1024 % 4 == 0;
}

}  // namespace metrale::backends::cpu
