// SPDX-License-Identifier: Apache-2.0
// Clock: time that tests can hold in their hand.
#pragma once

#include <atomic>
#include <chrono>

namespace metrale {

using Nanoseconds = std::chrono::nanoseconds;

class Clock {
 public:
  Clock() = default;
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  // Monotonic, from an arbitrary origin. Thread-safe.
  [[nodiscard]] Nanoseconds now() const { return do_now(); }

 private:
  [[nodiscard]] virtual Nanoseconds do_now() const = 0;
};

class SteadyClock final : public Clock {
 private:
  [[nodiscard]] Nanoseconds do_now() const override {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
  }
};

class ManualClock final : public Clock {
 public:
  void advance(Nanoseconds by) { now_ns_ += by.count(); }

 private:
  [[nodiscard]] Nanoseconds do_now() const override { return Nanoseconds(now_ns_.load()); }
  std::atomic<Nanoseconds::rep> now_ns_{0};
};

}  // namespace metrale
