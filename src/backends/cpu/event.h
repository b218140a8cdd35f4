// SPDX-License-Identifier: Apache-2.0
// EventRecord: one recording of an event, a point that a stream will pass once. CpuEvent: the event itself,
// which stands for its latest record or for a point of a capture.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cpu/capture.h"
#include "backends/cpu/failure.h"
#include "backends/cpu/scheduler.h"

namespace metrale::backends::cpu {

// Thread-safe.
class EventRecord {
 public:
  // Called once, when the recording stream passes the point. Readies the strands that wait.
  void complete(FailurePtr failure, Scheduler& scheduler);
  // True when complete. Otherwise `strand` is made ready at completion, possibly before this returns.
  [[nodiscard]] bool complete_or_ready_later(const std::shared_ptr<Strand>& strand);
  [[nodiscard]] bool is_complete() const { return complete_.load(std::memory_order_acquire); }
  void wait();
  // Of the recording stream; call it once complete.
  [[nodiscard]] FailurePtr failure() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable completed_;
  std::atomic<bool> complete_{false};
  FailurePtr failure_;
  std::vector<std::shared_ptr<Strand>> waiting_;
};

// Thread-safe.
class CpuEvent {
 public:
  void set_record(std::shared_ptr<EventRecord> record);
  void set_capture_point(CapturePoint point);
  // Null where nothing was recorded yet, or in a capture.
  [[nodiscard]] std::shared_ptr<EventRecord> record() const;
  // Its capture is null where the latest record lies outside captures.
  [[nodiscard]] CapturePoint capture_point() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<EventRecord> record_;
  CapturePoint point_;
};

}  // namespace metrale::backends::cpu
