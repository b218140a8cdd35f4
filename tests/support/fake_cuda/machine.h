// SPDX-License-Identifier: Apache-2.0
// The machine that the fake driver drives: devices, primary contexts, memory, and everything that handles
// name. Device memory is the process's own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backends/cuda/driver.h"

namespace fake_cuda {

namespace driver = metrale::backends::cuda;
using driver::Result;

class Capture;
class Stream;
struct Event;
struct Graph;
struct GraphExec;
struct Module;
struct Function;

inline constexpr int kDevices = 2;
inline constexpr std::uint64_t kTotalBytes = std::uint64_t{1} << 30;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kIllegalState = 401;
inline constexpr Result kIllegalAddress = 700;

struct Device;

// A device's primary context.
struct Context {
  Device* device = nullptr;
  int references = 0;
  std::shared_ptr<std::atomic<bool>> lost = std::make_shared<std::atomic<bool>>(false);
};

struct Device {
  int ordinal = 0;
  bool is_integrated = false;
  int compute_major = 9;
  int compute_minor = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes_set = ~std::uint64_t{0};  // by a test
  Context context;
  [[nodiscard]] std::uint64_t free_bytes() const;
};

struct Allocation {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;
  Device* device = nullptr;  // null: pinned
};

// Guarded by its mutex, but for what says otherwise.
struct Machine {
  std::mutex mutex;
  int device_count = kDevices;
  std::array<Device, kDevices> devices;
  std::map<std::uint64_t, Allocation> memory;     // device memory by address
  std::map<std::uint64_t, Allocation> pinned;     // page-locked memory by address
  std::map<std::uint64_t, Allocation> variables;  // of modules
  std::map<const void*, std::shared_ptr<Stream>> streams;
  std::map<const void*, std::shared_ptr<Event>> events;
  std::map<const void*, std::shared_ptr<Graph>> graphs;
  std::map<const void*, std::shared_ptr<GraphExec>> graph_execs;
  std::map<const void*, std::shared_ptr<Module>> modules;
  std::map<const void*, std::shared_ptr<Function>> functions;
  int pageable_copies = 0;
};

[[nodiscard]] Machine& machine();
// Joins the streams' threads.
void reset_machine();
// Its primary context is lost: what is queued there is dropped. Blocking: until what is running has ended.
void lose_context(Device& device);

// The context that is current on this thread; null: none.
[[nodiscard]] Context*& current_context();

// Memory of any kind that holds the whole range. The lock is held.
[[nodiscard]] bool is_memory(const Machine& m, std::uint64_t address, std::size_t bytes);
[[nodiscard]] bool is_pinned(const Machine& m, const void* host, std::size_t bytes);

// The object that a handle names; null: none.
template <class T>
[[nodiscard]] std::shared_ptr<T> find(std::map<const void*, std::shared_ptr<T>> Machine::* table,
                                      const void* handle) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  const auto found = (m.*table).find(handle);
  return found == (m.*table).end() ? nullptr : found->second;
}
template <class T>
[[nodiscard]] std::shared_ptr<T> take(std::map<const void*, std::shared_ptr<T>> Machine::* table,
                                      const void* handle) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  const auto found = (m.*table).find(handle);
  if (found == (m.*table).end()) return nullptr;
  const std::shared_ptr<T> taken = found->second;
  (m.*table).erase(found);
  return taken;
}
// Gives the object a handle.
template <class Handle, class T>
void add(std::map<const void*, std::shared_ptr<T>> Machine::* table, Handle* handle,
         std::shared_ptr<T> object) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  *handle = reinterpret_cast<Handle>(object.get());
  (m.*table).emplace(object.get(), std::move(object));
}

}  // namespace fake_cuda
