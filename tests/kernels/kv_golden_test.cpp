// SPDX-License-Identifier: Apache-2.0
// kv_write stores the bytes that scripts/golden/kv_golden.py has from the pages of docs/formats.
#include "support/kv_golden.h"

#include <gtest/gtest.h>

#include <metrale/kernels/kv_write.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;
using quant::KvSide;

const test::KvGolden& golden() {
  static const test::KvGolden file;
  return file;
}

using Pool = std::vector<std::byte>;
struct Pools {
  Pool k;
  Pool v;
};

// Both sides of one block. Every KV head stores the same vectors, each with what one `how` adds.
class GoldenBlock {
 public:
  explicit GoldenBlock(std::uint32_t head_dim, bool with_params)
      : head_dim_(head_dim),
        heads_(with_params ? static_cast<std::uint32_t>(golden().hows()) : 1),
        scales_(golden().scales()),
        diagonals_(golden().diagonals(head_dim)),
        means_(golden().means(head_dim)),
        rows_(static_cast<std::uint32_t>(golden().kinds().size())) {
    for (std::size_t kind = 0; kind < rows_; ++kind) {
      const std::vector<float> x = golden().input(kind, head_dim);
      for (std::uint32_t head = 0; head < heads_; ++head) vectors_.insert(vectors_.end(), x.begin(), x.end());
      slots_.push_back(golden().tokens()[kind]);
    }
    if (with_params) params_ = {address(scales_), address(diagonals_), address(means_)};
  }
  GoldenBlock(const GoldenBlock&) = delete;
  GoldenBlock& operator=(const GoldenBlock&) = delete;
  ~GoldenBlock() = default;

  [[nodiscard]] std::uint32_t heads() const { return heads_; }

  [[nodiscard]] Pools write(KvFormat format) const {
    const Pool fresh(quant::kv_side_bytes(format, golden().block_size(), heads_, head_dim_), std::byte{0xFF});
    Pools pools{fresh, fresh};
    run_kernel(test_pool(), kKvWrite,
               {.rows = address(&rows_),
                .k = address(vectors_),
                .v = address(vectors_),
                .slots = address(slots_),
                .k_pool = address(pools.k),
                .v_pool = address(pools.v),
                .max_rows = rows_,
                .stride = heads_ * head_dim_,
                .num_kv_heads = heads_,
                .head_dim = head_dim_,
                .block_size = golden().block_size(),
                .num_blocks = 1,
                .type = quant::ElementType::kF32,
                .k_format = format,
                .v_format = format,
                .reserved = 0,
                .k_params = params_,
                .v_params = params_});
    return pools;
  }

 private:
  std::uint32_t head_dim_;
  std::uint32_t heads_;
  std::vector<float> scales_;
  std::vector<float> diagonals_;
  std::vector<float> means_;
  std::uint32_t rows_;
  std::vector<float> vectors_;
  std::vector<std::int64_t> slots_;
  KvSideParams params_;
};

class KvWriteGolden : public testing::TestWithParam<KvFormat> {
 protected:
  static void expect_side(KvSide side, const Pool& pool, std::uint32_t heads, std::size_t head_dim_index) {
    const std::uint32_t head_dim = golden().head_dims()[head_dim_index];
    const auto hashes = golden().words(GetParam(), side, "stripes");
    const std::size_t stripe = quant::kv_head_stripe_bytes(GetParam(), golden().block_size(), head_dim);
    ASSERT_EQ(pool.size(), heads * stripe);
    for (std::uint32_t how = 0; how < heads; ++how) {
      EXPECT_EQ(hash64(std::span(pool).subspan(how * stripe, stripe)),
                golden().stripe_hash(hashes, head_dim_index, how))
          << "head_dim " << head_dim << " how " << how << " side " << static_cast<int>(side);
    }
  }

  static void expect_bytes(bool with_params) {
    for (std::size_t d = 0; d < golden().head_dims().size(); ++d) {
      const GoldenBlock block(golden().head_dims()[d], with_params);
      const Pools pools = block.write(GetParam());
      expect_side(KvSide::kKey, pools.k, block.heads(), d);
      expect_side(KvSide::kValue, pools.v, block.heads(), d);
    }
  }
};

TEST_P(KvWriteGolden, StoresTheBytesOfThePages) {
  expect_bytes(true);
}

TEST_P(KvWriteGolden, StoresThemWithNothingAddedToTheFormat) {
  expect_bytes(false);
}

TEST_P(KvWriteGolden, StoresThemWithAvx2) {
  const ForceAvx2 avx2;
  expect_bytes(true);
}

std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) formats.push_back(info.format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, KvWriteGolden, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(quant::to_string(test.param)); });

}  // namespace
}  // namespace metrale::kernels
