// SPDX-License-Identifier: Apache-2.0
// Device and page-locked memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "support/fake_cuda/api.h"

namespace fake_cuda {
namespace {

using driver::DeviceAddress;

// The driver's pinned memory is aligned to no more than this.
constexpr std::size_t kPinnedAlignment = 512;

// Filled with a pattern, so that who relies on fresh zeros is found.
Allocation allocate(std::size_t bytes, std::size_t alignment, Device* device) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (memory == nullptr) return {};
  std::memset(memory, 0xCD, bytes);
  return {.memory = {memory, [](std::byte* freed) { std::free(freed); }}, .bytes = bytes, .device = device};
}

Result memory_info(std::size_t* free, std::size_t* total) {
  const std::scoped_lock lock(machine().mutex);
  *free = current_context()->device->free_bytes();
  *total = kTotalBytes;
  return driver::kSuccess;
}

Result mem_alloc(DeviceAddress* address, std::size_t bytes) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  if (bytes == 0) return driver::kErrorInvalidValue;
  Device* const device = current_context()->device;
  if (bytes > device->free_bytes()) return driver::kErrorOutOfMemory;
  Allocation made = allocate(bytes, 256, device);
  if (made.memory == nullptr) return driver::kErrorOutOfMemory;
  device->used_bytes += bytes;
  *address = reinterpret_cast<std::uintptr_t>(made.memory.get());
  m.memory.emplace(*address, std::move(made));
  return driver::kSuccess;
}

Result mem_free(DeviceAddress address) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  const auto found = m.memory.find(address);
  if (found == m.memory.end()) return driver::kErrorInvalidValue;
  found->second.device->used_bytes -= found->second.bytes;
  m.memory.erase(found);
  return driver::kSuccess;
}

Result host_alloc(void** host, std::size_t bytes, unsigned) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  if (bytes == 0) return driver::kErrorInvalidValue;
  if (bytes > kTotalBytes) return driver::kErrorOutOfMemory;
  Allocation made = allocate(bytes + kPinnedAlignment, 2 * kPinnedAlignment, nullptr);
  if (made.memory == nullptr) return driver::kErrorOutOfMemory;
  made = {.memory = {made.memory, made.memory.get() + kPinnedAlignment}, .bytes = bytes};
  *host = made.memory.get();
  m.pinned.emplace(reinterpret_cast<std::uintptr_t>(*host), std::move(made));
  return driver::kSuccess;
}

Result host_free(void* host) {
  const std::scoped_lock lock(machine().mutex);
  const bool erased = machine().pinned.erase(reinterpret_cast<std::uintptr_t>(host)) == 1;
  return erased ? driver::kSuccess : driver::kErrorInvalidValue;
}

// The memory is the caller's: nothing of it is freed here.
Result host_register(void* host, std::size_t bytes, unsigned) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  if (host == nullptr || bytes == 0 || is_pinned(m, host, 1)) return driver::kErrorInvalidValue;
  if (bytes > kTotalBytes) return driver::kErrorOutOfMemory;
  Allocation made{.memory = {static_cast<std::byte*>(host), [](std::byte*) {}}, .bytes = bytes};
  m.pinned.emplace(reinterpret_cast<std::uintptr_t>(host), std::move(made));
  return driver::kSuccess;
}

Result host_device_pointer(DeviceAddress* address, void* host, unsigned) {
  const std::scoped_lock lock(machine().mutex);
  if (!is_pinned(machine(), host, 1)) return driver::kErrorInvalidValue;
  *address = reinterpret_cast<std::uintptr_t>(host);
  return driver::kSuccess;
}

Result pointer_attribute(void* data, int attribute, DeviceAddress address) {
  const std::scoped_lock lock(machine().mutex);
  if (attribute != driver::kPointerMemoryType || !is_memory(machine(), address, 1)) {
    return driver::kErrorInvalidValue;
  }
  const bool pinned = is_pinned(machine(), reinterpret_cast<const void*>(address), 1);
  *static_cast<unsigned*>(data) = pinned ? driver::kMemoryTypeHost : driver::kMemoryTypeDevice;
  return driver::kSuccess;
}

}  // namespace

std::vector<Entry> memory_calls() {
  using enum CallKind;
  return {entry<"cuMemGetInfo", kContext, memory_info>(),
          entry<"cuMemAlloc", kContext, mem_alloc>(),
          entry<"cuMemFree", kRelease, mem_free>(),
          entry<"cuMemHostAlloc", kContext, host_alloc>(),
          entry<"cuMemFreeHost", kRelease, host_free>(),
          entry<"cuMemHostRegister", kContext, host_register>(),
          entry<"cuMemHostUnregister", kRelease, host_free>(),
          entry<"cuMemHostGetDevicePointer", kContext, host_device_pointer>(),
          entry<"cuPointerGetAttribute", kContext, pointer_attribute>()};
}

}  // namespace fake_cuda
