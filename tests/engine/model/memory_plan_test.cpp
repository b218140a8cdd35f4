// SPDX-License-Identifier: Apache-2.0
// What the plan says is what an engine takes.
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include <metrale/backends/cpu.h>
#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/engine/engine.h>
#include <metrale/engine/memory_plan.h>
#include <metrale/kernels/cpu_kernels.h>

namespace metrale::test {
namespace {

using quant::ElementType;
using quant::KvDtype;
using quant::KvFormat;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;
constexpr KvDtype kBf16{KvFormat::kBf16, KvFormat::kBf16};
constexpr KvDtype kMixed{KvFormat::kBf16, KvFormat::kFp32};

std::unique_ptr<gpu::GpuBackend> cpu_with(std::uint64_t memory_bytes) {
  gpu::CpuKernelTable table;
  kernels::register_cpu_kernels(table);
  return backends::make_cpu_backend({.threads = 2, .max_memory_bytes = memory_bytes}, table);
}

class MemoryPlans : public testing::TestWithParam<std::string> {
 protected:
  MemoryPlans() { write_tiny_model(tiny_model(GetParam()), dir.path()); }

  [[nodiscard]] engine::MemoryPlan plan(const engine::MemoryPlanRequest& request, KvDtype dtype) const {
    const auto directory = weights::ModelDirectory::open(dir.path());
    return engine::plan_memory(engine::load_model_config(dir.path()), &directory, request,
                               std::span(&dtype, 1));
  }
  [[nodiscard]] static engine::EngineOptions options(const engine::MemoryPlanRequest& request,
                                                     KvDtype dtype) {
    engine::EngineOptions result;
    result.max_seq_len = request.limits.max_seq_len;
    result.max_batch_size = request.limits.max_batch_size;
    result.max_batch_tokens = request.limits.max_batch_tokens;
    result.block_size = request.limits.block_size;
    result.kv_dtype = dtype;
    result.compute = request.compute;
    return result;
  }
  // Device memory that an engine takes, 0 where it does not fit.
  [[nodiscard]] std::uint64_t taken(std::uint64_t memory_bytes, const engine::EngineOptions& wanted) const {
    const auto gpu = cpu_with(memory_bytes);
    try {
      const engine::Engine engine(*gpu, dir.path(), wanted, clock);
      return memory_bytes - gpu->free_memory_bytes();
    } catch (const OutOfMemory&) {
      return 0;
    }
  }

  TempDir dir;
  SteadyClock clock;
};

TEST_P(MemoryPlans, EngineTakesExactlyThePlannedBytes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    const std::uint32_t batch = 1 + static_cast<std::uint32_t>(random() % 9);
    const engine::MemoryPlanRequest request{
        .memory_bytes = kPlenty,
        .limits = {.max_seq_len = 1 + static_cast<std::uint32_t>(random() % 512),
                   .max_batch_size = batch,
                   .max_batch_tokens = batch + static_cast<std::uint32_t>(random() % 300),
                   .block_size = 16U << (random() % 4)},
        .compute = random() % 2 == 0 ? ElementType::kBf16 : ElementType::kF32};
    const KvDtype dtype = random() % 2 == 0 ? kBf16 : kMixed;

    const engine::MemoryPlan planned = plan(request, dtype);

    ASSERT_TRUE(planned.kv.front().fits);
    EXPECT_EQ(taken(kPlenty, options(request, dtype)), planned.kv.front().total_bytes);
  }
}

TEST_P(MemoryPlans, CountsTheWorkspaceThatADevicesLibrariesWant) {
  engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 0, .max_batch_size = 3, .max_batch_tokens = 64, .block_size = 32},
      .compute = std::nullopt};
  const engine::MemoryPlan without = plan(request, kBf16);
  request.linear_workspace_bytes = 1U << 20;

  const engine::MemoryPlan with = plan(request, kBf16);

  EXPECT_EQ(with.arena.linear_workspace, 1U << 20);
  EXPECT_EQ(with.fixed_bytes - without.fixed_bytes, 1U << 20);
}

TEST_P(MemoryPlans, PartsAreThoseOfTheEngine) {
  const engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 0, .max_batch_size = 3, .max_batch_tokens = 64, .block_size = 32},
      .compute = std::nullopt};
  const engine::MemoryPlan planned = plan(request, kMixed);
  const auto gpu = cpu_with(kPlenty);
  const engine::Engine engine(*gpu, dir.path(), options(request, kMixed), clock);

  EXPECT_EQ(planned.compute, engine.compute());
  EXPECT_EQ(planned.limits.max_seq_len, engine.limits().max_seq_len);
  EXPECT_EQ(planned.weight_bytes, engine.weight_bytes());
  EXPECT_EQ(planned.arena.total_bytes(), engine.arena_bytes());
  EXPECT_EQ(planned.kv.front().bytes_per_token, engine.cache().config().bytes_per_token());
  EXPECT_EQ(planned.kv.front().bytes,
            engine.cache().config().block_bytes_kv_all_layers() * engine.cache().num_blocks());
}

