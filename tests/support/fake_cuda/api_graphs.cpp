// SPDX-License-Identifier: Apache-2.0
// Captures and graphs.
#include <utility>

#include "support/fake_cuda/api.h"
#include "support/fake_cuda/graph.h"

namespace fake_cuda {
namespace {

using driver::DriverGraph;
using driver::DriverGraphExec;
using driver::DriverStream;

Result stream_begin_capture(DriverStream handle, int mode) {
  const auto stream = find_stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(machine().mutex);
  if (stream->capture != nullptr) return kIllegalState;
  if (mode != driver::kCaptureRelaxed) return driver::kErrorInvalidValue;
  stream->capture = std::make_shared<Capture>(*stream);
  return driver::kSuccess;
}

// The streams of the capture work normally again.
void close(Machine& m, Capture& capture) {
  capture.is_over = true;
  for (const auto& [handle, stream] : m.streams) {
    if (stream->capture.get() == &capture) stream->capture = nullptr;
  }
}

Result stream_end_capture(DriverStream handle, DriverGraph* graph) {
  *graph = nullptr;
  const auto stream = find_stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  auto made = std::make_shared<Graph>();
  {
    Machine& m = machine();
    const std::scoped_lock lock(m.mutex);
    const auto capture = stream->capture;
    if (capture == nullptr) return kIllegalState;
    if (capture->origin() != stream.get()) {
      capture->is_invalid = true;
      return kCaptureUnmatched;
    }
    close(m, *capture);
    if (capture->is_invalid) return kCaptureInvalidated;
    if (!capture->is_joined()) return kCaptureUnjoined;
    made->nodes = capture->take_nodes();
  }
  add(&Machine::graphs, graph, std::move(made));
  return driver::kSuccess;
}

Result graph_instantiate(DriverGraphExec* exec, DriverGraph handle, unsigned long long) {
  const auto graph = find(&Machine::graphs, handle);
  if (graph == nullptr) return driver::kErrorInvalidValue;
  auto made = std::make_shared<GraphExec>();
  made->commands = in_hardest_order(graph->nodes);
  add(&Machine::graph_execs, exec, std::move(made));
  return driver::kSuccess;
}

Result graph_destroy(DriverGraph graph) {
  return take(&Machine::graphs, graph) == nullptr ? driver::kErrorInvalidValue : driver::kSuccess;
}

Result graph_exec_destroy(DriverGraphExec exec) {
  return take(&Machine::graph_execs, exec) == nullptr ? driver::kErrorInvalidValue : driver::kSuccess;
}

Result graph_launch(DriverGraphExec handle, DriverStream to) {
  const auto exec = find(&Machine::graph_execs, handle);
  const auto stream = find_stream(to);
  if (exec == nullptr || stream == nullptr) return kInvalidHandle;
  {
    const std::scoped_lock lock(machine().mutex);
    if (stream->capture != nullptr) return kCaptureUnsupported;
  }
  const auto mark = std::make_shared<Mark>();
  const std::scoped_lock lock(exec->mutex);
  stream->enqueue([exec, mark, before = std::exchange(exec->last, mark)] {
    if (before != nullptr) before->wait();
    for (const Command& command : exec->commands) command();
    mark->pass();
  });
  return driver::kSuccess;
}

}  // namespace

std::vector<Entry> graph_calls() {
  using enum CallKind;
  return {entry<"cuStreamBeginCapture", kContext, stream_begin_capture>(),
          entry<"cuStreamEndCapture", kRelease, stream_end_capture>(),
          entry<"cuGraphInstantiateWithFlags", kContext, graph_instantiate>(),
          entry<"cuGraphDestroy", kRelease, graph_destroy>(),
          entry<"cuGraphExecDestroy", kRelease, graph_exec_destroy>(),
          entry<"cuGraphLaunch", kContext, graph_launch>()};
}

}  // namespace fake_cuda
