// SPDX-License-Identifier: Apache-2.0
// kv_shift: keys in the cache at other positions, in every format: against the definition bit for bit,
// against double precision within what the format rounds away, and nobody else's bytes.
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_shift.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/rope.h>

#include "kernels/support/isa.h"
#include "kernels/support/kv_shift_case.h"

namespace metrale::kernels {
namespace {

constexpr std::uint32_t kHeadDims[] = {64, 80, 96, 128, 192, 256, 512};

// The most that one rounding to the format loses of Gaussian vectors: squared, of their squared size.
double one_rounding(KvFormat format) {
  switch (format) {
    case KvFormat::kFp32:
      return 1e-13;
    case KvFormat::kFp16:
      return 1e-7;
    case KvFormat::kBf16:
      return 3.5e-6;
    case KvFormat::kFp8:
      return 0.8e-3;
    case KvFormat::kTurbo8:
      return 0.8e-3;
    case KvFormat::kTurbo8i:
      return 0.06e-3;
    case KvFormat::kNvfp4:
      return 10e-3;
    case KvFormat::kNvfp4Searched:
      return 7.5e-3;
    case KvFormat::kTurbo4:
      return 4.3e-3;
    case KvFormat::kTurbo3:
      return 16e-3;
    case KvFormat::kTurbo2:
      return 62e-3;
  }
  throw std::logic_error("unknown format");
}

std::int32_t some_delta(std::int64_t slot) {
  constexpr std::int32_t kDeltas[] = {-1, 1, -700, 4096, -3, 0, -100000};
  return kDeltas[slot / 3 % 7];
}

class KvShift : public testing::TestWithParam<KvFormat> {
 protected:
  // Calls body(keys, params, random) for every head_dim, with a pool full of Gaussian keys.
  template <class Body>
  static void for_head_dims(const Body& body) {
    std::mt19937 random(21);
    for (const std::uint32_t head_dim : kHeadDims) {
      const Params params(random, head_dim);
      Keys keys(GetParam(), head_dim, params);
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        keys.store(slot, random_normal(random, std::size_t{kHeads} * head_dim));
      }
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
      body(keys);
    }
  }
};

TEST_P(KvShift, BytesAreThoseOfTheDefinition) {
  for_head_dims([](Keys& keys) {
    for (const std::uint32_t rotary_dim : {keys.head_dim(), keys.head_dim() / 2, 6U}) {
      const Shift shift = shift_of_all(rotary_dim, some_delta);
      Keys expected = keys;
      for (std::size_t row = 0; row < kSlots; ++row) {
        if (shift.deltas[row] == 0) continue;
        const auto slot = static_cast<std::size_t>(shift.slots[row]);
        for (std::size_t head = 0; head < kHeads; ++head) {
          expected.put(slot, head, turned_by_definition(keys.key(slot, head), shift.deltas[row], rotary_dim));
        }
      }

      Keys got = keys;
      run_shift(got, shift);
      EXPECT_EQ(got.bytes(), expected.bytes()) << "rotary_dim " << rotary_dim;

      const ForceAvx2 avx2;
      Keys again = keys;
      run_shift(again, shift);
      EXPECT_EQ(again.bytes(), expected.bytes()) << "rotary_dim " << rotary_dim << " with AVX2";
    }
  });
}

TEST_P(KvShift, IsWithinOneRoundingOfDoublePrecision) {
  for_head_dims([](Keys& keys) {
    const Shift shift = shift_of_all(keys.head_dim(), [](std::int64_t slot) { return some_delta(slot) - 5; });
    Keys shifted = keys;
    run_shift(shifted, shift);
    Error error;
    for (std::size_t row = 0; row < kSlots; ++row) {
      const auto slot = static_cast<std::size_t>(shift.slots[row]);
      for (std::size_t head = 0; head < kHeads; ++head) {
        error.add(shifted.stored(slot, head),
                  ideal(GetParam(), keys.params().of_head(head), keys.stored(slot, head), shift.deltas[row],
                        keys.head_dim()));
      }
    }
    EXPECT_LE(error.relative(), one_rounding(GetParam()));
    EXPECT_TRUE(GetParam() == KvFormat::kFp32 || error.relative() > one_rounding(GetParam()) / 100);
  });
}

// Each of the two shifts rounds once; the second one turns the error of the first, which keeps its size.
TEST_P(KvShift, ThereAndBackIsWithinTwoRoundings) {
  for_head_dims([](Keys& keys) {
    const Shift shift = shift_of_all(
        keys.head_dim(), [](std::int64_t slot) { return static_cast<std::int32_t>(slot) * 37 - 500; });
    Keys shifted = keys;
    run_shift(shifted, shift);
    EXPECT_NE(shifted.bytes(), keys.bytes());
    run_shift(shifted, shift.back());
    Error error;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        error.add(shifted.stored(slot, head), keys.stored(slot, head));
      }
    }
    EXPECT_LE(error.relative(), 2.2 * one_rounding(GetParam()));
  });
}

