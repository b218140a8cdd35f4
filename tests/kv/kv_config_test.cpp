// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kv/kv_config.h>
#include <metrale/kv/paged_cache.h>

namespace metrale::kv {
namespace {

using quant::KvDtype;
using quant::KvFormat;

KvCacheConfig llama_8b() {
  return {.block_size = 16,
          .num_layers = 32,
          .dims = {.num_kv_heads = 8, .head_dim = 128},
          .dtype = {},
          .layer_dims = {},
          .layer_dtypes = {},
          .cache_blocks_per_seq = {}};
}

TEST(KvCacheConfig, Bf16BlockOfTheEightBillionShape) {
  const KvCacheConfig config = llama_8b();
  EXPECT_EQ(config.block_bytes(), 32'768U);
  EXPECT_EQ(config.block_bytes_kv(), 65'536U);
  EXPECT_EQ(config.block_bytes_kv_all_layers(), 32U * 65'536U);
  EXPECT_EQ(config.bytes_per_token(), 131'072U);
  EXPECT_EQ(config.cache_stride_elements(), 16'384U);
}

TEST(KvCacheConfig, DataAndScaleBytesOfEveryFormat) {
  const KvCacheConfig config = llama_8b();
  EXPECT_EQ(config.data_bytes(KvFormat::kBf16), 32'768U);
  EXPECT_EQ(config.data_bytes(KvFormat::kFp8), 16'384U);
  EXPECT_EQ(config.data_bytes(KvFormat::kNvfp4), 8192U);
  EXPECT_EQ(config.data_bytes(KvFormat::kTurbo3), 6144U);
  EXPECT_EQ(config.data_bytes(KvFormat::kTurbo2), 4096U);
  EXPECT_EQ(config.data_bytes(KvFormat::kTurbo8), 16'384U);
  EXPECT_EQ(config.scale_bytes(KvFormat::kTurbo4), 1024U);
  EXPECT_EQ(config.scale_bytes(KvFormat::kBf16), 0U);
}

TEST(KvCacheConfig, LayersTakeTheirOwnDimsAndDtype) {
  KvCacheConfig config = llama_8b();
  config.layer_dims = {{.num_kv_heads = 4, .head_dim = 64}};
  config.layer_dtypes = {KvDtype{KvFormat::kFp32, KvFormat::kBf16}};
  EXPECT_EQ(config.k_block_bytes_for_layer(LayerId(0)), 16U * 4 * 64 * 4);
  EXPECT_EQ(config.v_block_bytes_for_layer(LayerId(0)), 16U * 4 * 64 * 2);
  EXPECT_EQ(config.k_block_bytes_for_layer(LayerId(1)), 32'768U);
  EXPECT_EQ(config.block_bytes_kv_all_layers(), 31U * 65'536U + 16U * 4 * 64 * 6);
}

TEST(KvCacheConfig, NumberOfBlocksIsWhatFits) {
  const KvCacheConfig config = llama_8b();
  const std::uint64_t each = config.block_bytes_kv_all_layers();
  EXPECT_EQ(PagedKvCache::compute_num_blocks(config, 10 * each + each - 1), 10U);
  EXPECT_EQ(PagedKvCache::compute_num_blocks(config, each - 1), 0U);
  KvCacheConfig empty = config;
  empty.num_layers = 0;
  EXPECT_THROW((void)PagedKvCache::compute_num_blocks(empty, each), InvalidArgument);
}

TEST(KvCacheConfig, BadFieldsAreRefused) {
  KvCacheConfig config = llama_8b();
  config.block_size = 24;
  EXPECT_THROW(config.validate(), InvalidArgument);
  config = llama_8b();
  config.num_layers = 0;
  EXPECT_THROW(config.validate(), InvalidArgument);
  config = llama_8b();
  config.dims.head_dim = 513;
  EXPECT_THROW(config.validate(), InvalidArgument);
  config = llama_8b();
  config.layer_dtypes.resize(33);
  EXPECT_THROW(config.validate(), InvalidArgument);
}

TEST(KvDtype, NamesRoundTrip) {
  for (const quant::KvFormatInfo& k : quant::kKvFormats) {
    for (const quant::KvFormatInfo& v : quant::kKvFormats) {
      const KvDtype dtype{k.format, v.format};
      EXPECT_EQ(quant::parse_kv_dtype(quant::to_string(dtype)), dtype);
    }
  }
}

TEST(KvDtype, UnknownNameListsTheAcceptedOnes) {
  try {
    (void)quant::parse_kv_dtype("turbo5");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("bf16, fp32"), std::string::npos);
  }
}

}  // namespace
}  // namespace metrale::kv
