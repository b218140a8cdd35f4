// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_write.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using quant::KvFormat;

struct WriteCase {
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 64;
  std::uint32_t block_size = 16;
  std::uint32_t num_blocks = 5;
  std::uint32_t gap = 0;
  ElementType type = ElementType::kBf16;
  KvFormat k_format = KvFormat::kBf16;
  KvFormat v_format = KvFormat::kBf16;

  [[nodiscard]] std::uint32_t stride() const { return num_kv_heads * head_dim + gap; }
  [[nodiscard]] std::uint64_t side_bytes(KvFormat format) const {
    return quant::kv_side_bytes(format, block_size, num_kv_heads, head_dim);
  }
};

KvWriteArgs write_args(DeviceRun& run, const WriteCase& c, const std::vector<std::int64_t>& slots,
                       const Elements& k, const Elements& v, std::uint64_t k_pool, std::uint64_t v_pool) {
  const auto rows = static_cast<std::uint32_t>(slots.size());
  return {.rows = run.put(rows),
          .k = run.put(k),
          .v = run.put(v),
          .slots = run.put(slots),
          .k_pool = k_pool,
          .v_pool = v_pool,
          .max_rows = rows + 2,
          .stride = c.stride(),
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .block_size = c.block_size,
          .num_blocks = c.num_blocks,
          .type = c.type,
          .k_format = c.k_format,
          .v_format = c.v_format,
          .reserved = 0};
}

using Pools = std::pair<std::vector<std::byte>, std::vector<std::byte>>;

Pools run_write(gpu::GpuBackend& gpu, const WriteCase& c, const std::vector<std::int64_t>& slots,
                const Elements& k, const Elements& v) {
  DeviceRun run(gpu);
  const std::uint64_t k_bytes = c.num_blocks * c.side_bytes(c.k_format);
  const std::uint64_t v_bytes = c.num_blocks * c.side_bytes(c.v_format);
  const std::uint64_t k_pool = run.room(k_bytes);
  const std::uint64_t v_pool = run.room(v_bytes);
  run.run(kKvWrite, write_args(run, c, slots, k, v, k_pool, v_pool));
  return {run.get<std::byte>(k_pool, k_bytes), run.get<std::byte>(v_pool, v_bytes)};
}

TEST(CudaKvWrite, HasTheBytesOfTheCpuAndWritesNothingElse) {
  std::mt19937 random(41);
  const std::vector<std::int64_t> slots{79, 0, -1, 17, 33, -9, 16};
  constexpr KvFormat kFormats[] = {KvFormat::kBf16, KvFormat::kFp32};
  for (const ElementType type : kAllTypes) {
    for (const KvFormat k_format : kFormats) {
      for (const KvFormat v_format : kFormats) {
        for (const auto& [heads, dim, gap] : std::vector<std::array<std::uint32_t, 3>>{
                 {2, 64, 0}, {1, 128, 8}, {3, 80, 3}, {2, 7, 0}, {1, 1, 0}, {8, 256, 256}}) {
          const WriteCase c{.num_kv_heads = heads,
                            .head_dim = dim,
                            .gap = gap,
                            .type = type,
                            .k_format = k_format,
                            .v_format = v_format};
          // Finite: a NaN's bits may differ.
          const Elements k(type, random_normal(random, slots.size() * c.stride()));
          const Elements v(type, random_normal(random, slots.size() * c.stride()));
          EXPECT_EQ(run_write(cuda_backend(), c, slots, k, v), run_write(cpu_backend(), c, slots, k, v))
              << to_string(type) << ", " << to_string(k_format) << ", " << to_string(v_format) << ", "
              << heads << " heads of " << dim;
        }
      }
    }
  }
}

TEST(CudaKvWrite, WithoutValuesKeysAloneAreStored) {
  std::mt19937 random(43);
  const std::vector<std::int64_t> slots{79, 0, -1, 17};
  const WriteCase c{.type = ElementType::kBf16};
  const Elements k(c.type, random_normal(random, slots.size() * c.stride()));
  const std::vector<std::byte> expected = run_write(cpu_backend(), c, slots, k, k).first;
  DeviceRun run(cuda_backend());
  const std::uint64_t pool = run.room(expected.size());
  KvWriteArgs args = write_args(run, c, slots, k, k, pool, 0);
  args.v = 0;
  args.v_format = KvFormat::kTurbo3;

  run.run(kKvWrite, args);

  EXPECT_EQ(run.get<std::byte>(pool, expected.size()), expected);
}

TEST(CudaKvWrite, ReachesBlocksBeyondTwoGibibytes) {
  std::mt19937 random(42);
  WriteCase c{.num_kv_heads = 8, .head_dim = 128, .type = ElementType::kBf16};
  const Elements k(c.type, random_normal(random, c.stride()));
  const Elements v(c.type, random_normal(random, c.stride()));
  c.num_blocks = 1;
  const Pools expected = run_write(cpu_backend(), c, {11}, k, v);
  c.num_blocks = static_cast<std::uint32_t>(kBeyond31Bits / c.side_bytes(c.k_format) + 2);
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  BigBuffer k_pool(gpu, c.num_blocks * c.side_bytes(c.k_format));
  BigBuffer v_pool(gpu, c.num_blocks * c.side_bytes(c.v_format));

  const std::int64_t slot = std::int64_t{c.num_blocks - 1} * c.block_size + 11;
  run.run(kKvWrite, write_args(run, c, {slot}, k, v, k_pool.address(), v_pool.address()));

  const std::uint64_t last = (c.num_blocks - 1) * c.side_bytes(c.k_format);
  EXPECT_EQ(run.get<std::byte>(k_pool.address() + last, expected.first.size()), expected.first);
  EXPECT_EQ(run.get<std::byte>(v_pool.address() + last, expected.second.size()), expected.second);
}

TEST(CudaKvWrite, ReportsASlotBeyondThePool) {
  const WriteCase c;
  OwnBackend own;
  const Elements rows(c.type, std::size_t{2} * c.stride());
  const std::uint64_t k_pool = own.run.room(c.num_blocks * c.side_bytes(c.k_format));
  const std::uint64_t v_pool = own.run.room(c.num_blocks * c.side_bytes(c.v_format));
  own.expect_fault(kKvWrite, write_args(own.run, c, {3, 80}, rows, rows, k_pool, v_pool),
                   "slot 80 in row 1 is beyond the pool");
}

TEST(CudaKvWrite, RefusesAFormatWithoutKernels) {
  WriteCase c;
  DeviceRun run(cuda_backend());
  const Elements rows(c.type, c.stride());
  c.v_format = KvFormat::kTurbo3;
  const std::uint64_t pool = run.room(1);
  const KvWriteArgs args = write_args(run, c, {0}, rows, rows, pool, pool);
  EXPECT_THROW(run.run(kKvWrite, args), Unsupported);
}

}  // namespace
}  // namespace metrale::kernels
