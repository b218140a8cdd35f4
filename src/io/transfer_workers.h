// SPDX-License-Identifier: Apache-2.0
// TransferWorkers: threads that carry out transfers by a blocking call each. What posix and cuFile have in
// common.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <metrale/base/ring_queue.h>
#include <metrale/io/io_engine.h>

namespace metrale::io {

class TransferWorkers {
 public:
  // Called on several threads; must not throw. The result of a RawCompletion.
  using Call = std::function<std::int64_t(const RawTransfer&)>;

  // `on_start` runs first on each thread; what it throws is thrown here. At most `depth` transfers at a time.
  TransferWorkers(unsigned threads, std::size_t depth, const std::function<void()>& on_start, Call call);
  // Carries out what is waiting, then joins.
  ~TransferWorkers() { stop_and_join(); }
  TransferWorkers(const TransferWorkers&) = delete;
  TransferWorkers& operator=(const TransferWorkers&) = delete;

  // As those of IoEngine.
  [[nodiscard]] std::size_t submit(std::span<const RawTransfer> transfers);
  [[nodiscard]] std::size_t reap(std::span<RawCompletion> out, IoTime deadline);

 private:
  void start(unsigned threads, const std::function<void()>& on_start);
  void worker_main(const std::function<void()>& on_start);
  void stop_and_join() noexcept;

  Call call_;
  std::mutex mutex_;
  std::condition_variable work_;      // waiting_ or stop_
  std::condition_variable answered_;  // answers_ or started_
  RingQueue<RawTransfer> waiting_;
  RingQueue<RawCompletion> answers_;
  unsigned started_ = 0;
  std::exception_ptr start_error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace metrale::io
