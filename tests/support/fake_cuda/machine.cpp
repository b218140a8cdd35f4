// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/machine.h"

#include <algorithm>
#include <vector>

#include "support/fake_cuda/graph.h"
#include "support/fake_cuda/module.h"
#include "support/fake_cuda/stream.h"

namespace fake_cuda {
namespace {

bool holds(const std::map<std::uint64_t, Allocation>& memory, std::uint64_t address, std::size_t bytes) {
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return false;
  --after;
  const std::uint64_t offset = address - after->first;
  return offset <= after->second.bytes && bytes <= after->second.bytes - offset;
}

void prepare(Machine& m) {
  for (int i = 0; i < kDevices; ++i) {
    Device& device = m.devices[static_cast<std::size_t>(i)];
    device = Device{};
    device.ordinal = i;
    device.context.device = &device;
  }
}

}  // namespace

std::uint64_t Device::free_bytes() const {
  return std::min(free_bytes_set, kTotalBytes - used_bytes);
}

Machine& machine() {
  static Machine& m = *[] {
    // Threads of streams that a test leaked may outlive static objects.
    auto* made = new Machine;
    prepare(*made);
    return made;
  }();
  return m;
}

void reset_machine() {
  Machine& m = machine();
  std::map<const void*, std::shared_ptr<Stream>> streams;
  {
    const std::scoped_lock lock(m.mutex);
    for (Device& device : m.devices) device.context.lost->store(true);
    streams.swap(m.streams);
  }
  streams.clear();
  const std::scoped_lock lock(m.mutex);
  m.events.clear();
  m.graph_execs.clear();
  m.graphs.clear();
  m.functions.clear();
  m.modules.clear();
  m.memory.clear();
  m.pinned.clear();
  m.variables.clear();
  m.device_count = kDevices;
  m.pageable_copies = 0;
  prepare(m);
  current_context() = nullptr;
}

void lose_context(Device& device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::scoped_lock lock(machine().mutex);
    device.context.lost->store(true);
    for (const auto& [handle, stream] : machine().streams) {
      if (&stream->context() == &device.context) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->wait();
}

Context*& current_context() {
  thread_local Context* current = nullptr;
  return current;
}

bool is_memory(const Machine& m, std::uint64_t address, std::size_t bytes) {
  return holds(m.memory, address, bytes) || holds(m.pinned, address, bytes) ||
         holds(m.variables, address, bytes);
}

bool is_pinned(const Machine& m, const void* host, std::size_t bytes) {
  return holds(m.pinned, reinterpret_cast<std::uintptr_t>(host), bytes);
}

}  // namespace fake_cuda
