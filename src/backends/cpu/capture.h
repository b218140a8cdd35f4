// SPDX-License-Identifier: Apache-2.0
// CaptureBook: the captures that are under way on a backend, and who takes part in each. Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <metrale/gpu/capture_session.h>
#include <metrale/gpu/types.h>

#include "backends/cpu/command.h"
#include "backends/cpu/event.h"
#include "backends/cpu/graph.h"

namespace metrale::backends::cpu {

// Guarded by the lock of its book.
struct Capture {
  explicit Capture(gpu::StreamRef origin) : session(origin) {}
  gpu::CaptureSession session;
  Batch nodes;
  std::vector<NodeUse> uses;
  bool is_over = false;
};

class CaptureBook {
 public:
  explicit CaptureBook(const HostMemory& memory) : memory_(memory) {}

  [[nodiscard]] bool is_capturing(gpu::StreamRef stream) const;
  void begin(gpu::StreamRef stream);
  // As GpuBackend::end_capture.
  [[nodiscard]] std::shared_ptr<CpuGraph> end(gpu::StreamRef stream);
  void abort(gpu::StreamRef stream);

  // Records the one command that `append(Batch&)` adds. False where `stream` is not capturing.
  template <class Append>
  [[nodiscard]] bool record(gpu::StreamRef stream, Append& append) {
    if (active_count_.load(std::memory_order_acquire) == 0) return false;
    const std::scoped_lock lock(mutex_);
    const auto found = active_.find(stream);
    if (found == active_.end()) return false;
    append(found->second->nodes);
    found->second->session.add_node(stream);
    note_uses(*found->second);
    return true;
  }
  // Marks the stream's point in its capture. False where `stream` is not capturing.
  [[nodiscard]] bool record_event(gpu::StreamRef stream, CpuEvent& event);
  // `stream` waits for a point of a capture and joins it. Throws InvalidArgument where that capture is over
  // or `stream` takes part in another.
  void wait(gpu::StreamRef stream, const CpuEvent::CapturePoint& point);

 private:
  void note_uses(Capture& capture);
  void note_use(Capture& capture, std::uint64_t address);
  void close(Capture& capture);

  const HostMemory& memory_;
  mutable std::mutex mutex_;
  std::map<gpu::StreamRef, std::shared_ptr<Capture>> active_;
  std::atomic<std::size_t> active_count_{0};  // active_.size()
};

}  // namespace metrale::backends::cpu
