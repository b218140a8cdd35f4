// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/stream.h"

#include <utility>

namespace fake_cuda {

void Mark::pass() {
  {
    const std::scoped_lock lock(mutex_);
    passed_ = true;
  }
  changed_.notify_all();
}

bool Mark::is_passed() const {
  const std::scoped_lock lock(mutex_);
  return passed_;
}

void Mark::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

Stream::Stream(Context& context) : context_(context), lost_(context.lost), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(Command command) {
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(command));
  }
  changed_.notify_all();
}

void Stream::wait() {
  const auto mark = std::make_shared<Mark>();
  enqueue([mark] { mark->pass(); });
  mark->wait();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Command command = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    command();
    lock.lock();
  }
}

}  // namespace fake_cuda
