// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <sched.h>

#include <metrale/base/thread_pool.h>

namespace metrale {
namespace {

constexpr std::chrono::microseconds kSpin{20};

void cpu_pause() {
  __builtin_ia32_pause();
}

// True as soon as `ready()` is; false after the spin time.
template <class Ready>
bool spin_until(Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      cpu_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::thread::hardware_concurrency();
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads) {
  const unsigned count = threads != 0 ? threads : std::max(2U, usable_processors());
  workers_.reserve(count);
  for (unsigned i = 0; i < count; ++i) workers_.emplace_back([this] { worker_main(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::post(std::function<void()> task) {
  bool wake = false;
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    pending_.fetch_add(1, std::memory_order_release);
    wake = sleepers_ > 0;
  }
  if (wake) wake_.notify_one();
}

void ThreadPool::run(Region& region) {
  bool wake = false;
  {
    const std::scoped_lock lock(mutex_);
    regions_.push_back(&region);
    pending_.fetch_add(1, std::memory_order_release);
    wake = sleepers_ > 0;
  }
  if (wake) wake_.notify_all();
  work_on(region);
  std::unique_lock lock(mutex_);
  // Nobody joins after this: helpers enter under the lock and only while the region is listed.
  std::erase(regions_, &region);
  pending_.fetch_sub(1, std::memory_order_release);
  if (region.helpers.load() != 0) {
    lock.unlock();
    spin_until([&] { return region.helpers.load(std::memory_order_acquire) == 0; });
    lock.lock();
    region_done_.wait(lock, [&] { return region.helpers.load() == 0; });
  }
  if (region.error) std::rethrow_exception(region.error);
}

void ThreadPool::work_on(Region& region) {
  for (;;) {
    const std::size_t begin = region.next.fetch_add(region.grain, std::memory_order_relaxed);
    if (begin >= region.count) return;
    try {
      region.invoke(region.body, begin, std::min(begin + region.grain, region.count));
    } catch (...) {
      // Carried to the caller of parallel_for, which rethrows it.
      region.next.store(region.count, std::memory_order_relaxed);
      const std::scoped_lock lock(mutex_);
      if (!region.error) region.error = std::current_exception();
    }
  }
}

void ThreadPool::worker_main() {
  for (;;) {
    spin_until([&] { return pending_.load(std::memory_order_acquire) != 0; });
    std::unique_lock lock(mutex_);
    const auto open_region = [&]() -> Region* {
      // A region whose ranges are all handed out only waits for its helpers: nothing to join.
      for (Region* region : regions_) {
        if (region->next.load(std::memory_order_relaxed) < region->count) return region;
      }
      return nullptr;
    };
    Region* region = open_region();
    while (region == nullptr && tasks_.empty() && !stop_) {
      ++sleepers_;
      wake_.wait(lock);
      --sleepers_;
      region = open_region();
    }
    if (region != nullptr) {
      region->helpers.fetch_add(1);
      lock.unlock();
      work_on(*region);
      lock.lock();
      if (region->helpers.fetch_sub(1) == 1) region_done_.notify_all();
    } else if (!tasks_.empty()) {
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      pending_.fetch_sub(1, std::memory_order_release);
      lock.unlock();
      task();
    } else {
      return;
    }
  }
}

}  // namespace metrale
