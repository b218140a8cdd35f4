// SPDX-License-Identifier: Apache-2.0
#include "io/transfer_workers.h"

#include <algorithm>
#include <utility>

#include <metrale/base/error.h>

namespace metrale::io {

TransferWorkers::TransferWorkers(unsigned threads, std::size_t depth, const std::function<void()>& on_start,
                                 Call call)
    : call_(std::move(call)) {
  expects(threads != 0, "an I/O engine needs at least one thread");
  waiting_.reserve(depth);
  answers_.reserve(depth);
  try {
    start(threads, on_start);
  } catch (...) {
    stop_and_join();
    throw;
  }
}

void TransferWorkers::start(unsigned threads, const std::function<void()>& on_start) {
  threads_.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this, &on_start] { worker_main(on_start); });
  }
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return started_ == threads; });
  if (start_error_) std::rethrow_exception(start_error_);
}

void TransferWorkers::worker_main(const std::function<void()>& on_start) {
  std::exception_ptr error;
  try {
    if (on_start) on_start();
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  if (error && !start_error_) start_error_ = error;
  ++started_;
  answered_.notify_one();
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const RawTransfer transfer = waiting_.pop();
    lock.unlock();
    const std::int64_t result = call_(transfer);
    lock.lock();
    answers_.push({.tag = transfer.tag, .result = result});
    answered_.notify_one();
  }
}

void TransferWorkers::stop_and_join() noexcept {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::size_t TransferWorkers::submit(std::span<const RawTransfer> transfers) {
  {
    const std::scoped_lock lock(mutex_);
    for (const RawTransfer& transfer : transfers) waiting_.push(transfer);
  }
  for (std::size_t i = 0; i < std::min(transfers.size(), threads_.size()); ++i) work_.notify_one();
  return transfers.size();
}

std::size_t TransferWorkers::reap(std::span<RawCompletion> out, IoTime deadline) {
  std::unique_lock lock(mutex_);
  const auto is_answered = [this] { return !answers_.empty(); };
  if (deadline == kForever) {
    answered_.wait(lock, is_answered);
  } else if (deadline != kNoWait) {
    answered_.wait_until(lock, deadline, is_answered);
  }
  const std::size_t count = std::min(out.size(), answers_.size());
  for (std::size_t i = 0; i < count; ++i) out[i] = answers_.pop();
  return count;
}

}  // namespace metrale::io
