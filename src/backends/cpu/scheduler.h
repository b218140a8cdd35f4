// SPDX-License-Identifier: Apache-2.0
// Scheduler: runs strands (streams with work) on the thread pool, first come first served; with a seed, in
// random order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>

#include <metrale/base/ring_queue.h>
#include <metrale/base/thread_pool.h>

namespace metrale::backends::cpu {

class Strand {
 public:
  Strand() = default;
  virtual ~Strand() = default;
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Called on a worker, by one worker at a time.
  void run() { do_run(); }

 private:
  virtual void do_run() = 0;
};

class Scheduler {
 public:
  // The pool outlives the scheduler's last strand. Seed 0: no randomness.
  Scheduler(ThreadPool& pool, std::uint64_t seed);

  // Thread-safe. Room for one strand more: make_ready() of a strand that was expected does not fail.
  void expect_strand();
  // Thread-safe. `strand` is run once, soon; its owner makes sure that it is not ready twice.
  void make_ready(std::shared_ptr<Strand> strand);
  // Whether other strands wait for a worker.
  [[nodiscard]] bool has_ready() const { return ready_count_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] ThreadPool& pool() const { return pool_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  void run_one();

  ThreadPool& pool_;
  const std::uint64_t seed_;
  std::mutex mutex_;
  RingQueue<std::shared_ptr<Strand>> ready_;
  std::size_t expected_ = 0;
  std::mt19937_64 random_;
  std::atomic<std::size_t> ready_count_{0};
};

}  // namespace metrale::backends::cpu