TEST_P(MemoryPlans, ExactlyEnoughFitsAndOneByteLessDoesNot) {
  engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 200, .max_batch_size = 4, .max_batch_tokens = 32, .block_size = 16},
      .compute = ElementType::kF32};
  request.memory_bytes = plan(request, kBf16).kv.front().total_bytes;

  EXPECT_TRUE(plan(request, kBf16).kv.front().fits);
  EXPECT_EQ(plan(request, kBf16).kv.front().sequences_that_fit, 4U);
  EXPECT_NE(taken(request.memory_bytes, options(request, kBf16)), 0U);
  --request.memory_bytes;
  EXPECT_FALSE(plan(request, kBf16).kv.front().fits);
  EXPECT_EQ(plan(request, kBf16).kv.front().sequences_that_fit, 3U);
  EXPECT_EQ(taken(request.memory_bytes, options(request, kBf16)), 0U);
}

TEST_P(MemoryPlans, AdviceIsTheLargestThatAnEngineAccepts) {
  engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 512, .max_batch_size = 6, .max_batch_tokens = 256, .block_size = 16},
      .compute = ElementType::kBf16};
  const engine::MemoryPlan roomy = plan(request, kBf16);
  request.memory_bytes = roomy.fixed_bytes + roomy.kv.front().bytes * 2 / 5;

  const engine::MemoryPlan tight = plan(request, kBf16);

  ASSERT_TRUE(tight.kv.front().advice);
  const engine::PlanAdvice& advice = *tight.kv.front().advice;
  const auto accepts = [&](std::uint32_t gpu::EngineLimits::* limit, std::uint32_t value) {
    engine::MemoryPlanRequest changed = request;
    changed.limits.*limit = value;
    return taken(request.memory_bytes, options(changed, kBf16)) != 0;
  };
  ASSERT_TRUE(advice.max_seq_len && advice.max_batch_size && advice.longest_sequence);
  EXPECT_TRUE(accepts(&gpu::EngineLimits::max_seq_len, *advice.max_seq_len));
  EXPECT_FALSE(accepts(&gpu::EngineLimits::max_seq_len, *advice.max_seq_len + 1));
  EXPECT_TRUE(accepts(&gpu::EngineLimits::max_batch_size, *advice.max_batch_size));
  EXPECT_FALSE(accepts(&gpu::EngineLimits::max_batch_size, *advice.max_batch_size + 1));
  EXPECT_EQ(*advice.longest_sequence, 512U);
  EXPECT_EQ(tight.kv.front().sequences_that_fit, 2U);
}

TEST_P(MemoryPlans, SmallerStepsMakeRoomForASequence) {
  engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 512, .max_batch_size = 1, .max_batch_tokens = 512, .block_size = 16},
      .compute = ElementType::kF32};
  request.memory_bytes = plan(request, kBf16).kv.front().total_bytes - 50'000;

  const engine::MemoryPlan tight = plan(request, kBf16);

  ASSERT_TRUE(tight.kv.front().advice && tight.kv.front().advice->max_batch_tokens);
  const std::uint32_t tokens = *tight.kv.front().advice->max_batch_tokens;
  engine::EngineOptions wanted = options(request, kBf16);
  wanted.max_batch_tokens = tokens;
  EXPECT_NE(taken(request.memory_bytes, wanted), 0U);
  wanted.max_batch_tokens = tokens + 1;
  EXPECT_EQ(taken(request.memory_bytes, wanted), 0U);
}

TEST_P(MemoryPlans, NothingFitsWhereTheWeightsDoNot) {
  const engine::MemoryPlanRequest request{
      .memory_bytes = 1000,
      .limits = {.max_seq_len = 64, .max_batch_size = 2, .max_batch_tokens = 16, .block_size = 16},
      .compute = std::nullopt};
  const engine::KvPlan kv = plan(request, kBf16).kv.front();
  EXPECT_EQ(kv.blocks_that_fit, 0U);
  ASSERT_TRUE(kv.advice);
  EXPECT_FALSE(kv.advice->max_seq_len || kv.advice->max_batch_size || kv.advice->max_batch_tokens ||
               kv.advice->longest_sequence);
}

TEST_P(MemoryPlans, ConfigurationAloneGivesTheSameFigures) {
  const engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 64, .max_batch_size = 2, .max_batch_tokens = 16, .block_size = 16},
      .compute = std::nullopt};
  const engine::MemoryPlan alone =
      engine::plan_memory(engine::load_model_config(dir.path()), nullptr, request, std::span(&kBf16, 1));
  EXPECT_EQ(alone.fixed_bytes, plan(request, kBf16).fixed_bytes);
}

TEST_P(MemoryPlans, LimitsThatAnEngineRefusesAreRefused) {
  engine::MemoryPlanRequest request{
      .memory_bytes = kPlenty,
      .limits = {.max_seq_len = 513, .max_batch_size = 2, .max_batch_tokens = 16, .block_size = 16},
      .compute = std::nullopt};
  EXPECT_THROW((void)plan(request, kBf16), InvalidArgument);
  request.limits = {.max_seq_len = 64, .max_batch_size = 20, .max_batch_tokens = 16, .block_size = 16};
  EXPECT_THROW((void)plan(request, kBf16), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(TinyModels, MemoryPlans, testing::ValuesIn(tiny_model_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace metrale::test
