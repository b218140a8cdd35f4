// SPDX-License-Identifier: Apache-2.0
// MockBackend: moves real bytes in host memory, runs no kernel, and remembers every launch with its typed
// arguments. Device addresses are not host addresses, so code that confuses the two fails here. Enqueued work
// is done before the call returns; in a capture, at each replay. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/gpu/kernel.h>

namespace metrale::gpu {

struct MockOptions {
  std::uint64_t total_memory_bytes = std::uint64_t{128} << 30;
  std::uint64_t free_memory_bytes = std::uint64_t{120} << 30;  // at the start; allocations count against it
  std::uint64_t max_alloc_bytes = ~std::uint64_t{0};           // a larger request throws OutOfMemory
  std::uint32_t sm_count = 48;
  std::uint64_t red_zone_bytes = 0;  // guard band behind every allocation; 0: none
};

// One recorded launch. In a capture it is recorded at the replay.
struct MockLaunch {
  std::string module;
  std::string function;
  LaunchShape shape;
  StreamRef stream;
  std::vector<std::byte> args;                   // launch
  std::vector<std::vector<std::byte>> raw_args;  // launch_raw: 8 bytes for an address
};

class MockBackend : public GpuBackend {
 public:
  [[nodiscard]] virtual std::vector<MockLaunch> launches() const = 0;
  // Every (module, function) asked for, hits and misses, in order.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> lookups() const = 0;
  // The look-up of this pair fails from now on.
  virtual void deny_kernel(std::string_view module, std::string_view function) = 0;
  // has_module says no.
  virtual void mark_module_absent(std::string_view module) = 0;
  // The `nth` call from now of anything that can fail (allocations, copies, memsets, launches, creation of
  // streams and events, begin_capture, synchronize, event_synchronize) throws DeviceError (OutOfMemory for
  // memory) and does nothing, once. 0 disarms.
  virtual void fail_nth(std::uint64_t nth) = 0;
  // The host bytes behind a device address, up to the end of its allocation and red zone: for tests that play
  // the kernel. Valid until the allocation is freed. Throws InvalidArgument for an address in none.
  [[nodiscard]] virtual std::span<std::byte> host_bytes(DevicePtr ptr) = 0;

  // The argument structs of every launch of this kernel, in order.
  template <class Args>
  [[nodiscard]] std::vector<Args> calls(const KernelId<Args>& id) const {
    std::vector<Args> found;
    for (const MockLaunch& launch : launches()) {
      if (launch.module != id.module || launch.function != id.function) continue;
      expects(launch.args.size() == sizeof(Args), "recorded arguments have another size");
      found.emplace_back();
      std::memcpy(&found.back(), launch.args.data(), sizeof(Args));
    }
    return found;
  }
};

[[nodiscard]] std::unique_ptr<MockBackend> make_mock_backend(const MockOptions& options = {});

}  // namespace metrale::gpu
