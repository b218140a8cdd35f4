// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/logits.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> run_argmax(gpu::GpuBackend& gpu, const std::vector<float>& logits,
                                     std::uint32_t rows) {
  DeviceRun run(gpu);
  const std::uint64_t tokens = run.room(std::size_t{rows} * 4);
  run.run(kArgmax, ArgmaxArgs{.rows = run.put(rows),
                              .logits = run.put(logits),
                              .tokens = tokens,
                              .max_rows = rows + 1,
                              .vocab = static_cast<std::uint32_t>(logits.size() / rows)});
  return run.get<std::int32_t>(tokens, rows);
}

TEST(CudaArgmax, AgreesWithTheCpuOnTiesAndWhatIsNotFinite) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t rows = 1 + seed % 5;
    const std::size_t vocab = std::uniform_int_distribution<std::size_t>(1, 40'000)(random);
    std::vector<float> logits(vocab * rows);
    // Few distinct values, so that ties are common.
    for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 60)) - 40.0F;
    for (std::size_t i = 0; i < logits.size() / 10; ++i) {
      logits[random() % logits.size()] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
    }
    ASSERT_EQ(run_argmax(cuda_backend(), logits, rows), run_argmax(cpu_backend(), logits, rows))
        << "seed " << seed << ", vocabulary of " << vocab;
  }
}

TEST(CudaArgmax, FindsTheLargestAtEveryPlaceOfRowsOfEveryAlignment) {
  for (const std::uint32_t vocab : {1U, 2U, 3U, 5U, 31U, 33U, 127U, 130U}) {
    const std::uint32_t rows = std::max(vocab, 9U);
    std::vector<float> logits(std::size_t{rows} * vocab, -2.0F);
    std::vector<std::int32_t> expected(rows);
    for (std::uint32_t row = 0; row < rows; ++row) {
      logits[std::size_t{row} * vocab + row % vocab] = -1.0F;
      expected[row] = static_cast<std::int32_t>(row % vocab);
    }
    EXPECT_EQ(run_argmax(cuda_backend(), logits, rows), expected) << vocab;
  }
}

TEST(CudaArgmax, TakesTheLowestIndexOnTiesAcrossALargeVocabulary) {
  std::vector<float> logits(128'256, -1.0F);
  for (const std::size_t at : {128'255U, 90'001U, 70'002U, 33'333U}) logits[at] = 5;
  EXPECT_EQ(run_argmax(cuda_backend(), logits, 1)[0], 33'333);
}

TEST(CudaArgmax, HandlesTheEdgesOfTheContract) {
  gpu::GpuBackend& gpu = cuda_backend();
  EXPECT_EQ(run_argmax(gpu, {-1, -0.0F, 0.0F}, 1)[0], 1);
  EXPECT_EQ(run_argmax(gpu, {-kInf, std::numeric_limits<float>::lowest()}, 1)[0], 1);
  EXPECT_EQ(run_argmax(gpu, {kNan, kInf, -kInf, 1, 2, 3}, 2), (std::vector<std::int32_t>{-1, 2}));
}

TEST(CudaArgmax, ReachesRowsBeyondTwoGibibytes) {
  constexpr std::uint32_t kVocab = 262'147;
  constexpr std::uint32_t kRows = 2100;
  std::mt19937 random(51);
  std::vector<float> row = random_normal(random, kVocab);
  row[200'000] = 100;
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  BigBuffer logits(gpu, std::uint64_t{kRows} * kVocab * 4);
  const std::uint64_t last = std::uint64_t{kRows - 1} * kVocab * 4;
  ASSERT_GT(last, kBeyond31Bits);
  logits.put(last, row);
  const std::uint64_t tokens = run.room(std::size_t{kRows} * 4);

  run.run(kArgmax, ArgmaxArgs{.rows = run.put(kRows),
                              .logits = logits.address(),
                              .tokens = tokens,
                              .max_rows = kRows,
                              .vocab = kVocab});

  std::vector<std::int32_t> expected(kRows, -1);
  expected.back() = 200'000;
  EXPECT_EQ(run.get<std::int32_t>(tokens, kRows), expected);
}

GatherRowsArgs gather_args(DeviceRun& run, const std::vector<std::uint32_t>& ids, std::uint64_t in,
                           std::uint32_t in_rows, std::uint32_t width, ElementType type) {
  const auto rows = static_cast<std::uint32_t>(ids.size());
  return {.rows = run.put(rows),
          .row_ids = run.put(ids),
          .in = in,
          .out = run.room(ids.size() * width * quant::element_bytes(type)),
          .max_rows = rows + 1,
          .width = width,
          .in_rows = in_rows,
          .type = type};
}

Elements run_gather(gpu::GpuBackend& gpu, const Elements& in, std::uint32_t width,
                    const std::vector<std::uint32_t>& ids) {
  DeviceRun run(gpu);
  const GatherRowsArgs args =
      gather_args(run, ids, run.put(in), static_cast<std::uint32_t>(in.size() / width), width, in.type());
  run.run(kGatherRows, args);
  return run.get(in.type(), args.out, ids.size() * width);
}

TEST(CudaGatherRows, CopiesEveryBit) {
  std::mt19937 random(52);
  const std::vector<std::uint32_t> ids{6, 0, 3, 3, 1};
  for (const ElementType type : kAllTypes) {
    for (const std::uint32_t width : {1U, 3U, 8U, 9U, 576U, 1025U, 4096U}) {
      Elements in(type, std::size_t{7} * width);
      for (std::size_t i = 0; i < in.size(); ++i) in.set_bits(i, static_cast<std::uint32_t>(random()));
      EXPECT_EQ(run_gather(cuda_backend(), in, width, ids).bytes(),
                run_gather(cpu_backend(), in, width, ids).bytes())
          << to_string(type) << ", width " << width;
    }
  }
}

TEST(CudaGatherRows, ReachesRowsBeyondTwoGibibytes) {
  constexpr std::uint32_t kWidth = 8200;
  constexpr std::uint32_t kRows = 132'000;
  std::mt19937 random(53);
  const Elements row(ElementType::kBf16, random_normal(random, kWidth));
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  BigBuffer in(gpu, std::uint64_t{kRows} * kWidth * 2);
  const std::uint64_t last = std::uint64_t{kRows - 1} * kWidth * 2;
  ASSERT_GT(last, kBeyond31Bits);
  in.put(last, row.bytes());
  const GatherRowsArgs args = gather_args(run, {kRows - 1}, in.address(), kRows, kWidth, ElementType::kBf16);

  run.run(kGatherRows, args);

  EXPECT_EQ(run.get(ElementType::kBf16, args.out, kWidth).bytes(), row.bytes());
}

TEST(CudaGatherRows, ReportsARowThatIsNotThere) {
  OwnBackend own;
  const std::uint64_t in = own.run.room(64);
  own.expect_fault(kGatherRows, gather_args(own.run, {0, 3}, in, 3, 4, ElementType::kF32),
                   "row id 3 in row 1");
}

}  // namespace
}  // namespace metrale::kernels
