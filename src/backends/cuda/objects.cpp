// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/objects.h"

#include <fmt/format.h>

namespace metrale::backends::cuda {
namespace {

// Null for a graph over memory that is gone: the driver refuses it, and so will each launch, with the reason.
DriverGraphExec instantiate(const CudaHost& host, DriverGraph graph, bool is_usable) {
  DriverGraphExec exec = nullptr;
  const Result result = is_usable ? host.driver().graph_instantiate(&exec, graph, 0) : kSuccess;
  host.tear_down([&] { return host.driver().graph_destroy(graph); }, "cuGraphDestroy");
  host.check(result, "cuGraphInstantiateWithFlags");
  return exec;
}

// Made first, so that nothing has to be undone but the graph.
std::unique_ptr<CudaEvent> make_replay_event(const CudaHost& host, DriverGraph graph) {
  try {
    return std::make_unique<CudaEvent>(host);
  } catch (...) {
    host.tear_down([&] { return host.driver().graph_destroy(graph); }, "cuGraphDestroy");
    throw;
  }
}

}  // namespace

CudaStream::CudaStream(const CudaHost& host) : host_(host) {
  host_.check(host_.driver().stream_create(&handle_, kStreamNonBlocking), "cuStreamCreate");
}

CudaStream::~CudaStream() {
  if (!owned_ || host_.context_lost()) return;
  const ContextScope scope(host_);
  host_.tear_down([&] { return host_.driver().stream_destroy(handle_); }, "cuStreamDestroy");
}

// Arguments are looked through word by word: a number that looks like a live address costs at worst a refused
// replay.
void CudaCapture::add(const gpu::AllocationBook& book, std::string description,
                      std::span<const std::uint64_t> addresses) {
  for (const std::uint64_t address : addresses) uses.note(book, nodes.size(), address);
  nodes.push_back(std::move(description));
}

CudaEvent::CudaEvent(const CudaHost& host) : host_(host) {
  host_.check(host_.driver().event_create(&handle_, kEventDisableTiming), "cuEventCreate");
}

CudaEvent::~CudaEvent() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  host_.tear_down([&] { return host_.driver().event_destroy(handle_); }, "cuEventDestroy");
}

void CudaEvent::record(DriverStream stream, CapturePoint point) {
  const std::scoped_lock lock(mutex_);
  host_.check(host_.driver().event_record(handle_, stream), "cuEventRecord");
  recorded_ = true;
  point_ = std::move(point);
}

bool CudaEvent::was_recorded() const {
  const std::scoped_lock lock(mutex_);
  return recorded_;
}

CapturePoint CudaEvent::capture_point() const {
  const std::scoped_lock lock(mutex_);
  return point_;
}

CudaGraph::CudaGraph(const CudaHost& host, StagingPool& staging, DriverGraph graph, CudaCapture& capture)
    : host_(host),
      staging_(staging),
      last_replay_(make_replay_event(host, graph)),
      exec_(instantiate(host, graph, capture.uses.all_live())),
      uses_(std::move(capture.uses)),
      nodes_(std::move(capture.nodes)),
      pieces_(std::exchange(capture.pieces, {})) {}

CudaGraph::~CudaGraph() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  if (launched_) {
    host_.tear_down([&] { return host_.driver().event_synchronize(last_replay_->handle()); },
                    "cuEventSynchronize");
  }
  if (exec_ != nullptr) {
    host_.tear_down([&] { return host_.driver().graph_exec_destroy(exec_); }, "cuGraphExecDestroy");
  }
  for (StagingPiece* piece : pieces_) staging_.give_back(*piece);
}

void CudaGraph::launch(DriverStream stream, const gpu::AllocationBook& book) {
  uses_.check(book, [this](std::size_t node) { return nodes_[node]; });
  const std::scoped_lock lock(mutex_);
  const Result result = host_.driver().graph_launch(exec_, stream);
  if (result != kSuccess) host_.fail(result, fmt::format("cuGraphLaunch of {} nodes", nodes_.size()));
  try {
    last_replay_->record(stream, {});
  } catch (...) {
    // Nothing else would tell when this replay no longer needs the graph's pieces.
    host_.check_quietly(host_.driver().stream_synchronize(stream), "cuStreamSynchronize");
    throw;
  }
  launched_ = true;
}

}  // namespace metrale::backends::cuda
