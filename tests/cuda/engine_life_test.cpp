// SPDX-License-Identifier: Apache-2.0
// Engines come and go on one device: nothing stays, and after a failure the next one works.
#include <string>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "cuda/support/devices.h"
#include "engine/model/harness.h"

namespace metrale::test {
namespace {

struct EngineLife : testing::Test {
  EngineLife() {
    write_tiny_model(tiny_model("tiny_base"), dir.path());
    options.max_seq_len = 64;
    options.max_batch_size = 2;
    options.max_batch_tokens = 16;
  }

  // Loads the model, computes a prompt and some tokens, and lets everything go.
  void run_once(gpu::GpuBackend& gpu) {
    engine::Engine engine(gpu, dir.path(), options, clock);
    engine::Request request{
        .prompt = {1, 2, 3}, .sampling = {}, .max_new_tokens = 4, .stop_ids = {}, .ignore_eos = true};
    request.sampling.temperature = 0;
    engine.submit(std::move(request));
    while (!engine.idle()) (void)engine.step();
  }

  TempDir dir;
  engine::EngineOptions options;
  SteadyClock clock;
};

TEST_F(EngineLife, AThousandEnginesLeaveLedgerAndDeviceMemoryAsTheyWere) {
  const auto gpu = make_backend();
  std::uint64_t free_after_ten = 0;
  for (int cycle = 1; cycle <= 1000; ++cycle) {
    run_once(*gpu);
    ASSERT_EQ(gpu->live_alloc_count(), 0U) << "cycle " << cycle;
    if (cycle == 10) free_after_ten = gpu->device_free_memory_bytes();
  }
  EXPECT_EQ(gpu->device_free_memory_bytes(), free_after_ten);
}

TEST_F(EngineLife, AStepOnTheDefaultPathTakesOneGraphLaunchAndOneWait) {
  EngineHarness harness(dir.path(), options);
  engine::Engine& engine = harness.engine();
  engine::Request request{
      .prompt = {1, 2, 3}, .sampling = {}, .max_new_tokens = 40, .stop_ids = {}, .ignore_eos = true};
  request.sampling.temperature = 0;
  engine.submit(std::move(request));
  for (int i = 0; i < 5; ++i) (void)engine.step();
  const gpu::BackendStats before = harness.gpu().stats();
  for (int i = 0; i < 20; ++i) (void)engine.step();
  const gpu::BackendStats after = harness.gpu().stats();

  EXPECT_EQ(after.graph_launches - before.graph_launches, 20U);
  EXPECT_EQ(after.synchronizes - before.synchronizes, 20U);
  EXPECT_EQ(after.launches, before.launches);
  EXPECT_EQ(after.allocs, before.allocs);
  EXPECT_EQ(after.h2d_copies, before.h2d_copies);
  EXPECT_EQ(after.d2h_copies, before.d2h_copies);
}

TEST_F(EngineLife, AnEngineStartsAfterOneThatDidNotFit) {
  const auto gpu = make_backend();
  engine::EngineOptions large = options;
  large.kv_blocks = 2'000'000'000;
  EXPECT_THROW(engine::Engine(*gpu, dir.path(), large, clock), OutOfMemory);
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
  EXPECT_NO_THROW(run_once(*gpu));
}

}  // namespace
}  // namespace metrale::test
