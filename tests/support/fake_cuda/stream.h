// SPDX-License-Identifier: Apache-2.0
// Streams and events of the fake driver. A stream is a thread with a queue: nothing has happened when the
// call that enqueues it returns, and independent streams run at the same time.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "support/fake_cuda/machine.h"

namespace fake_cuda {

using Command = std::function<void()>;

// A point that a stream passes. Thread-safe.
class Mark {
 public:
  void pass();
  [[nodiscard]] bool is_passed() const;
  void wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool passed_ = false;
};

// Thread-safe.
class Stream {
 public:
  explicit Stream(Context& context);
  // Blocking: until its queue is empty.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(Command command);
  // Blocking: until what is enqueued now has run.
  void wait();

  [[nodiscard]] Context& context() const { return context_; }

  // Guarded by the machine's lock.
  std::shared_ptr<Capture> capture;

 private:
  void run();

  Context& context_;
  const std::shared_ptr<std::atomic<bool>> lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> queue_;
  bool closing_ = false;
  std::thread thread_;
};

// Guarded by the machine's lock.
struct Event {
  std::shared_ptr<Mark> mark;        // of the latest record outside captures; null: none
  std::shared_ptr<Capture> capture;  // where the latest record lies in one
  std::vector<std::size_t> nodes;    // what it stands for there
};

}  // namespace fake_cuda
