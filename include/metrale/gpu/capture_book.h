// SPDX-License-Identifier: Apache-2.0
// CaptureBook: the captures that are under way on a backend, and who takes part in each. For implementations
// of GpuBackend; thread-safe.
//
// A `Capture` has a CaptureSession `session` and a flag `is_over`, both guarded by the book's lock, and is
// made from the stream where it begins.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/gpu/capture_session.h>

namespace metrale::gpu {

// A point of a capture that an event was recorded at.
template <class Capture>
struct CapturePoint {
  std::shared_ptr<Capture> capture;  // null: none
  CaptureSession::Position position;
};

template <class Capture>
class CaptureBook {
 public:
  [[nodiscard]] bool is_capturing(StreamRef stream) const {
    if (active_count_.load(std::memory_order_acquire) == 0) return false;
    const std::scoped_lock lock(mutex_);
    return active_.contains(stream);
  }

  [[nodiscard]] std::vector<StreamRef> capturing() const {
    const std::scoped_lock lock(mutex_);
    std::vector<StreamRef> streams;
    for (const auto& [stream, capture] : active_) streams.push_back(stream);
    return streams;
  }

  void begin(StreamRef stream) {
    const std::scoped_lock lock(mutex_);
    const bool added = active_.emplace(stream, std::make_shared<Capture>(stream)).second;
    expects(added, "begin_capture on a stream that is capturing");
    count();
  }

  // Ends the capture that `stream` takes part in, whatever comes of it; null where there is none.
  std::shared_ptr<Capture> close(StreamRef stream) {
    const std::scoped_lock lock(mutex_);
    const auto found = active_.find(stream);
    if (found == active_.end()) return nullptr;
    const std::shared_ptr<Capture> capture = found->second;
    for (const StreamRef member : capture->session.streams()) active_.erase(member);
    count();
    capture->is_over = true;
    return capture;
  }

  // What end_capture(stream) refuses about a capture that close(stream) gave.
  static void expect_complete(const Capture* capture, StreamRef stream) {
    expects(capture != nullptr, "end_capture on a stream that is not capturing");
    expects(capture->session.origin() == stream,
            "end_capture on a stream that joined the capture; it ends where it began. It is discarded.");
    const auto unjoined = capture->session.unjoined();
    if (unjoined.empty()) return;
    throw InvalidArgument(fmt::format(
        "end_capture: {} stream(s) have work that the capturing stream does not wait for (record an "
        "event there and wait for it here); the capture is discarded",
        unjoined.size()));
  }

  // Calls `record(Capture&)`, which adds one node, under the lock. False where `stream` is not capturing.
  template <class Record>
  bool record(StreamRef stream, Record&& record) {
    if (active_count_.load(std::memory_order_acquire) == 0) return false;
    const std::scoped_lock lock(mutex_);
    const auto found = active_.find(stream);
    if (found == active_.end()) return false;
    record(*found->second);
    found->second->session.add_node(stream);
    return true;
  }

  // The point that an event recorded now on `stream` stands for; empty where it is not capturing.
  [[nodiscard]] std::optional<CapturePoint<Capture>> point(StreamRef stream) const {
    if (active_count_.load(std::memory_order_acquire) == 0) return std::nullopt;
    const std::scoped_lock lock(mutex_);
    const auto found = active_.find(stream);
    if (found == active_.end()) return std::nullopt;
    return CapturePoint<Capture>{found->second, found->second->session.position(stream)};
  }

  // `stream` waits for a point of a capture and joins it. Throws InvalidArgument where that capture is over
  // or `stream` takes part in another.
  void wait(StreamRef stream, const CapturePoint<Capture>& point) {
    const std::scoped_lock lock(mutex_);
    expects(!point.capture->is_over, "wait for an event that was recorded in a capture that is over");
    const auto [found, joined] = active_.emplace(stream, point.capture);
    expects(found->second == point.capture, "wait for an event of another capture");
    count();
    point.capture->session.wait(stream, point.position);
  }

 private:
  void count() { active_count_.store(active_.size(), std::memory_order_release); }

  mutable std::mutex mutex_;
  std::map<StreamRef, std::shared_ptr<Capture>> active_;
  std::atomic<std::size_t> active_count_{0};  // active_.size()
};

}  // namespace metrale::gpu
