// SPDX-License-Identifier: Apache-2.0
// What the handles of the CUDA backend name: streams, events, captures and graphs.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <metrale/gpu/allocation_book.h>
#include <metrale/gpu/capture_book.h>

#include "backends/cuda/host.h"
#include "backends/cuda/staging.h"

namespace metrale::backends::cuda {

class CudaStream {
 public:
  // One of its own.
  explicit CudaStream(const CudaHost& host);
  // The host's, which stays.
  CudaStream(const CudaHost& host, DriverStream shared) : host_(host), handle_(shared), owned_(false) {}
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] DriverStream handle() const { return handle_; }

 private:
  const CudaHost& host_;
  DriverStream handle_ = nullptr;
  const bool owned_ = true;
};

// What a capture has recorded so far, beside what the driver keeps. Guarded by the lock of its book.
struct CudaCapture {
  explicit CudaCapture(gpu::StreamRef origin) : session(origin) {}

  // Describes the next node and what it points into.
  void add(const gpu::AllocationBook& book, std::string description,
           std::span<const std::uint64_t> addresses);

  gpu::CaptureSession session;
  gpu::GraphUses uses;
  std::vector<std::string> nodes;
  std::vector<StagingPiece*> pieces;
  bool is_over = false;
};
using CaptureBook = gpu::CaptureBook<CudaCapture>;
using CapturePoint = gpu::CapturePoint<CudaCapture>;

// Thread-safe.
class CudaEvent {
 public:
  explicit CudaEvent(const CudaHost& host);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // `point` is empty outside of captures.
  void record(DriverStream stream, CapturePoint point);
  [[nodiscard]] bool was_recorded() const;
  // Its capture is null where the latest record lies outside captures.
  [[nodiscard]] CapturePoint capture_point() const;
  [[nodiscard]] DriverEvent handle() const { return handle_; }

 private:
  const CudaHost& host_;
  DriverEvent handle_ = nullptr;
  mutable std::mutex mutex_;
  bool recorded_ = false;
  CapturePoint point_;
};

// Thread-safe.
class CudaGraph {
 public:
  // Takes over `graph`, also when it throws, and the pieces of `capture`.
  CudaGraph(const CudaHost& host, StagingPool& staging, DriverGraph graph, CudaCapture& capture);
  // Blocking: until its replays are over.
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch(DriverStream stream, const gpu::AllocationBook& book);

 private:
  const CudaHost& host_;
  StagingPool& staging_;
  const std::unique_ptr<CudaEvent> last_replay_;  // replays of one graph follow each other
  DriverGraphExec exec_ = nullptr;
  gpu::GraphUses uses_;
  const std::vector<std::string> nodes_;
  const std::vector<StagingPiece*> pieces_;
  std::mutex mutex_;
  bool launched_ = false;  // guarded by mutex_
};

}  // namespace metrale::backends::cuda
