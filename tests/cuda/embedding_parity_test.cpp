// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/embedding.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

EmbeddingArgs embedding_args(DeviceRun& run, const std::vector<std::int32_t>& ids, std::uint64_t table,
                             std::uint32_t vocab, std::uint32_t width, ElementType from, ElementType to) {
  const auto rows = static_cast<std::uint32_t>(ids.size());
  return {.rows = run.put(rows),
          .token_ids = run.put(ids),
          .table = table,
          .out = run.room(ids.size() * width * quant::element_bytes(to)),
          .max_rows = rows + 3,
          .width = width,
          .vocab = vocab,
          .table_type = from,
          .out_type = to};
}

Elements embed(gpu::GpuBackend& gpu, const Elements& table, std::uint32_t width,
               const std::vector<std::int32_t>& ids, ElementType to, float scale) {
  DeviceRun run(gpu);
  EmbeddingArgs args = embedding_args(
      run, ids, run.put(table), static_cast<std::uint32_t>(table.size() / width), width, table.type(), to);
  args.scale = scale;
  run.run(kEmbedding, args);
  return run.get(to, args.out, ids.size() * width);
}

TEST(CudaEmbedding, HasTheBitsOfTheCpu) {
  std::mt19937 random(31);
  const std::vector<std::int32_t> ids{4, 0, 2, 2, 3};
  for (const ElementType from : kAllTypes) {
    for (const ElementType to : kAllTypes) {
      for (const std::uint32_t width : {1U, 8U, 9U, 576U, 1025U, 4096U}) {
        for (const float scale : {1.0F, 25.25F}) {
          const Elements table(from, with_odd_values(random, random_normal(random, std::size_t{5} * width)));

          const Elements expected = embed(cpu_backend(), table, width, ids, to, scale);
          const Elements actual = embed(cuda_backend(), table, width, ids, to, scale);

          expect_same(actual, expected, type_names({from, to}) + ", width " + std::to_string(width));
        }
      }
    }
  }
}

TEST(CudaEmbedding, ConvertsEverySixteenBitValueToTheBitsOfTheCpu) {
  for (const ElementType from : {ElementType::kBf16, ElementType::kF16}) {
    Elements table(from, 65536);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) table.set_bits(bits, bits);
    for (const ElementType to : kAllTypes) {
      EXPECT_EQ(embed(cuda_backend(), table, 65536, {0}, to, 1.0F).bytes(),
                embed(cpu_backend(), table, 65536, {0}, to, 1.0F).bytes())
          << type_names({from, to});
    }
  }
}

TEST(CudaEmbedding, NarrowsEveryUpperHalfAndItsTiesToTheBitsOfTheCpu) {
  Elements table(ElementType::kF32, std::size_t{65536} * 8);
  std::size_t next = 0;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
      table.set_bits(next++, upper << 16 | lower);
    }
  }
  for (const ElementType to : {ElementType::kBf16, ElementType::kF16}) {
    EXPECT_EQ(embed(cuda_backend(), table, 65536 * 8, {0}, to, 1.0F).bytes(),
              embed(cpu_backend(), table, 65536 * 8, {0}, to, 1.0F).bytes())
        << to_string(to);
  }
}

TEST(CudaEmbedding, ReachesTokensBeyondTwoGibibytes) {
  constexpr std::uint32_t kWidth = 4100;
  constexpr std::uint32_t kVocab = 300'000;
  std::mt19937 random(32);
  const Elements row(ElementType::kBf16, random_normal(random, kWidth));
  gpu::GpuBackend& gpu = cuda_backend();
  BigBuffer table(gpu, std::uint64_t{kVocab} * kWidth * 2);
  const std::uint64_t last = std::uint64_t{kVocab - 1} * kWidth * 2;
  ASSERT_GT(last, kBeyond31Bits);
  table.put(last, row.bytes());
  for (const ElementType to : kAllTypes) {
    DeviceRun run(gpu);
    const EmbeddingArgs args = embedding_args(run, {static_cast<std::int32_t>(kVocab - 1)}, table.address(),
                                              kVocab, kWidth, ElementType::kBf16, to);

    run.run(kEmbedding, args);

    expect_same(run.get(to, args.out, kWidth), Elements(to, row.floats()), std::string(to_string(to)));
  }
}

TEST(CudaEmbedding, ReportsATokenOutsideTheVocabulary) {
  for (const std::int32_t bad : {-1, 4}) {
    OwnBackend own;
    const std::uint64_t table = own.run.room(64);
    own.expect_fault(kEmbedding,
                     embedding_args(own.run, {0, 3, bad}, table, 4, 4, ElementType::kF32, ElementType::kF32),
                     "token id " + std::to_string(bad) + " in row 2");
  }
}

}  // namespace
}  // namespace metrale::kernels