// rope_table, rope and kv_write put the same keys at a position, as a step does.
void write_at(Keys& keys, const std::vector<float>& vectors, const std::vector<std::uint32_t>& positions) {
  const std::uint32_t dim = keys.head_dim();
  const auto rows = static_cast<std::uint32_t>(positions.size());
  const std::vector<float> inv_freq = inverse_frequencies(dim / 2);
  std::vector<float> table(std::size_t{rows} * dim);
  run_kernel(test_pool(), kRopeTable,
             {.rows = address(&rows),
              .positions = address(positions),
              .inv_freq = address(inv_freq),
              .table = address(table),
              .max_rows = rows,
              .half_dims = dim / 2,
              .factor = 1.0F});
  std::vector<float> turned_keys(vectors.begin(), vectors.end());
  run_kernel(test_pool(), kRope,
             {.rows = address(&rows),
              .table = address(table),
              .data = address(turned_keys),
              .max_rows = rows,
              .stride = kHeads * dim,
              .num_heads = kHeads,
              .head_dim = dim,
              .rotary_dim = dim,
              .type = quant::ElementType::kF32});
  std::vector<std::int64_t> slots(rows);
  std::iota(slots.begin(), slots.end(), 0);
  Pool values(keys.bytes().size());
  run_kernel(test_pool(), kKvWrite,
             {.rows = address(&rows),
              .k = address(turned_keys),
              .v = address(turned_keys),
              .slots = address(slots),
              .k_pool = address(keys.bytes()),
              .v_pool = address(values),
              .max_rows = rows,
              .stride = kHeads * dim,
              .num_kv_heads = kHeads,
              .head_dim = dim,
              .block_size = kBlockSize,
              .num_blocks = kBlocks,
              .type = quant::ElementType::kF32,
              .k_format = keys.format(),
              .v_format = keys.format(),
              .reserved = 0,
              .k_params = keys.params().args()});
}

TEST_P(KvShift, EqualsStoringTheKeyAtTheNewPosition) {
  for_head_dims([](Keys& unused) {
    std::mt19937 random(22);
    const std::vector<float> vectors =
        random_normal(random, std::size_t{kSlots} * kHeads * unused.head_dim());
    std::vector<std::uint32_t> before(kSlots);
    std::iota(before.begin(), before.end(), 1000U);
    const Shift shift =
        shift_of_all(unused.head_dim(), [](std::int64_t slot) { return slot % 2 == 0 ? -1000 : 711; });
    std::vector<std::uint32_t> after = before;
    for (std::size_t row = 0; row < kSlots; ++row) {
      auto& position = after[static_cast<std::size_t>(shift.slots[row])];
      position = static_cast<std::uint32_t>(static_cast<std::int32_t>(position) + shift.deltas[row]);
    }
    Keys shifted(GetParam(), unused.head_dim(), unused.params());
    Keys expected(GetParam(), unused.head_dim(), unused.params());
    write_at(shifted, vectors, before);
    write_at(expected, vectors, after);

    run_shift(shifted, shift);

    Error error;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        error.add(shifted.stored(slot, head), expected.stored(slot, head));
      }
    }
    // Two roundings there, one here, and angles up to 2000 rounded to FP32.
    EXPECT_LE(error.relative(), 3.3 * one_rounding(GetParam()) + 1e-8);
  });
}

TEST_P(KvShift, NegativeSlotsZeroDeltasAndOtherTokensKeepTheirBytes) {
  for_head_dims([](Keys& keys) {
    Keys shifted = keys;
    run_shift(shifted, {.slots = {-1, 3, 20, -7}, .deltas = {5, 0, 9, 1}, .rotary_dim = keys.head_dim()});
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        EXPECT_EQ(shifted.stored(slot, head) == keys.stored(slot, head), slot != 20) << "slot " << slot;
      }
    }
    // Written back, the one token that moved leaves no other byte changed.
    for (std::size_t head = 0; head < kHeads; ++head) {
      const std::size_t row = quant::kv_row_bytes(GetParam(), keys.head_dim());
      const std::size_t header = quant::kv_header_bytes(GetParam(), keys.head_dim());
      const std::size_t side = quant::kv_side_bytes(GetParam(), kBlockSize, kHeads, keys.head_dim());
      const auto copy = [&](std::size_t at, std::size_t count) {
        std::copy_n(keys.bytes().begin() + static_cast<std::ptrdiff_t>(side + at), count,
                    shifted.bytes().begin() + static_cast<std::ptrdiff_t>(side + at));
      };
      copy(quant::kv_codes_offset(GetParam(), kBlockSize, keys.head_dim(), head, 4), row);
      copy(quant::kv_header_offset(GetParam(), kBlockSize, keys.head_dim(), head, 4), header);
    }
    EXPECT_EQ(shifted.bytes(), keys.bytes());
  });
}

