// SPDX-License-Identifier: Apache-2.0
// The small values that cross the backend line: shapes, non-owning handles, capabilities, counters.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <metrale/base/call_site.h>
#include <metrale/base/device_ptr.h>
#include <metrale/gpu/launch_shape.h>

namespace metrale::gpu {

// A non-owning handle of one kind. No conversion from integers or nullptr: a literal 0 can't become a stream.
template <class Tag>
class Handle {
 public:
  constexpr Handle() = default;
  constexpr explicit Handle(std::uint64_t value) : value_(value) {}
  Handle(int) = delete;
  Handle(std::nullptr_t) = delete;
  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr bool is_null() const { return value_ == 0; }
  friend constexpr auto operator<=>(Handle, Handle) = default;

 private:
  std::uint64_t value_ = 0;
};

using StreamRef = Handle<struct StreamTag>;
using EventRef = Handle<struct EventTag>;
using GraphRef = Handle<struct GraphTag>;
using KernelHandle = Handle<struct KernelTag>;

// What a backend can do. A false entry means that the matching calls throw Unsupported.
struct Capabilities {
  bool graphs = false;                 // begin_capture … destroy_graph
  bool pinned_device_address = false;  // device_address_of_pinned
  bool raw_launch = false;             // launch_raw
  bool foreign_modules = false;        // load_module, load_module_file, device_symbol
  bool red_zones = false;              // scan_red_zones, poison_red_zones (only when asked for at creation)
  bool host_memory_is_device_memory = false;  // a DevicePtr is a host address
  bool runs_kernels = false;                  // false: launches are recorded only
  // A kernel that fails takes its stream and who waits for it along, and nothing else. False: the failure is
  // the whole backend's, and work enqueued after it may run.
  bool isolated_failures = false;
  // Device memory that the matrix products of the libraries behind this backend want; 0: none.
  std::uint64_t linear_workspace_bytes = 0;
};

// What a backend whose products may be a CUDA library's answers.
inline constexpr std::uint64_t kCudaLinearWorkspaceBytes = std::uint64_t{32} << 20;

// Calls and bytes since the backend was made. Read at any time; each figure is exact once its stream is
// synchronised.
struct BackendStats {
  std::uint64_t allocs = 0;
  std::uint64_t frees = 0;
  std::uint64_t launches = 0;
  std::uint64_t graph_launches = 0;
  std::uint64_t synchronizes = 0;  // synchronize, event_synchronize and every blocking copy
  std::uint64_t h2d_copies = 0;
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_copies = 0;
  std::uint64_t d2h_bytes = 0;
};

// One allocation of the ledger.
struct AllocationInfo {
  DevicePtr base;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // creation index, from 1, never reused
  CallSite site;
};

// Live bytes by call site, largest first.
struct AllocationSiteReport {
  CallSite site;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
};

// Bytes of device memory side by side: an allocation, a variable of a module.
struct DeviceRange {
  DevicePtr ptr;
  std::uint64_t bytes = 0;
};

// A red zone whose bytes changed: somebody wrote past the end of this allocation.
struct RedZoneHit {
  AllocationInfo allocation;
  std::uint64_t first_bad_offset = 0;  // from the allocation's base, at least its size
};

}  // namespace metrale::gpu
