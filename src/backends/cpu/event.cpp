// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/event.h"

#include <metrale/base/spin.h>

namespace metrale::backends::cpu {

void EventRecord::complete(FailurePtr failure, Scheduler& scheduler) {
  std::vector<std::shared_ptr<Strand>> waiting;
  {
    const std::scoped_lock lock(mutex_);
    failure_ = std::move(failure);
    complete_.store(true, std::memory_order_release);
    waiting.swap(waiting_);
    completed_.notify_all();
  }
  for (std::shared_ptr<Strand>& strand : waiting) scheduler.make_ready(std::move(strand));
}

bool EventRecord::complete_or_ready_later(const std::shared_ptr<Strand>& strand) {
  if (is_complete()) return true;
  const std::scoped_lock lock(mutex_);
  if (is_complete()) return true;
  waiting_.push_back(strand);
  return false;
}

void EventRecord::wait() {
  if (spin_until([this] { return is_complete(); })) return;
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [this] { return is_complete(); });
}

FailurePtr EventRecord::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void CpuEvent::set_record(std::shared_ptr<EventRecord> record) {
  const std::scoped_lock lock(mutex_);
  record_ = std::move(record);
  point_ = {};
}

void CpuEvent::set_capture_point(CapturePoint point) {
  const std::scoped_lock lock(mutex_);
  record_ = nullptr;
  point_ = std::move(point);
}

std::shared_ptr<EventRecord> CpuEvent::record() const {
  const std::scoped_lock lock(mutex_);
  return record_;
}

CapturePoint CpuEvent::capture_point() const {
  const std::scoped_lock lock(mutex_);
  return point_;
}

}  // namespace metrale::backends::cpu
