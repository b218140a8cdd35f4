// SPDX-License-Identifier: Apache-2.0
// kv_write in every format: the bytes are those of the format's definition, on every instruction set, however
// the rows are divided, and nobody else's bytes are touched.
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/kernels/kv_write.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_codec.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;
using quant::KvSide;

constexpr std::uint32_t kHeads = 2;
constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kBlocks = 4;

using Pool = std::vector<std::byte>;

// Everything that one layer adds to a side, of every head.
struct Params {
  std::vector<float> scales;
  std::vector<float> diagonal;
  std::vector<float> mean;

  Params(std::mt19937& random, std::uint32_t head_dim) {
    scales = {0.011F, 0.3F};
    diagonal = random_normal(random, std::size_t{kHeads} * head_dim);
    mean = random_normal(random, std::size_t{kHeads} * head_dim);
    for (float& d : diagonal) d = d < 0 ? d - 0.5F : d + 0.5F;
  }
  [[nodiscard]] KvSideParams args() const { return {address(scales), address(diagonal), address(mean)}; }
  [[nodiscard]] quant::KvHeadParams of_head(std::size_t head, std::uint32_t head_dim) const {
    return {.scale = scales[head],
            .diagonal = std::span(diagonal).subspan(head * head_dim, head_dim),
            .mean = std::span(mean).subspan(head * head_dim, head_dim)};
  }
};

struct Step {
  Step(std::mt19937& random, std::uint32_t dim, quant::ElementType element_type, std::vector<std::int64_t> to)
      : head_dim(dim),
        slots(std::move(to)),
        rows(static_cast<std::uint32_t>(slots.size())),
        k(element_type, random_normal(random, slots.size() * kHeads * dim)),
        v(element_type, random_normal(random, slots.size() * kHeads * dim)),
        k_params(random, dim),
        v_params(random, dim) {}

  std::uint32_t head_dim;
  std::vector<std::int64_t> slots;
  std::uint32_t rows;
  Elements k;
  Elements v;
  Params k_params;
  Params v_params;
};

Pool fresh(KvFormat format, std::uint32_t head_dim) {
  return Pool(kBlocks * quant::kv_side_bytes(format, kBlockSize, kHeads, head_dim), std::byte{0xA5});
}

void expect_side(const Step& step, KvFormat format, KvSide side, const Pool& written) {
  Pool expected = fresh(format, step.head_dim);
  const Elements& from = side == KvSide::kKey ? step.k : step.v;
  const Params& params = side == KvSide::kKey ? step.k_params : step.v_params;
  const std::size_t stripe = quant::kv_head_stripe_bytes(format, kBlockSize, step.head_dim);
  std::vector<float> x(step.head_dim);
  for (std::size_t row = 0; row < step.slots.size(); ++row) {
    if (step.slots[row] < 0) continue;
    const auto slot = static_cast<std::size_t>(step.slots[row]);
    for (std::size_t head = 0; head < kHeads; ++head) {
      for (std::size_t d = 0; d < step.head_dim; ++d)
        x[d] = from.get((row * kHeads + head) * step.head_dim + d);
      const auto bytes = std::span(expected).subspan((slot / kBlockSize * kHeads + head) * stripe, stripe);
      quant::KvStripe(format, side, kBlockSize, step.head_dim, bytes)
          .encode(slot % kBlockSize, params.of_head(head, step.head_dim), x);
    }
  }
  ASSERT_EQ(written, expected) << quant::to_string(format) << " head_dim " << step.head_dim << " side "
                               << static_cast<int>(side);
}

// Both sides of the step into the pools.
KvWriteArgs write_args(const Step& step, KvFormat format, Pool& k_pool, Pool& v_pool) {
  return {.rows = address(&step.rows),
          .k = step.k.address(),
          .v = step.v.address(),
          .slots = address(step.slots),
          .k_pool = address(k_pool),
          .v_pool = address(v_pool),
          .max_rows = step.rows,
          .stride = kHeads * step.head_dim,
          .num_kv_heads = kHeads,
          .head_dim = step.head_dim,
          .block_size = kBlockSize,
          .num_blocks = kBlocks,
          .type = step.k.type(),
          .k_format = format,
          .v_format = format,
          .reserved = 0,
          .k_params = step.k_params.args(),
          .v_params = step.v_params.args()};
}

