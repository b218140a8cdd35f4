// SPDX-License-Identifier: Apache-2.0
// The harness of the backend suite. A new backend adds a BackendCase in a test program of its own and links
// the suite's sources.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/stream.h>

#include "conformance/test_kernels.h"

namespace metrale::gpu {

struct RigOptions {
  std::uint64_t max_memory_bytes = 0;  // 0: the backend's own figure
  std::uint64_t red_zone_bytes = 0;
};

// A backend, and what must outlive it.
struct Rig {
  std::vector<std::unique_ptr<GpuBackend>> stack;  // innermost first
  ~Rig() {
    while (!stack.empty()) stack.pop_back();
  }
  [[nodiscard]] GpuBackend& gpu() { return *stack.back(); }
};

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<Rig>(const RigOptions&)> make;
};
inline void PrintTo(const BackendCase& backend, std::ostream* out) {
  *out << backend.name;
}

class GpuBackendConformance : public testing::TestWithParam<BackendCase> {
 protected:
  // Kernels are looked up before anything runs: a first look-up may wait for the device.
  GpuBackendConformance() : rig_(GetParam().make({})), gpu_(rig_->gpu()) {
    for (const auto& [module, function] : testing_kernels::kNames) {
      static_cast<void>(gpu_.op_cache().kernel(gpu_, module, function));
    }
  }

  [[nodiscard]] bool runs_kernels() const { return gpu_.capabilities().runs_kernels; }
  // Kernels can fail here, and only their own stream with them.
  [[nodiscard]] bool isolates_failures() const {
    return runs_kernels() && gpu_.capabilities().isolated_failures;
  }
  void append(StreamRef stream, const DeviceBuffer& word, std::uint64_t number) {
    launch(gpu_, testing_kernels::kAppend, stream,
           testing_kernels::AppendArgs{.value = word.ptr().address(), .number = number});
  }
  [[nodiscard]] std::unique_ptr<Rig> make(const RigOptions& options) const {
    return GetParam().make(options);
  }

  // Blocking.
  template <class T>
  [[nodiscard]] std::vector<T> read(DevicePtr from, std::size_t count) {
    std::vector<T> host(count);
    gpu_.copy_d2h_blocking(std::as_writable_bytes(std::span(host)), from);
    return host;
  }
  template <class T>
  void write(DevicePtr to, const std::vector<T>& host) {
    gpu_.copy_h2d_blocking(to, std::as_bytes(std::span(host)));
  }
  template <class T>
  [[nodiscard]] DeviceBuffer upload(const std::vector<T>& host) {
    DeviceBuffer buffer(gpu_, host.size() * sizeof(T));
    write(buffer.ptr(), host);
    return buffer;
  }

  std::unique_ptr<Rig> rig_;
  GpuBackend& gpu_;
};

// For backends that have graphs.
class GpuGraphConformance : public GpuBackendConformance {
 protected:
  void SetUp() override {
    if (!gpu_.capabilities().graphs) GTEST_SKIP();
  }

  // One byte that graphs of these tests copy from, so that they need no kernels.
  [[nodiscard]] std::uint8_t byte_at(DevicePtr ptr) { return read<std::uint8_t>(ptr, 1)[0]; }
  // A graph that fills `ptr` with `value`.
  [[nodiscard]] Graph capture_fill(DevicePtr ptr, std::uint8_t value, std::size_t bytes = 1) {
    CaptureScope capture(gpu_, stream_.ref());
    gpu_.memset_async(ptr, value, bytes, stream_.ref());
    return capture.finish();
  }
  void replay(const Graph& graph) {
    gpu_.launch_graph(graph.ref(), stream_.ref());
    gpu_.synchronize(stream_.ref());
  }

  Stream stream_ = make_stream(gpu_);
};

// What appending `numbers` one after the other makes of 0.
[[nodiscard]] inline std::uint64_t appended(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t value = 0;
  for (const std::uint64_t number : numbers) value = value * 31 + number;
  return value;
}

// What `call` says when it throws `Expected`; a failed test where it does not.
template <class Expected>
[[nodiscard]] std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// A flag in pinned memory that kernels wait for and the host raises.
class HostFlag {
 public:
  explicit HostFlag(GpuBackend& gpu) : memory_(gpu, sizeof(std::uint32_t)) {}
  [[nodiscard]] std::uint64_t address() const { return memory_.device_address().address(); }
  void raise() { std::atomic_ref<std::uint32_t>(value()).store(1); }
  [[nodiscard]] bool is_up() { return std::atomic_ref<std::uint32_t>(value()).load() != 0; }

 private:
  [[nodiscard]] std::uint32_t& value() { return *reinterpret_cast<std::uint32_t*>(memory_.data()); }
  PinnedBuffer memory_;
};

}  // namespace metrale::gpu
