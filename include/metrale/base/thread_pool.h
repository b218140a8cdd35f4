// SPDX-License-Identifier: Apache-2.0
// ThreadPool: the one set of worker threads of a backend. Tasks run in any order; parallel_for splits a loop
// over the caller and whatever workers are idle. An idle worker spins for 20 us, then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include <metrale/base/cpu_set.h>
#include <metrale/base/ring_queue.h>

namespace metrale {

struct ThreadPoolOptions {
  unsigned threads = 0;  // 0: one for each of `cpus`, or of the processors that this process may run on
  CpuList cpus;          // thread i runs on the i-th of them only, around again; empty: the system decides
};

class ThreadPool {
 public:
  // Never fewer than two threads unless they are counted out, so that two streams can overlap everywhere.
  // Throws InvalidArgument for a CPU that is not usable, DeviceError where the system gives fewer threads.
  explicit ThreadPool(const ThreadPoolOptions& options);
  explicit ThreadPool(unsigned threads = 0) : ThreadPool(ThreadPoolOptions{.threads = threads, .cpus = {}}) {}
  // Runs every task already posted, then joins.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] unsigned size() const { return static_cast<unsigned>(workers_.size()); }

  // Thread-safe. So many tasks more may wait without an allocation.
  void reserve_tasks(std::size_t count);
  // Thread-safe. The task runs on a worker; it must not throw.
  void post(std::function<void()> task);

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each of at most `grain` items, on the
  // calling thread and idle workers; returns when all are done. Ranges start at multiples of `grain` whatever
  // the number of threads. The first exception stops handing out ranges and is rethrown here. May be called
  // from a task or a body.
  template <class Body>
  void parallel_for(std::size_t count, std::size_t grain, Body&& body) {
    if (count == 0) return;
    if (grain == 0) grain = 1;
    if (count <= grain) {
      body(std::size_t{0}, count);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    Region region;
    region.count = count;
    region.grain = grain;
    region.next = grain;
    region.body = const_cast<void*>(static_cast<const void*>(&body));
    region.invoke = [](void* object, std::size_t begin, std::size_t end) {
      (*static_cast<Plain*>(object))(begin, end);
    };
    run(region);
  }

 private:
  struct Region {
    std::size_t count = 0;
    std::size_t grain = 1;
    void* body = nullptr;
    void (*invoke)(void*, std::size_t, std::size_t) = nullptr;
    std::atomic<std::size_t> next{0};
    std::atomic<unsigned> helpers{0};  // changed under mutex_ only
    std::exception_ptr error;          // guarded by mutex_
  };

  void run(Region& region);
  // Runs the range at `begin`, then others until none is left.
  void work_on(Region& region, std::size_t begin);
  static std::size_t take_range(Region& region);
  void worker_main();
  void stop_and_join();
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Region* open_region();
  // Under mutex_: tasks, and ranges of open regions.
  [[nodiscard]] std::size_t waiting_work() const;
  [[nodiscard]] std::size_t claim_sleepers(std::size_t work);
  void wake(std::size_t sleepers);

  std::mutex mutex_;
  std::condition_variable wake_;         // wake_tokens_ or stop_
  std::condition_variable region_done_;  // a region lost its last helper
  RingQueue<std::function<void()>> tasks_;
  std::size_t reserved_tasks_ = 0;
  std::vector<Region*> regions_;         // those that may have ranges to hand out
  std::atomic<std::size_t> pending_{0};  // tasks_.size() + regions_.size(), read while spinning
  std::size_t spinners_ = 0;             // workers that will look at the queues again without being woken
  std::size_t sleepers_ = 0;
  std::size_t wake_tokens_ = 0;  // sleepers that were woken and have not noticed yet
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace metrale
