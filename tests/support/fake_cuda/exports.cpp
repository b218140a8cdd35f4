// SPDX-License-Identifier: Apache-2.0
// What the library exports.
#include <map>
#include <string>

#include "support/fake_cuda/api.h"
#include "support/fake_cuda/graph.h"
#include "support/fake_cuda/knobs.h"
#include "support/fake_cuda/module.h"

namespace fake_cuda {
namespace {

const std::map<std::string, void*>& all_calls() {
  static const std::map<std::string, void*> calls = [] {
    std::map<std::string, void*> made;
    for (const auto& group :
         {device_calls(), memory_calls(), copy_calls(), stream_calls(), graph_calls(), module_calls()}) {
      for (const Entry& entry : group) made.emplace(entry.name, entry.function);
    }
    return made;
  }();
  return calls;
}

Device& device(int ordinal) {
  return machine().devices.at(static_cast<std::size_t>(ordinal));
}

void reset() {
  reset_machine();
  steering::reset();
}

template <class Table>
int count(const Table& table) {
  return static_cast<int>(table.size());
}

void live(FakeCudaLive* live) {
  const Machine& m = machine();
  const std::scoped_lock lock(machine().mutex);
  *live = {.allocations = count(m.memory),
           .pinned = count(m.pinned),
           .streams = count(m.streams),
           .events = count(m.events),
           .graphs = count(m.graphs),
           .graph_execs = count(m.graph_execs),
           .modules = count(m.modules),
           .contexts = 0};
  for (const Device& d : m.devices) live->contexts += d.context.references;
}

void lose_context_of(int ordinal) {
  lose_context(device(ordinal));
}

void set_device_count(int devices) {
  const std::scoped_lock lock(machine().mutex);
  machine().device_count = devices;
}

void set_integrated(int ordinal, int integrated) {
  const std::scoped_lock lock(machine().mutex);
  device(ordinal).is_integrated = integrated != 0;
}

void set_compute_capability(int ordinal, int major, int minor) {
  const std::scoped_lock lock(machine().mutex);
  device(ordinal).compute_major = major;
  device(ordinal).compute_minor = minor;
}

void set_free_bytes(int ordinal, std::uint64_t bytes) {
  const std::scoped_lock lock(machine().mutex);
  device(ordinal).free_bytes_set = bytes;
}

int pageable_copies() {
  const std::scoped_lock lock(machine().mutex);
  return machine().pageable_copies;
}

}  // namespace
}  // namespace fake_cuda

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function,
                                                                          int version, std::uint64_t,
                                                                          int* status) {
  const auto& calls = fake_cuda::all_calls();
  const auto found = calls.find(symbol);
  const bool is_there = version >= 12000 && found != calls.end() && !fake_cuda::steering::is_hidden(symbol);
  *function = is_there ? found->second : nullptr;
  *status = is_there ? 0 : 1;
  return is_there ? 0 : fake_cuda::driver::kErrorNotFound;
}

extern "C" __attribute__((visibility("default"))) const FakeCudaKnobs* fake_cuda_knobs() {
  static const FakeCudaKnobs knobs{.reset = fake_cuda::reset,
                                   .fail = fake_cuda::steering::fail,
                                   .fail_always = fake_cuda::steering::fail_always,
                                   .struck = fake_cuda::steering::struck,
                                   .calls = fake_cuda::steering::calls,
                                   .forget_calls = fake_cuda::steering::forget_calls,
                                   .live = fake_cuda::live,
                                   .lose_context = fake_cuda::lose_context_of,
                                   .hide = fake_cuda::steering::hide,
                                   .set_device_count = fake_cuda::set_device_count,
                                   .set_integrated = fake_cuda::set_integrated,
                                   .set_compute_capability = fake_cuda::set_compute_capability,
                                   .set_free_bytes = fake_cuda::set_free_bytes,
                                   .pageable_copies = fake_cuda::pageable_copies};
  return &knobs;
}
