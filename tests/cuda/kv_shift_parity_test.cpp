// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_shift.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using quant::KvFormat;

struct ShiftCase {
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 64;
  std::uint32_t rotary_dim = 64;
  std::uint32_t block_size = 16;
  std::uint32_t num_blocks = 3;
  KvFormat format = KvFormat::kBf16;

  [[nodiscard]] ElementType type() const {
    return format == KvFormat::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  }
  [[nodiscard]] std::size_t elements() const {
    return std::size_t{num_blocks} * block_size * num_kv_heads * head_dim;
  }
};

KvShiftArgs shift_args(DeviceRun& run, const ShiftCase& c, const std::vector<std::int64_t>& slots,
                       const std::vector<std::int32_t>& deltas, std::uint64_t k_pool) {
  std::vector<float> inv_freq(std::max<std::size_t>(1, c.rotary_dim / 2));
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / c.rotary_dim));
  }
  const auto rows = static_cast<std::uint32_t>(slots.size());
  return {.rows = run.put(rows),
          .slots = run.put(slots),
          .deltas = run.put(deltas),
          .inv_freq = run.put(inv_freq),
          .k_pool = k_pool,
          .max_rows = rows + 2,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .rotary_dim = c.rotary_dim,
          .block_size = c.block_size,
          .num_blocks = c.num_blocks,
          .k_format = c.format,
          .reserved = 0};
}

const std::vector<std::int64_t> kSlots{47, 0, -1, 17, 33, -9, 16, 5};
const std::vector<std::int32_t> kDeltas{-1, 4000, 3, -700, 1, 2, -100'000, 0};

Elements run_shift(gpu::GpuBackend& gpu, const ShiftCase& c, const Elements& keys) {
  DeviceRun run(gpu);
  const std::uint64_t pool = run.put(keys);
  run.run(kKvShift, shift_args(run, c, kSlots, kDeltas, pool));
  return run.get(c.type(), pool, keys.size());
}

// True where an element belongs to a key that moves and to its turning part.
bool moves(const ShiftCase& c, std::size_t element) {
  const std::size_t token = element / c.head_dim % c.block_size;
  const std::size_t block = element / c.head_dim / c.block_size / c.num_kv_heads;
  const auto found =
      std::find(kSlots.begin(), kSlots.end(), static_cast<std::int64_t>(block * c.block_size + token));
  return found != kSlots.end() && kDeltas[static_cast<std::size_t>(found - kSlots.begin())] != 0 &&
         element % c.head_dim < c.rotary_dim;
}

// Cosine and sine are the device's, within a unit of FP32.
TEST(CudaKvShift, IsWithinAUnitOfTheCpuAndTouchesNothingElse) {
  std::mt19937 random(71);
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp32}) {
    for (const auto& [heads, dim, rotary] : std::vector<std::array<std::uint32_t, 3>>{
             {2, 64, 64}, {8, 128, 128}, {3, 80, 32}, {2, 7, 6}, {1, 512, 512}, {1, 16, 0}}) {
      const ShiftCase c{.num_kv_heads = heads, .head_dim = dim, .rotary_dim = rotary, .format = format};
      const Elements keys(c.type(), random_normal(random, c.elements()));
      const Elements expected = run_shift(cpu_backend(), c, keys);
      const Elements actual = run_shift(cuda_backend(), c, keys);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (moves(c, i)) {
          ASSERT_NEAR(actual.get(i), expected.get(i), 1e-5 + 2 * rounding_bound(c.type(), expected.get(i)))
              << to_string(format) << ", " << heads << " heads of " << dim << ", element " << i;
        } else {
          ASSERT_EQ(actual.get(i), keys.get(i)) << "element " << i << " stays";
        }
      }
    }
  }
}

TEST(CudaKvShift, ReportsASlotBeyondThePool) {
  const ShiftCase c;
  OwnBackend own;
  const std::uint64_t pool = own.run.put(Elements(c.type(), c.elements()));
  own.expect_fault(kKvShift, shift_args(own.run, c, {3, 48}, {1, 1}, pool),
                   "slot 48 in row 1 is beyond the pool");
}

TEST(CudaKvShift, RefusesAFormatWithoutKernels) {
  const ShiftCase c{.format = KvFormat::kTurbo3};
  DeviceRun run(cuda_backend());
  const KvShiftArgs args = shift_args(run, c, {0}, {1}, 0);
  EXPECT_THROW(run.run(kKvShift, args), Unsupported);
}

}  // namespace
}  // namespace metrale::kernels
