// SPDX-License-Identifier: Apache-2.0
// FakeCudaTest: each test finds the fake CUDA driver fresh and leaves nothing alive in it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/backends/cuda.h>
#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/kernel.h>
#include <metrale/gpu/stream.h>

#include "conformance/gpu_backend_conformance.h"
#include "support/fake_cuda/fake_driver.h"

namespace metrale::test {

inline constexpr int kInvalidValue = 1;
inline constexpr int kLost = 700;
inline constexpr int kNotReady = 802;  // of the system: an error that no call treats in its own way

// The driver's calls that give something back.
inline const std::vector<std::string> kReleasingCalls{
    "cuMemFree",      "cuMemFreeHost",  "cuMemHostUnregister", "cuStreamDestroy",
    "cuEventDestroy", "cuModuleUnload", "cuGraphDestroy",      "cuGraphExecDestroy"};

inline void expect_nothing_alive() {
  const FakeCudaLive live = fake_cuda_live();
  EXPECT_EQ(live.allocations, 0);
  EXPECT_EQ(live.pinned, 0);
  EXPECT_EQ(live.streams, 0);
  EXPECT_EQ(live.events, 0);
  EXPECT_EQ(live.graphs, 0);
  EXPECT_EQ(live.graph_execs, 0);
  EXPECT_EQ(live.modules, 0);
  EXPECT_EQ(live.contexts, 0);
}

class FakeCudaTest : public testing::Test {
 protected:
  FakeCudaTest() { fake_cuda().reset(); }
  void TearDown() override { expect_nothing_alive(); }
};

}  // namespace metrale::test
