// SPDX-License-Identifier: Apache-2.0
// FaultBackend: a decorator that makes the n-th call of a kind fail, in front of any backend. Handles,
// addresses, ledger and capabilities are those of the backend behind it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <metrale/gpu/backend.h>

namespace metrale::gpu {

enum class FaultPoint : std::uint8_t {
  kAlloc,        // alloc and alloc_arena: OutOfMemory
  kAllocPinned,  // OutOfMemory
  kFree,         // free, free_arena, free_pinned: DeviceError after the memory was given back
  kCopy,         // copies and memsets: DeviceError, nothing copied
  kLaunch,       // launch, launch_raw, launch_graph: DeviceError, nothing enqueued
  kStream,       // create_stream, create_event, begin_capture: DeviceError
  kSynchronize,  // synchronize, event_synchronize: DeviceError after the wait
};
inline constexpr std::size_t kFaultPoints = 7;

class FaultBackend;

// The inner backend outlives the result.
[[nodiscard]] std::unique_ptr<FaultBackend> make_fault_backend(GpuBackend& inner);

class FaultBackend : public GpuBackend {
 public:
  // The `nth` call from now (1 = the next) fails, once. 0 disarms.
  virtual void fail_nth(FaultPoint point, std::uint64_t nth) = 0;
  // Calls of this kind so far, failed ones included.
  [[nodiscard]] virtual std::uint64_t calls(FaultPoint point) const = 0;
};

}  // namespace metrale::gpu
