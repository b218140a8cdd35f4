// SPDX-License-Identifier: Apache-2.0
// Latent attention on the device has the bits of the CPU: every sum is in the same order.
#include "cuda/support/parity.h"
#include "kernels/support/mla_case.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;

// The arguments of `step`, with its arrays in the memory of `memory` and a result of NaN.
MlaAttentionArgs put_mla(DeviceRun& memory, const MlaStep& step) {
  MlaAttentionArgs args = step.args;
  args.counts = memory.put(std::span(&step.latent.counts, 1));
  args.query_starts = memory.put(step.latent.query_starts);
  args.context_lens = memory.put(step.latent.context_lens);
  args.table_rows = memory.put(step.latent.table_rows);
  args.block_tables = memory.put(step.latent.tables);
  args.q_latent = memory.put(step.latent.queries());
  args.q_rope = memory.put(step.rope.queries());
  args.latent_pool = memory.put(step.latent.k_pool());
  args.rope_pool = memory.put(step.rope.k_pool());
  args.latent_scales = args.rope_scales = args.workspace = 0;
  args.out = memory.room(step.out().bytes().size());
  return args;
}

void expect_cpu_bits(const MlaShape& shape, const std::vector<SeqShape>& seqs, const AttentionRun& how,
                     std::uint32_t seed) {
  const auto sequences = random_mla(seed, shape, seqs);
  MlaStep step(shape, sequences, seqs, how);
  DeviceRun run(cuda_backend());
  const MlaAttentionArgs args = put_mla(run, step);
  step.run();

  run.run(kMlaAttention, args);

  expect_same(run.get(shape.type, args.out, step.out().size()), step.out(),
              "seed " + std::to_string(seed) + ", " + std::to_string(shape.num_heads) + " heads of " +
                  std::to_string(shape.latent_dim) + "+" + std::to_string(shape.rope_dim) + ", window " +
                  std::to_string(shape.window));
}

TEST(CudaMlaAttention, HasTheBitsOfTheCpuForEveryTypeAndFormat) {
  std::uint32_t seed = 1;
  for (const quant::ElementType type : kAllTypes) {
    for (const KvFormat latent : {KvFormat::kBf16, KvFormat::kFp32}) {
      for (const KvFormat rope : {KvFormat::kBf16, KvFormat::kFp32}) {
        const MlaShape shape{.type = type, .latent_format = latent, .rope_format = rope};
        expect_cpu_bits(shape, {{70, 1}, {18, 18}, {33, 3}}, {}, ++seed);
      }
    }
  }
}

TEST(CudaMlaAttention, HasTheBitsOfTheCpuForEveryNumberOfHeadsAndDimension) {
  std::uint32_t seed = 100;
  for (const std::uint32_t heads : {1U, 7U, 8U, 9U, 16U, 128U}) {
    expect_cpu_bits({.num_heads = heads, .latent_dim = 512, .rope_dim = 64}, {{90, 2}, {17, 1}}, {}, ++seed);
  }
  for (const auto& [latent, rope] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{64, 16}, {80, 48}, {112, 128}, {256, 32}}) {
    expect_cpu_bits({.latent_dim = latent, .rope_dim = rope}, {{40, 9}, {17, 1}}, {.block_size = 24}, ++seed);
  }
}

TEST(CudaMlaAttention, HasTheBitsOfTheCpuAcrossSplitsAndInAWindow) {
  std::uint32_t seed = 200;
  for (const std::uint32_t window : {0U, 1U, 40U, 511U, 700U}) {
    expect_cpu_bits({.num_heads = 3, .window = window}, {{1030, 20}, {512, 1}, {513, 2}, {2500, 1}, {5, 0}},
                    {}, ++seed);
  }
}

TEST(CudaMlaAttention, WritesOnlyTheRowsOfItsStep) {
  const MlaShape shape;
  MlaStep step(shape, random_mla(7, shape, {{20, 4}}), {{20, 4}}, {});
  step.latent.counts = {.num_tokens = 2, .num_seqs = 1};
  step.latent.query_starts = {0, 2};
  DeviceRun run(cuda_backend());
  const MlaAttentionArgs args = put_mla(run, step);

  run.run(kMlaAttention, args);

  const auto out = run.get(shape.type, args.out, step.out().size()).floats();
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= out.size() / 2) << i;
}

TEST(CudaMlaAttention, ReportsAContextBeyondTheBlockTable) {
  const MlaShape shape;
  MlaStep step(shape, random_mla(8, shape, {{20, 2}, {5, 1}}), {{20, 2}, {5, 1}}, {});
  step.latent.context_lens[1] = 33;
  OwnBackend own;
  own.expect_fault(kMlaAttention, put_mla(own.run, step), "sequence 1");
}

TEST(CudaMlaAttention, ReportsMoreTokensThanTheLaunchWasMadeFor) {
  const MlaShape shape;
  MlaStep step(shape, random_mla(9, shape, {{20, 2}}), {{20, 2}}, {});
  step.args.max_tokens = 1;
  OwnBackend own;
  own.expect_fault(kMlaAttention, put_mla(own.run, step), "2 rows");
}

TEST(CudaMlaAttention, RefusesWhatHasNoKernels) {
  const MlaShape shape;
  const MlaStep step(shape, random_mla(10, shape, {{20, 2}}), {{20, 2}}, {});
  DeviceRun run(cuda_backend());
  MlaAttentionArgs args = put_mla(run, step);
  args.rope_format = KvFormat::kFp8;
  EXPECT_THROW(run.run(kMlaAttention, args), Unsupported);
  args = put_mla(run, step);
  args.latent_dim = 72;
  EXPECT_THROW(run.run(kMlaAttention, args), Unsupported);
}

}  // namespace
}  // namespace metrale::kernels
