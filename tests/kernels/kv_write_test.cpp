// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_write.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

struct WriteCase {
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 8;
  std::uint32_t block_size = 16;
  std::uint32_t num_blocks = 3;
  quant::ElementType type = quant::ElementType::kF32;
  quant::KvFormat k_format = quant::KvFormat::kBf16;
  quant::KvFormat v_format = quant::KvFormat::kFp32;
};

using Pool = std::vector<std::byte>;

Pool empty_pool(const WriteCase& c, quant::KvFormat format) {
  return Pool(c.num_blocks * quant::kv_side_bytes(format, c.block_size, c.num_kv_heads, c.head_dim),
              std::byte{0xA5});
}

class KvWriteStep {
 public:
  KvWriteStep(const WriteCase& c, std::vector<std::int64_t> slots, std::uint32_t seed)
      : case_(c),
        slots_(std::move(slots)),
        rows_(static_cast<std::uint32_t>(slots_.size())),
        stride_(std::size_t{c.num_kv_heads} * c.head_dim + 3),
        k_(c.type, values(seed)),
        v_(c.type, values(seed + 1)),
        k_pool(empty_pool(c, c.k_format)),
        v_pool(empty_pool(c, c.v_format)) {
    args.rows = address(&rows_);
    args.k = k_.address();
    args.v = v_.address();
    args.slots = address(slots_);
    args.k_pool = address(k_pool);
    args.v_pool = address(v_pool);
    args.max_rows = rows_;
    args.stride = static_cast<std::uint32_t>(stride_);
    args.num_kv_heads = c.num_kv_heads;
    args.head_dim = c.head_dim;
    args.block_size = c.block_size;
    args.num_blocks = c.num_blocks;
    args.type = c.type;
    args.k_format = c.k_format;
    args.v_format = c.v_format;
  }
  ~KvWriteStep() = default;
  KvWriteStep(const KvWriteStep&) = delete;
  KvWriteStep& operator=(const KvWriteStep&) = delete;

  // The pools as they should be after the step, byte by byte, from the layout in docs/formats/kv_block.md.
  [[nodiscard]] Pool expected_k() const { return expected(case_.k_format, k_); }
  [[nodiscard]] Pool expected_v() const { return expected(case_.v_format, v_); }

 private:
  [[nodiscard]] std::vector<float> values(std::uint32_t seed) const {
    std::mt19937 random(seed);
    return random_normal(random, slots_.size() * stride_);
  }
  [[nodiscard]] Pool expected(quant::KvFormat format, const Elements& from) const {
    Pool pool = empty_pool(case_, format);
    const std::size_t size = format == quant::KvFormat::kBf16 ? 2 : 4;
    for (std::size_t row = 0; row < slots_.size(); ++row) {
      if (slots_[row] < 0) continue;
      const auto slot = static_cast<std::size_t>(slots_[row]);
      for (std::size_t head = 0; head < case_.num_kv_heads; ++head) {
        for (std::size_t d = 0; d < case_.head_dim; ++d) {
          const float value = from.get(row * stride_ + head * case_.head_dim + d);
          const std::uint32_t bits =
              size == 2 ? quant::float_to_bf16(value) : std::bit_cast<std::uint32_t>(value);
          const std::size_t stripe = slot / case_.block_size * case_.num_kv_heads + head;
          const std::size_t token = stripe * case_.block_size + slot % case_.block_size;
          std::memcpy(pool.data() + (token * case_.head_dim + d) * size, &bits, size);
        }
      }
    }
    return pool;
  }

  WriteCase case_;
  std::vector<std::int64_t> slots_;
  std::uint32_t rows_;
  std::size_t stride_;
  Elements k_;
  Elements v_;

 public:
  Pool k_pool;
  Pool v_pool;
  KvWriteArgs args{};
};

TEST(KvWrite, StoresEveryHeadInItsStripe) {
  std::uint32_t seed = 1;
  for (const std::uint32_t head_dim : {1U, 5U, 16U, 64U, 80U, 300U, 512U}) {
    for (const std::uint32_t block_size : {1U, 16U, 24U, 128U}) {
      for (const quant::ElementType type : kAllTypes) {
        WriteCase c{.head_dim = head_dim, .block_size = block_size, .type = type};
        if (seed % 2 == 0) std::swap(c.k_format, c.v_format);
        const std::int64_t last = std::int64_t{c.num_blocks} * block_size - 1;
        KvWriteStep step(c, {last, 0, block_size, last / 2}, ++seed);
        run_kernel(test_pool(), kKvWrite, step.args);
        ASSERT_EQ(step.k_pool, step.expected_k()) << "head_dim " << head_dim << " block_size " << block_size;
        ASSERT_EQ(step.v_pool, step.expected_v()) << "head_dim " << head_dim << " block_size " << block_size;
      }
    }
  }
}