void write_and_expect(Step& step, KvFormat format, ThreadPool& pool) {
  Pool k_pool = fresh(format, step.head_dim);
  Pool v_pool = fresh(format, step.head_dim);
  run_kernel(pool, kKvWrite, write_args(step, format, k_pool, v_pool));
  expect_side(step, format, KvSide::kKey, k_pool);
  expect_side(step, format, KvSide::kValue, v_pool);
}

// Tokens of blocks in part and out of order; one row writes nothing.
std::vector<std::int64_t> some_slots() {
  std::vector<std::int64_t> slots{40, 3, -1, 63, 7, 0, 17};
  for (std::int64_t slot = 20; slot < 32; ++slot) slots.push_back(slot);
  return slots;
}

class KvWriteFormats : public testing::TestWithParam<KvFormat> {};

TEST_P(KvWriteFormats, BytesAreThoseOfTheDefinition) {
  std::mt19937 random(11);
  for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
    for (const quant::ElementType type : kAllTypes) {
      Step step(random, head_dim, type, some_slots());
      write_and_expect(step, GetParam(), test_pool());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(KvWriteFormats, InstructionSetDoesNotShow) {
  const ForceAvx2 avx2;
  std::mt19937 random(12);
  for (const std::uint32_t head_dim : {64U, 80U, 128U}) {
    Step step(random, head_dim, quant::ElementType::kBf16, some_slots());
    write_and_expect(step, GetParam(), test_pool());
    if (HasFatalFailure()) return;
  }
}

TEST_P(KvWriteFormats, WithoutValuesKeysAloneAreStored) {
  std::mt19937 random(15);
  for (const std::uint32_t head_dim : {64U, 512U}) {
    Step step(random, head_dim, quant::ElementType::kBf16, some_slots());
    Pool k_pool = fresh(GetParam(), head_dim);
    Pool v_pool = fresh(GetParam(), head_dim);
    KvWriteArgs args = write_args(step, GetParam(), k_pool, v_pool);
    args.v = args.v_pool = 0;
    args.v_format = std::bit_cast<KvFormat>(77U);
    run_kernel(test_pool(), kKvWrite, args);
    expect_side(step, GetParam(), KvSide::kKey, k_pool);
    EXPECT_EQ(v_pool, fresh(GetParam(), head_dim));
    if (HasFatalFailure()) return;
  }
}

// Tokens of a block share words in turbo3: threads write them at the same time.
TEST_P(KvWriteFormats, ThreadsThatShareABlockLoseNothing) {
  std::mt19937 random(13);
  ThreadPool pool(4);
  std::vector<std::int64_t> slots(kBlocks * kBlockSize);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(slots.begin(), slots.end(), random);
    Step step(random, 512, quant::ElementType::kF32, slots);
    write_and_expect(step, GetParam(), pool);
    if (HasFatalFailure()) return;
  }
}

// Zeros, spikes, constants, numbers of every size, and what is no number.
TEST_P(KvWriteFormats, StrangeVectorsAreStoredAsTheDefinitionSays) {
  std::mt19937 random(14);
  const std::vector<float> sizes{0,    1e-42F, 1e-25F, 1e-6F, 1e-4F,     1,
                                 1e3F, 1e5F,   1e19F,  3e38F, HUGE_VALF, NAN};
  for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U}) {
    std::vector<std::int64_t> slots(sizes.size() * 3);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
    Step step(random, head_dim, quant::ElementType::kF32, slots);
    step.k_params.mean.assign(step.k_params.mean.size(), 0);
    step.v_params.mean.assign(step.v_params.mean.size(), 0);
    for (std::size_t row = 0; row < slots.size(); ++row) {
      for (std::size_t d = 0; d < std::size_t{kHeads} * head_dim; ++d) {
        const std::size_t at = row * kHeads * head_dim + d;
        const float size = sizes[row / 3];
        const float value = row % 3 == 0   ? size
                            : row % 3 == 1 ? (d % head_dim == 7 ? size : 0)
                                           : step.k.get(at) * size;
        step.k.set(at, value);
        step.v.set(at, -value);
      }
    }
    write_and_expect(step, GetParam(), test_pool());
    if (HasFatalFailure()) return;
  }
}

std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) formats.push_back(info.format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, KvWriteFormats, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(quant::to_string(test.param)); });

}  // namespace
}  // namespace metrale::kernels
