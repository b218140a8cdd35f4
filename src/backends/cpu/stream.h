// SPDX-License-Identifier: Apache-2.0
// CpuStream: an in-order queue of commands, run as a strand: one worker at a time, and none while it waits
// for an event.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>

#include <metrale/gpu/types.h>

#include "backends/cpu/command.h"
#include "backends/cpu/failure.h"
#include "backends/cpu/scheduler.h"

namespace metrale::backends::cpu {

class CpuStream final : public Strand, public std::enable_shared_from_this<CpuStream> {
 public:
  // Scheduler and memory outlive the stream's work.
  CpuStream(gpu::StreamRef ref, Scheduler& scheduler, const HostMemory& memory);

  [[nodiscard]] gpu::StreamRef ref() const { return ref_; }

  // Enqueues the one command that `append(Batch&)` adds. Thread-safe; never runs a command.
  template <class Append>
  void enqueue(Append& append) {
    {
      const std::scoped_lock lock(mutex_);
      append(pending_);
      ++enqueued_;
      if (is_scheduled_) return;
      is_scheduled_ = true;
    }
    scheduler_.make_ready(shared_from_this());
  }

  // Blocking: until everything enqueued so far has passed.
  void wait();
  // The stream's first failure; call it after wait().
  [[nodiscard]] FailurePtr failure() const;

 private:
  void do_run() override;
  // False where nothing is left; the strand is then no longer scheduled.
  [[nodiscard]] bool has_command();
  // False where the strand is to go away: it waits for an event, or takes a detour.
  [[nodiscard]] bool step(Command& command);
  void pass();
  // Keeps the first failure; null is none.
  void fail(FailurePtr failure);
  [[nodiscard]] bool takes_a_detour();

  const gpu::StreamRef ref_;
  Scheduler& scheduler_;
  const HostMemory& memory_;

  mutable std::mutex mutex_;
  std::condition_variable passed_;
  Batch pending_;
  std::uint64_t enqueued_ = 0;
  bool is_scheduled_ = false;
  FailurePtr failure_;

  // completed_ and wake_at_ meet without the lock: the strand raises one and reads the other, a waiter does
  // the reverse.
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> wake_at_{kNobodyWaits};
  static constexpr std::uint64_t kNobodyWaits = ~std::uint64_t{0};

  // Touched by the strand only.
  Batch running_;
  std::size_t next_ = 0;
  std::uint64_t passed_count_ = 0;
  FailurePtr own_failure_;
  std::mt19937_64 random_;
};

}  // namespace metrale::backends::cpu