TEST(KvWrite, StoresTheExampleOfTheFormatPage) {
  const std::uint32_t rows = 1;
  const std::vector<std::int64_t> slots{19};
  const std::vector<float> k{0, 0, 0, 0, 1, -2, 0.5F, 3};
  Pool k_pool(512);
  Pool v_pool(512);
  KvWriteArgs args{};
  args.rows = address(&rows);
  args.k = address(k);
  args.v = address(k);
  args.slots = address(slots);
  args.k_pool = address(k_pool);
  args.v_pool = address(v_pool);
  args.max_rows = 1;
  args.stride = 8;
  args.num_kv_heads = 2;
  args.head_dim = 4;
  args.block_size = 16;
  args.num_blocks = 2;
  args.k_format = quant::KvFormat::kBf16;
  args.v_format = quant::KvFormat::kBf16;

  run_kernel(test_pool(), kKvWrite, args);

  constexpr unsigned char kExpected[] = {0x80, 0x3F, 0x00, 0xC0, 0x00, 0x3F, 0x40, 0x40};
  EXPECT_EQ(std::memcmp(k_pool.data() + 408, kExpected, 8), 0);
}

TEST(KvWrite, WritesNothingForANegativeSlot) {
  const WriteCase c;
  KvWriteStep step(c, {-1, -1, std::numeric_limits<std::int64_t>::min()}, 1);
  run_kernel(test_pool(), kKvWrite, step.args);
  EXPECT_EQ(step.k_pool, empty_pool(c, c.k_format));
  EXPECT_EQ(step.v_pool, empty_pool(c, c.v_format));
}

TEST(KvWrite, SkipsNegativeSlotsAmongOthers) {
  KvWriteStep step({}, {3, -1, 17, -5, 47}, 1);
  run_kernel(test_pool(), kKvWrite, step.args);
  EXPECT_EQ(step.k_pool, step.expected_k());
  EXPECT_EQ(step.v_pool, step.expected_v());
}

TEST(KvWrite, ThreadsAndInstructionSetDoNotShow) {
  const WriteCase c{.num_kv_heads = 3, .head_dim = 72, .num_blocks = 40};
  std::vector<std::int64_t> slots(257);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i * 2 + 1);
  for (const unsigned threads : {1U, 3U, 4U}) {
    ThreadPool pool(threads);
    KvWriteStep step(c, slots, 7);
    run_kernel(pool, kKvWrite, step.args);
    EXPECT_EQ(step.k_pool, step.expected_k()) << threads;
    EXPECT_EQ(step.v_pool, step.expected_v()) << threads;
  }
  const ForceAvx2 avx2;
  KvWriteStep step(c, slots, 7);
  run_kernel(test_pool(), kKvWrite, step.args);
  EXPECT_EQ(step.k_pool, step.expected_k());
}

TEST(KvWrite, RejectsASlotBeyondThePoolBeforeWriting) {
  const WriteCase c;
  KvWriteStep step(c, {0, 48}, 1);
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvWrite, step.args); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("slot 48 in row 1 is beyond the pool of 3 blocks of 16 tokens")));
  EXPECT_EQ(step.k_pool, empty_pool(c, c.k_format));
}

TEST(KvWrite, RejectsAFormatWithoutKernels) {
  KvWriteStep step({}, {0}, 1);
  step.args.k_format = quant::KvFormat::kTurbo4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvWrite, step.args); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("turbo4")));
}

TEST(KvWrite, RejectsHalfOfAValueSide) {
  const auto expect_rejected = [](const KvWriteArgs& args, const char* message) {
    EXPECT_THAT([&] { run_kernel(test_pool(), kKvWrite, args); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(message)));
  };
  KvWriteStep step({}, {0}, 1);
  KvWriteArgs args = step.args;
  args.v = 0;
  expect_rejected(args, "kv_write: v is 0 and v_pool is not");
  args = step.args;
  args.v_pool = 0;
  expect_rejected(args, "kv_write: v_pool is 0 and v is not");
}

TEST(KvWrite, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  KvWriteStep step({}, {0, 1}, 1);
  step.args.max_rows = 1;
  EXPECT_THAT([&] { run_kernel(test_pool(), kKvWrite, step.args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("kv_write: 2 rows")));
}

}  // namespace
}  // namespace metrale::kernels
