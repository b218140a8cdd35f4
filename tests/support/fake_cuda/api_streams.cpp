// SPDX-License-Identifier: Apache-2.0
// Streams, events, host functions.
#include "support/fake_cuda/api.h"
#include "support/fake_cuda/graph.h"

namespace fake_cuda {
namespace {

using driver::DriverEvent;
using driver::DriverStream;

// What became of the context while the host waited.
Result state_after_waiting(const Stream& stream) {
  return stream.context().lost->load() ? kIllegalAddress : driver::kSuccess;
}

Result stream_create(DriverStream* stream, unsigned) {
  add(&Machine::streams, stream, std::make_shared<Stream>(*current_context()));
  return driver::kSuccess;
}

Result stream_destroy(DriverStream handle) {
  const auto stream = take(&Machine::streams, handle);
  if (stream == nullptr) return kInvalidHandle;
  invalidate_capture(*stream);
  return driver::kSuccess;
}

Result stream_synchronize(DriverStream handle) {
  const auto stream = find_stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  {
    const std::scoped_lock lock(machine().mutex);
    if (stream->capture != nullptr) {
      stream->capture->is_invalid = true;
      return kCaptureUnsupported;
    }
  }
  stream->wait();
  return state_after_waiting(*stream);
}

Result wait_in_capture(Stream& stream, const Event& event) {
  if (event.capture == nullptr) {
    if (event.mark == nullptr) return driver::kSuccess;
    stream.capture->is_invalid = true;
    return kCaptureIsolation;
  }
  if (event.capture->is_over) return kCapturedEvent;
  if (stream.capture == nullptr) stream.capture = event.capture;
  if (stream.capture != event.capture) {
    stream.capture->is_invalid = event.capture->is_invalid = true;
    return kCaptureMerge;
  }
  stream.capture->join(stream, event.nodes);
  return driver::kSuccess;
}

Result stream_wait_event(DriverStream to, DriverEvent what, unsigned) {
  const auto stream = find_stream(to);
  const auto event = find(&Machine::events, what);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  std::shared_ptr<Mark> mark;
  {
    const std::scoped_lock lock(machine().mutex);
    if (stream->capture != nullptr || event->capture != nullptr) return wait_in_capture(*stream, *event);
    mark = event->mark;
  }
  if (mark != nullptr) stream->enqueue([mark] { mark->wait(); });
  return driver::kSuccess;
}

Result launch_host_function(DriverStream stream, driver::HostFunction function, void* data) {
  return submit(stream, [=] { function(data); });
}

Result event_create(DriverEvent* event, unsigned) {
  add(&Machine::events, event, std::make_shared<Event>());
  return driver::kSuccess;
}

Result event_destroy(DriverEvent event) {
  return take(&Machine::events, event) == nullptr ? kInvalidHandle : driver::kSuccess;
}

Result event_record(DriverEvent what, DriverStream on) {
  const auto stream = find_stream(on);
  const auto event = find(&Machine::events, what);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  const auto mark = std::make_shared<Mark>();
  {
    const std::scoped_lock lock(machine().mutex);
    event->mark = nullptr;
    event->capture = stream->capture;
    if (stream->capture != nullptr) {
      event->nodes = stream->capture->point(*stream);
      return stream->capture->is_invalid ? kCaptureInvalidated : driver::kSuccess;
    }
    event->mark = mark;
  }
  stream->enqueue([mark] { mark->pass(); });
  return driver::kSuccess;
}

Result mark_of(DriverEvent what, std::shared_ptr<Mark>& mark) {
  const auto event = find(&Machine::events, what);
  if (event == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(machine().mutex);
  mark = event->mark;
  return event->capture != nullptr ? kCapturedEvent : driver::kSuccess;
}

Result event_query(DriverEvent what) {
  std::shared_ptr<Mark> mark;
  if (const Result result = mark_of(what, mark); result != driver::kSuccess) return result;
  return mark == nullptr || mark->is_passed() ? driver::kSuccess : driver::kErrorNotReady;
}

Result event_synchronize(DriverEvent what) {
  std::shared_ptr<Mark> mark;
  if (const Result result = mark_of(what, mark); result != driver::kSuccess) return result;
  if (mark != nullptr) mark->wait();
  return context_state();
}

}  // namespace

std::vector<Entry> stream_calls() {
  using enum CallKind;
  return {entry<"cuStreamCreate", kContext, stream_create>(),
          entry<"cuStreamDestroy", kRelease, stream_destroy>(),
          entry<"cuStreamSynchronize", kRelease, stream_synchronize>(),
          entry<"cuStreamWaitEvent", kContext, stream_wait_event>(),
          entry<"cuLaunchHostFunc", kContext, launch_host_function>(),
          entry<"cuEventCreate", kContext, event_create>(),
          entry<"cuEventDestroy", kRelease, event_destroy>(),
          entry<"cuEventRecord", kContext, event_record>(),
          entry<"cuEventQuery", kContext, event_query>(),
          entry<"cuEventSynchronize", kRelease, event_synchronize>()};
}

}  // namespace fake_cuda
