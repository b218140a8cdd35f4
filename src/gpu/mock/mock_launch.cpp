// SPDX-License-Identifier: Apache-2.0
// The mock's launches, streams, graphs and events.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "gpu/mock/mock_backend.h"

namespace metrale::gpu {

void Mock::perform(StreamRef stream, MockNode node) {
  static_cast<void>(streams_.find(stream));
  if (captures_.is_capturing(stream)) {
    captures_.record(stream, std::move(node));
  } else {
    node.run(stream);
  }
}

// ---- launch

bool Mock::do_has_module(std::string_view module) const {
  const std::scoped_lock lock(mutex_);
  return !absent_modules_.contains(module);
}

KernelHandle Mock::do_kernel(std::string_view module, std::string_view function) {
  const std::scoped_lock lock(mutex_);
  const std::pair name{std::string(module), std::string(function)};
  lookups_.push_back(name);
  if (denied_.contains(name)) {
    throw InvalidArgument(fmt::format("the mock backend has no kernel {}::{} (denied)", module, function));
  }
  const auto known = std::find(kernels_.begin(), kernels_.end(), name);
  const auto index = known - kernels_.begin();
  if (known == kernels_.end()) kernels_.push_back(name);
  return KernelHandle(static_cast<std::uint64_t>(index) + 1);
}

MockLaunch Mock::name_launch(KernelHandle kernel, const LaunchShape& shape) const {
  expects(!kernel.is_null() && kernel.value() <= kernels_.size(), "launch: no such kernel handle");
  const auto& [module, function] = kernels_[kernel.value() - 1];
  return {.module = module, .function = function, .shape = shape, .stream = {}, .args = {}, .raw_args = {}};
}

void Mock::do_launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                     std::span<const std::byte> args) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("launch");
  MockLaunch launch = name_launch(kernel, shape);
  launch.args.assign(args.begin(), args.end());
  std::vector<std::uint64_t> words(args.size() / sizeof(std::uint64_t));
  if (!words.empty()) std::memcpy(words.data(), args.data(), words.size() * sizeof(std::uint64_t));
  perform_launch(stream, std::move(launch), std::move(words));
}

void Mock::do_launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                         std::span<const KernelArg> args) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("launch_raw");
  MockLaunch launch = name_launch(kernel, shape);
  const PackedKernelArgs packed(args);
  for (const KernelArg& arg : args) {
    const auto* const address = std::get_if<DevicePtr>(&arg);
    const auto bytes =
        address != nullptr ? std::as_bytes(std::span(address, 1)) : std::get<std::span<const std::byte>>(arg);
    launch.raw_args.emplace_back(bytes.begin(), bytes.end());
  }
  perform_launch(stream, std::move(launch), {packed.slots().begin(), packed.slots().end()});
}

void Mock::perform_launch(StreamRef stream, MockLaunch launch, std::vector<std::uint64_t> words) {
  std::string what = fmt::format("kernel {}::{}", launch.module, launch.function);
  const auto run = [this, launch = std::move(launch)](StreamRef on) {
    launches_.push_back(launch);
    launches_.back().stream = on;
  };
  perform(stream, {.what = std::move(what), .run = run, .addresses = std::move(words)});
}

// ---- streams

StreamRef Mock::do_create_stream() {
  const std::scoped_lock lock(mutex_);
  fail_if_due("create_stream");
  return streams_.add([](StreamRef) { return std::make_shared<MockStream>(); });
}

void Mock::do_destroy_stream(StreamRef stream) {
  streams_.remove(stream);
}

void Mock::do_synchronize(StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("synchronize");
  static_cast<void>(streams_.find(stream));
}

// ---- graphs

void Mock::do_begin_capture(StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("begin_capture");
  captures_.begin(stream);
}

GraphRef Mock::do_end_capture(StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  auto nodes = std::make_shared<std::vector<MockNode>>(captures_.end(stream));
  return graphs_.add([&](GraphRef) { return std::move(nodes); });
}

bool Mock::do_stream_is_capturing(StreamRef stream) const {
  const std::scoped_lock lock(mutex_);
  static_cast<void>(streams_.find(stream));
  return captures_.is_capturing(stream);
}

void Mock::do_abort_capture_if_active(StreamRef stream) noexcept {
  const std::scoped_lock lock(mutex_);
  captures_.abort(stream);
}

void Mock::do_launch_graph(GraphRef graph, StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("launch_graph");
  const auto nodes = graphs_.find(graph);
  for (std::size_t at = 0; at < nodes->size(); ++at) {
    const MockNode& node = (*nodes)[at];
    for (const std::uint64_t address : node.addresses) {
      if (memory_.is_live(address)) continue;
      throw InvalidArgument(fmt::format(
          "graph: node {} ({}) points into an allocation at {:#x}, which was freed; capture the graph again",
          at, node.what, address));
    }
  }
  for (const MockNode& node : *nodes) node.run(stream);
}

void Mock::do_destroy_graph(GraphRef graph) {
  graphs_.remove(graph);
}

// ---- events

EventRef Mock::do_create_event() {
  const std::scoped_lock lock(mutex_);
  fail_if_due("create_event");
  return events_.add([](EventRef) { return std::make_shared<MockEvent>(); });
}

void Mock::do_destroy_event(EventRef event) {
  events_.remove(event);
}

void Mock::do_record_event(EventRef event, StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  const auto marked = events_.find(event);
  static_cast<void>(streams_.find(stream));
  if (captures_.is_capturing(stream)) {
    captures_.record_event(stream, *marked);
  } else {
    *marked = {.capture = nullptr, .position = {}, .is_recorded = true};
  }
}

void Mock::do_stream_wait_event(StreamRef stream, EventRef event) {
  const std::scoped_lock lock(mutex_);
  const auto marked = events_.find(event);
  static_cast<void>(streams_.find(stream));
  if (marked->capture != nullptr) {
    captures_.wait(stream, *marked);
  } else if (marked->is_recorded) {
    expects(!captures_.is_capturing(stream),
            "a capturing stream waits for an event that was recorded outside of its capture");
  }
}

void Mock::expect_on_the_host(EventRef event) const {
  expects(events_.find(event)->capture == nullptr,
          "the event was recorded in a capture: nothing on the host can wait for it");
}

void Mock::do_event_synchronize(EventRef event) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("event_synchronize");
  expect_on_the_host(event);
}

bool Mock::do_event_query(EventRef event) {
  const std::scoped_lock lock(mutex_);
  expect_on_the_host(event);
  return true;
}

}  // namespace metrale::gpu
