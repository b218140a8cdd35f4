// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/cpu_set.h>
#include <metrale/base/error.h>
#include <metrale/base/thread_pool.h>

namespace metrale {
namespace {

TEST(ThreadPool, ParallelForVisitsEveryItemOnce) {
  ThreadPool pool(4);
  std::vector<int> seen(10'007, 0);
  pool.parallel_for(seen.size(), 13, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++seen[i];
  });
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 10'007);
  EXPECT_EQ(*std::min_element(seen.begin(), seen.end()), 1);
}

TEST(ThreadPool, RangesStartAtMultiplesOfTheGrain) {
  ThreadPool pool(3);
  std::atomic<bool> aligned{true};
  pool.parallel_for(1000, 64, [&](std::size_t begin, std::size_t end) {
    if (begin % 64 != 0 || end - begin > 64) aligned = false;
  });
  EXPECT_TRUE(aligned);
}

TEST(ThreadPool, ExceptionOfABodyReachesTheCaller) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.parallel_for(100, 1,
                                 [](std::size_t begin, std::size_t) {
                                   if (begin == 57) throw std::runtime_error("57");
                                 }),
               std::runtime_error);
  std::atomic<int> after{0};
  pool.parallel_for(10, 1, [&](std::size_t, std::size_t) { ++after; });
  EXPECT_EQ(after, 10);
}

TEST(ThreadPool, LoopsNestInsideTasksAndLoops) {
  ThreadPool pool(2);
  std::atomic<int> count{0};
  std::promise<void> done;
  pool.post([&] {
    pool.parallel_for(8, 1, [&](std::size_t, std::size_t) {
      pool.parallel_for(8, 1, [&](std::size_t, std::size_t) { ++count; });
    });
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_EQ(count, 64);
}

TEST(ThreadPool, TwoTasksRunAtOnceEvenOnOneProcessor) {
  ThreadPool pool;
  std::promise<void> first;
  std::promise<void> second;
  std::promise<void> both;
  pool.post([&] {
    first.set_value();
    second.get_future().wait();
    both.set_value();
  });
  pool.post([&] {
    first.get_future().wait();
    second.set_value();
  });
  both.get_future().wait();
}

TEST(ThreadPool, WorkerThatFellAsleepWakesForATask) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::promise<void> done;
    // Longer than a worker spins.
    const auto later = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    while (std::chrono::steady_clock::now() < later) std::this_thread::yield();
    pool.post([&] { done.set_value(); });
    done.get_future().wait();
  }
}

TEST(ThreadPool, SleepersWakeForEveryTaskOfABurst) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    // The four tasks end only when all four run at once.
    std::atomic<int> running{0};
    std::array<std::promise<void>, 4> done;
    for (auto& promise : done) {
      pool.post([&running, &promise] {
        ++running;
        while (running < 4) std::this_thread::yield();
        promise.set_value();
      });
    }
    for (auto& promise : done) promise.get_future().wait();
  }
}

// Many rounds: whether a worker spins or sleeps when the task comes is the scheduler's choice.
TEST(ThreadPool, LoopOfALongBodyLeavesTheOtherWorkersToTasks) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(3);
    std::promise<void> task_ran;
    std::shared_future<void> gate = task_ran.get_future().share();
    std::promise<void> loop_done;
    pool.post([&] {
      pool.parallel_for(2, 1, [&](std::size_t, std::size_t) { gate.wait(); });
      loop_done.set_value();
    });
    pool.post([&] { task_ran.set_value(); });
    loop_done.get_future().wait();
  }
}

TEST(ThreadPool, DestructorRunsWhatWasPosted) {
  std::atomic<int> ran{0};
  {
    ThreadPool pool(2);
    for (int i = 0; i < 100; ++i) pool.post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(ThreadPool, ThreadsStayOnTheirCpus) {
  const CpuList usable = usable_cpus();
  ThreadPool pool({.threads = 3, .cpus = usable});
  ASSERT_EQ(pool.size(), 3U);
  std::array<std::promise<CpuList>, 3> seen;
  std::barrier all_running(3);  // so that each thread takes one task
  for (auto& one : seen) {
    pool.post([&] {
      all_running.arrive_and_wait();
      one.set_value(usable_cpus());
    });
  }

  std::vector<CpuList> on;
  for (auto& one : seen) on.push_back(one.get_future().get());

  std::vector<CpuList> expected;
  for (std::size_t i = 0; i < 3; ++i) expected.push_back({usable[i % usable.size()]});
  EXPECT_THAT(on, testing::UnorderedElementsAreArray(expected));
}

TEST(ThreadPool, HasAThreadForEachOfItsCpusButAtLeastTwo) {
  const CpuList usable = usable_cpus();
  EXPECT_EQ(ThreadPool({.threads = 0, .cpus = {usable[0]}}).size(), 2U);
  EXPECT_EQ(ThreadPool({.threads = 0, .cpus = usable}).size(), std::max<std::size_t>(2, usable.size()));
}

TEST(ThreadPool, ACpuThatDoesNotExistIsRefused) {
  EXPECT_THROW(ThreadPool({.threads = 2, .cpus = {1023}}), InvalidArgument);
}

}  // namespace
}  // namespace metrale