TEST_P(KvShift, MemoryThatWasNeverWrittenStaysNan) {
  for_head_dims([](Keys& written) {
    Keys poisoned(GetParam(), written.head_dim(), written.params());
    run_shift(poisoned, shift_of_all(written.head_dim(), [](std::int64_t) { return -40; }));
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      for (const float v : poisoned.stored(slot, 1)) ASSERT_TRUE(std::isnan(v)) << "slot " << slot;
    }
  });
}

TEST_P(KvShift, ARowDependsOnNothingBesideIt) {
  std::mt19937 random(23);
  const Params params(random, 192);
  Keys keys(GetParam(), 192, params);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    keys.store(slot, random_normal(random, std::size_t{kHeads} * 192));
  }
  const Shift shift = shift_of_all(192, some_delta);
  Keys all = keys;
  run_shift(all, shift);
  for (const unsigned threads : {1U, 3U, 4U}) {
    ThreadPool pool(threads);
    Keys again = keys;
    run_shift(again, shift, pool);
    EXPECT_EQ(again.bytes(), all.bytes()) << threads << " threads";
  }
  Keys alone = keys;
  for (std::size_t row = 0; row < kSlots; ++row) {
    run_shift(alone, {.slots = {shift.slots[row]}, .deltas = {shift.deltas[row]}, .rotary_dim = 192});
  }
  EXPECT_EQ(alone.bytes(), all.bytes());
}

std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) formats.push_back(info.format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, KvShift, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(quant::to_string(test.param)); });

// A mean far away from zero turns with the key; only what is left after it is rounded.
TEST(KvShiftParams, AMeanIsPartOfTheKeyThatTurns) {
  std::mt19937 random(24);
  Params params(random, 128);
  for (float& m : params.mean) m *= 20;
  Keys keys(KvFormat::kTurbo8i, 128, params);
  std::vector<float> given = params.mean;
  for (float& x : given) x += 1.0F;
  keys.store(7, given);
  const std::vector<float> before = keys.key(7, 1);
  run_shift(keys, {.slots = {7}, .deltas = {2}, .rotary_dim = 128});
  const std::vector<double> expected = turned(std::vector<double>(before.begin(), before.end()), 2, 128);
  Error error;
  error.add(keys.key(7, 1), expected);
  EXPECT_LE(error.relative(), 1e-3);
}

class KvShiftRefusals : public testing::Test {
 protected:
  std::mt19937 random{25};
  Params params{random, 64};
  Keys keys{KvFormat::kTurbo4, 64, params};
};

TEST_F(KvShiftRefusals, NamesASlotBeyondThePoolAndWritesNothing) {
  keys.store(0, random_normal(random, std::size_t{kHeads} * 64));
  const Pool before = keys.bytes();
  EXPECT_THAT([&] { run_shift(keys, {.slots = {0, kSlots}, .deltas = {1, 1}, .rotary_dim = 64}); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("slot 48 in row 1 is beyond the pool of 3 blocks of 16 tokens")));
  EXPECT_EQ(keys.bytes(), before);
}

TEST_F(KvShiftRefusals, NamesAnOddOrTooLargeRotaryDim) {
  for (const std::uint32_t rotary : {3U, 66U}) {
    EXPECT_THAT([&] { run_shift(keys, {.slots = {0}, .deltas = {1}, .rotary_dim = rotary}); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                    "rotary_dim " + std::to_string(rotary) + " must be even and at most head_dim 64")));
  }
}

TEST_F(KvShiftRefusals, NamesWhatTheLaunchWasNotMadeFor) {
  const Shift shift{.slots = {0, 1}, .deltas = {1, 1}, .rotary_dim = 64};
  const std::uint32_t rows = 2;
  const std::vector<float> inv_freq = inverse_frequencies(32);
  KvShiftArgs args = shift_args(keys, shift, rows, inv_freq);
  args.max_rows = 1;
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvShift, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("kv_shift: 2 rows")));
  args = shift_args(keys, shift, rows, inv_freq);
  args.head_dim = 32;
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvShift, args); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("turbo4 with head_dim 32")));
  args.k_format = std::bit_cast<KvFormat>(99U);
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvShift, args); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("KV format 99")));
}

}  // namespace
}  // namespace metrale::kernels
