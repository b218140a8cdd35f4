// SPDX-License-Identifier: Apache-2.0
// A kernel that writes nowhere costs the process its context: a program of its own.
#include <array>
#include <functional>

#include <gtest/gtest.h>

#include <metrale/backends/cuda.h>
#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/kernel.h>
#include <metrale/gpu/stream.h>
#include <metrale/kernels/linear.h>

#include "conformance/test_kernels.h"
#include "cuda/support/devices.h"
#include "cuda/support/test_modules.h"

namespace metrale::test {
namespace {

void expect_lost(const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "it went on";
  } catch (const DeviceError& error) {
    EXPECT_TRUE(error.context_lost()) << error.what();
  }
}

TEST(CudaContextLoss, EveryCallSaysSoAndTeardownIsQuiet) {
  // One of the same device that has cuBLASLt's handles to give back.
  const auto product = open_cuda();
  for (const auto& id : {kernels::kLinear, kernels::kLinearFast}) {
    EXPECT_FALSE(product->kernel(id.module, id.function).is_null());
  }
  const auto gpu = backends::make_cuda_backend(cuda_host(), {}, cuda_test_kernels());
  const gpu::DeviceBuffer buffer(*gpu, 64);
  const gpu::PinnedBuffer pinned(*gpu, 64);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  const gpu::Event event = gpu::make_event(*gpu);
  static_cast<void>(gpu->alloc(100));  // left to the sweep
  gpu->load_module("foreign", cuda_test_image());
  const std::array<std::byte, 8> nothing{};
  const std::array args{gpu::KernelArg(std::span<const std::byte>(nothing))};

  gpu->launch_raw(gpu->kernel("foreign", "write_nowhere"), {}, stream.ref(), args);

  expect_lost([&] { gpu->synchronize(stream.ref()); });
  expect_lost([&] { gpu->synchronize(gpu->default_stream()); });
  expect_lost([&] { static_cast<void>(gpu->alloc(64)); });
  expect_lost([&] { gpu->memset_blocking(buffer.ptr(), 0, 64); });
  expect_lost([&] { static_cast<void>(gpu->create_stream()); });
  expect_lost([&] { gpu->record_event(event.ref(), stream.ref()); });
  expect_lost([&] { static_cast<void>(gpu->free_memory_bytes()); });
  expect_lost([&] { static_cast<void>(product->alloc(64)); });
  EXPECT_EQ(gpu->sweep_unreleased(), 2U) << "the buffer and what was left";
}

}  // namespace
}  // namespace metrale::test
