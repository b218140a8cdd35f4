// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>
#include <metrale/kv/paged_cache.h>
#include <metrale/quant/float_convert.h>

namespace metrale::kv {
namespace {

using quant::KvFormat;
using testing::HasSubstr;

KvCacheConfig small() {
  return {.block_size = 16,
          .num_layers = 2,
          .dims = {.num_kv_heads = 2, .head_dim = 8},
          .dtype = {KvFormat::kBf16, KvFormat::kFp32},
          .layer_dims = {},
          .layer_dtypes = {},
          .cache_blocks_per_seq = {}};
}

struct PagedKvCacheTest : testing::Test {
  std::unique_ptr<gpu::MockBackend> gpu = gpu::make_mock_backend();
};

TEST_F(PagedKvCacheTest, PoolsHoldEveryBlockOfEveryLayer) {
  const PagedKvCache cache(small(), 5, *gpu);
  EXPECT_EQ(gpu->live_bytes(), 5 * small().block_bytes_kv_all_layers());
  EXPECT_EQ(gpu->live_alloc_count(), 4U);
  EXPECT_EQ(cache.num_free_blocks(), 5U);
}

TEST_F(PagedKvCacheTest, BlockAddressesAreStridesApart) {
  const PagedKvCache cache(small(), 5, *gpu);
  const LayerId layer(1);
  EXPECT_EQ(cache.k_cache_ptr(layer, BlockId(3)), cache.k_pool_ptr(layer).offset(3 * 16 * 2 * 8 * 2));
  EXPECT_EQ(cache.v_cache_ptr(layer, BlockId(3)), cache.v_pool_ptr(layer).offset(3 * 16 * 2 * 8 * 4));
  EXPECT_EQ(cache.block_stride_bytes_for_layer(layer), cache.k_block_stride_bytes_for_layer(layer));
  EXPECT_THROW((void)cache.k_cache_ptr(LayerId(2), BlockId(0)), InvalidArgument);
  EXPECT_THROW((void)cache.k_cache_ptr(layer, BlockId(5)), InvalidArgument);
}

TEST_F(PagedKvCacheTest, WrittenBlockReadsBackAndItsNeighboursStay) {
  PagedKvCache cache(small(), 3, *gpu);
  for (std::uint32_t b = 0; b < 3; ++b) cache.zero_block(BlockId(b), *gpu, gpu->default_stream());
  gpu->synchronize(gpu->default_stream());
  const std::vector<std::byte> k(512, std::byte{0x11});
  const std::vector<std::byte> v(1024, std::byte{0x22});

  cache.write_block(LayerId(1), BlockId(1), k, v, *gpu);

  EXPECT_EQ(cache.read_block(LayerId(1), BlockId(1), *gpu).k, k);
  EXPECT_EQ(cache.read_block(LayerId(1), BlockId(1), *gpu).v, v);
  for (const std::uint32_t other : {0U, 2U}) {
    const auto bytes = cache.read_block(LayerId(1), BlockId(other), *gpu);
    EXPECT_TRUE(std::ranges::all_of(bytes.k, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_TRUE(std::ranges::all_of(bytes.v, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_F(PagedKvCacheTest, WriteLongerThanASideIsRefused) {
  PagedKvCache cache(small(), 1, *gpu);
  const std::vector<std::byte> long_k(513);
  EXPECT_THROW(cache.write_block(LayerId(0), BlockId(0), long_k, {}, *gpu), InvalidArgument);
}

TEST_F(PagedKvCacheTest, PoisonedBlockIsNanInEveryLayer) {
  PagedKvCache cache(small(), 2, *gpu);
  cache.poison_block(BlockId(1), *gpu, gpu->default_stream());
  gpu->synchronize(gpu->default_stream());
  for (std::uint16_t layer = 0; layer < 2; ++layer) {
    const auto bytes = cache.read_block(LayerId(layer), BlockId(1), *gpu);
    EXPECT_TRUE(std::ranges::all_of(bytes.k, [](std::byte b) { return b == std::byte{0xFF}; }));
    EXPECT_TRUE(std::ranges::all_of(bytes.v, [](std::byte b) { return b == std::byte{0xFF}; }));
  }
}

TEST_F(PagedKvCacheTest, AskingForTooManyBlocksSaysWhatWouldFit) {
  const std::uint64_t each = small().block_bytes_kv_all_layers();
  const auto tight = gpu::make_mock_backend({.free_memory_bytes = 7 * each + 1});
  try {
    const PagedKvCache cache(small(), 8, *tight);
    FAIL() << "eight blocks fitted into seven";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("8 blocks of 16 tokens asked, 7 would fit"));
  }
  EXPECT_EQ(tight->live_bytes(), 0U);
}

TEST_F(PagedKvCacheTest, FailedConstructionLeaksNothingAtAnyStep) {
  const auto fault = gpu::make_fault_backend(*gpu);
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    fault->fail_nth(gpu::FaultPoint::kAlloc, nth);
    EXPECT_THROW(PagedKvCache(small(), 2, *fault), OutOfMemory);
    EXPECT_EQ(gpu->live_alloc_count(), 0U) << "failing allocation " << nth;
  }
  const PagedKvCache cache(small(), 2, *fault);
  EXPECT_EQ(gpu->live_alloc_count(), 4U);
}

TEST_F(PagedKvCacheTest, ReleasedCacheHandsOutNothingAndReleasesOnce) {
  PagedKvCache cache(small(), 2, *gpu);
  cache.release(*gpu);
  EXPECT_EQ(gpu->live_bytes(), 0U);
  EXPECT_FALSE(cache.try_alloc_block().has_value());
  EXPECT_THROW((void)cache.alloc_block(), OutOfMemory);
  cache.release(*gpu);
}

TEST_F(PagedKvCacheTest, ReleaseFreesEveryPoolAfterAFailureAndReportsIt) {
  const auto fault = gpu::make_fault_backend(*gpu);
  PagedKvCache cache(small(), 2, *fault);
  fault->fail_nth(gpu::FaultPoint::kFree, 2);
  EXPECT_THROW(cache.release(*fault), DeviceError);
  EXPECT_EQ(gpu->live_bytes(), 0U);
}

TEST_F(PagedKvCacheTest, FreeBlocksReturnsTheRestAfterABadEntry) {
  PagedKvCache cache(small(), 3, *gpu);
  const BlockId a = cache.alloc_block();
  const BlockId b = cache.alloc_block();
  const std::vector<BlockId> table{a, BlockId(2), b};
  EXPECT_THROW(cache.free_blocks(table), InvalidArgument);
  EXPECT_EQ(cache.num_free_blocks(), 3U);
}

TEST_F(PagedKvCacheTest, EvictedBlockStaysWhileASequenceUsesIt) {
  PagedKvCache cache(small(), 1, *gpu);
  const BlockId block = cache.alloc_block();
  cache.inc_ref(block);
  cache.return_evicted_block(block);
  EXPECT_EQ(cache.ref_count(block), 1U);
  EXPECT_EQ(cache.num_free_blocks(), 0U);
  cache.free_block(block);
  EXPECT_EQ(cache.num_free_blocks(), 1U);
}

TEST_F(PagedKvCacheTest, ChecksumsSplitPrefixFromSuffix) {
  PagedKvCache cache(small(), 2, *gpu);
  std::vector<std::uint16_t> twos(256, quant::float_to_bf16(2.0F));
  const std::vector<float> minus(256, -1.0F);
  for (std::uint16_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t block = 0; block < 2; ++block) {
      cache.write_block(LayerId(layer), BlockId(block), std::as_bytes(std::span(twos)),
                        std::as_bytes(std::span(minus)), *gpu);
    }
  }
  const std::vector<BlockId> table{BlockId(0), BlockId(1)};

  const auto lines = cache.debug_kv_checksum_per_layer(table, 1, *gpu, gpu->default_stream(), "test");

  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].prefix_k.sum, 512.0);
  EXPECT_EQ(lines[1].suffix_k.sum_of_squares, 1024.0);
  EXPECT_EQ(lines[1].suffix_v.sum, -256.0);
  EXPECT_EQ(lines[1].suffix_v.sum_of_abs, 256.0);
  const auto blocks = cache.debug_kv_per_block(LayerId(1), table, *gpu, gpu->default_stream(), "test");
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[1].v.sum_of_squares, 256.0);
}

TEST_F(PagedKvCacheTest, NamedFormatSizesFollowTheDescriptor) {
  const PagedKvCache cache(small(), 1, *gpu);
  EXPECT_EQ(cache.turbo4_data_bytes(), 16U * 2 * 4);
  EXPECT_EQ(cache.nvfp4_data_bytes(), cache.turbo4_data_bytes());
  EXPECT_EQ(cache.turbo3_data_bytes(), 16U * 2 * 3);
  EXPECT_EQ(cache.turbo2_data_bytes(), 16U * 2 * 2);
  EXPECT_EQ(cache.turbo8_data_bytes(), 16U * 2 * 8);
  EXPECT_EQ(cache.turbo4_scale_bytes(), 16U * 2 * 1);
}

}  // namespace
}  // namespace metrale::kv
