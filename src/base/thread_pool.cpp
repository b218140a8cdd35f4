// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pthread.h>
#include <sched.h>
#include <system_error>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/spin.h>
#include <metrale/base/thread_pool.h>

namespace metrale {
namespace {

unsigned thread_count(const ThreadPoolOptions& options) {
  if (options.threads != 0) return options.threads;
  const CpuList& cpus = options.cpus.empty() ? usable_cpus() : options.cpus;
  return std::max(2U, static_cast<unsigned>(cpus.size()));
}

void pin(std::thread& thread, unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  const int error = ::pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
  if (error != 0) {
    throw InvalidArgument(
        fmt::format("a thread cannot be kept on CPU {}: {}", cpu, std::generic_category().message(error)));
  }
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options) {
  check_usable(options.cpus);
  const unsigned count = thread_count(options);
  workers_.reserve(count);
  try {
    for (unsigned i = 0; i < count; ++i) {
      workers_.emplace_back([this] { worker_main(); });
      if (!options.cpus.empty()) pin(workers_.back(), options.cpus[i % options.cpus.size()]);
    }
  } catch (const std::system_error& error) {
    const std::size_t made = workers_.size();
    stop_and_join();
    throw DeviceError(
        "pthread_create", error.code().value(),
        fmt::format("thread {} of {}: {}; ask for fewer threads", made + 1, count, error.code().message()));
  } catch (const InvalidArgument&) {
    stop_and_join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop_and_join();
}

void ThreadPool::stop_and_join() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

std::size_t ThreadPool::waiting_work() const {
  std::size_t work = tasks_.size();
  for (const Region* region : regions_) {
    const std::size_t next = region->next.load(std::memory_order_relaxed);
    if (next < region->count) work += ceil_div(region->count - next, region->grain);
  }
  return work;
}

// Sleepers are worth a system call only where the spinning workers are too few for all that waits: one that
// spins may take any of it, and then be held up there.
std::size_t ThreadPool::claim_sleepers(std::size_t work) {
  const std::size_t coming = spinners_ + wake_tokens_;
  const std::size_t asleep = sleepers_ - wake_tokens_;
  const std::size_t claimed = work > coming ? std::min(work - coming, asleep) : 0;
  wake_tokens_ += claimed;
  return claimed;
}

void ThreadPool::wake(std::size_t sleepers) {
  for (std::size_t i = 0; i < sleepers; ++i) wake_.notify_one();
}

void ThreadPool::reserve_tasks(std::size_t count) {
  const std::scoped_lock lock(mutex_);
  tasks_.reserve(reserved_tasks_ + count);
  reserved_tasks_ += count;
}

void ThreadPool::post(std::function<void()> task) {
  std::size_t claimed = 0;
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push(std::move(task));
    pending_.fetch_add(1, std::memory_order_release);
    claimed = claim_sleepers(waiting_work());
  }
  wake(claimed);
}

void ThreadPool::run(Region& region) {
  std::size_t claimed = 0;
  {
    const std::scoped_lock lock(mutex_);
    regions_.push_back(&region);
    pending_.fetch_add(1, std::memory_order_release);
    claimed = claim_sleepers(waiting_work());
  }
  wake(claimed);
  // The first range is the caller's before anyone can see the region: helpers that took them all would leave
  // it waiting, and one worker fewer for what else is queued.
  work_on(region, 0);
  std::unique_lock lock(mutex_);
  // Nobody joins after this: helpers enter under the lock and only while the region is listed.
  if (std::erase(regions_, &region) != 0) pending_.fetch_sub(1, std::memory_order_release);
  if (region.helpers.load() != 0) {
    lock.unlock();
    const bool done = spin_until([&] { return region.helpers.load(std::memory_order_acquire) == 0; });
    lock.lock();
    if (!done) region_done_.wait(lock, [&] { return region.helpers.load() == 0; });
  }
  if (region.error) std::rethrow_exception(region.error);
}

std::size_t ThreadPool::take_range(Region& region) {
  return region.next.fetch_add(region.grain, std::memory_order_relaxed);
}

void ThreadPool::work_on(Region& region, std::size_t begin) {
  for (; begin < region.count; begin = take_range(region)) {
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

ThreadPool::Region* ThreadPool::open_region() {
  while (!regions_.empty()) {
    Region* const region = regions_.front();
    if (region->next.load(std::memory_order_relaxed) < region->count) return region;
    // All ranges are handed out: nothing to join, so it must not keep idle workers awake.
    regions_.erase(regions_.begin());
    pending_.fetch_sub(1, std::memory_order_release);
  }
  return nullptr;
}

void ThreadPool::wait_for_work(std::unique_lock<std::mutex>& lock) {
  ++spinners_;
  lock.unlock();
  const bool seen = spin_until([&] { return pending_.load(std::memory_order_acquire) != 0; });
  lock.lock();
  --spinners_;
  if (seen || stop_ || pending_.load() != 0) return;
  ++sleepers_;
  wake_.wait(lock, [&] { return wake_tokens_ != 0 || stop_; });
  --sleepers_;
  if (wake_tokens_ != 0) --wake_tokens_;
}

void ThreadPool::worker_main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (Region* const region = open_region()) {
      region->helpers.fetch_add(1);
      lock.unlock();
      work_on(*region, take_range(*region));
      lock.lock();
      if (region->helpers.fetch_sub(1) == 1) region_done_.notify_all();
    } else if (!tasks_.empty()) {
      const auto task = tasks_.pop();
      pending_.fetch_sub(1, std::memory_order_release);
      lock.unlock();
      task();
      lock.lock();
    } else if (stop_) {
      return;
    } else {
      wait_for_work(lock);
    }
  }
}

}  // namespace metrale
