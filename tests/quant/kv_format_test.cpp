// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::quant {
namespace {

struct Geometry {
  KvFormat format;
  std::uint64_t head_dim;
  std::uint64_t row_bytes;
  std::uint64_t header_bytes;
};

// Written out by hand from docs/formats/kv_block.md.
TEST(KvFormat, RowsAndHeadersHaveTheBytesOfTheFormatPage) {
  for (const Geometry& g :
       {Geometry{KvFormat::kBf16, 64, 128, 0}, Geometry{KvFormat::kBf16, 1, 2, 0},
        Geometry{KvFormat::kFp32, 80, 320, 0}, Geometry{KvFormat::kFp16, 128, 256, 0},
        Geometry{KvFormat::kFp8, 96, 96, 0}, Geometry{KvFormat::kNvfp4, 128, 64, 8},
        Geometry{KvFormat::kTurbo4, 128, 64, 8}, Geometry{KvFormat::kTurbo3, 128, 48, 8},
        Geometry{KvFormat::kTurbo3, 80, 30, 5}, Geometry{KvFormat::kTurbo2, 256, 64, 16},
        Geometry{KvFormat::kTurbo8, 128, 128, 2}, Geometry{KvFormat::kTurbo8, 80, 80, 2},
        Geometry{KvFormat::kTurbo4, 80, 40, 5}, Geometry{KvFormat::kTurbo8i, 192, 192, 4},
        Geometry{KvFormat::kTurbo8, 64, 64, 2}, Geometry{KvFormat::kNvfp4Searched, 64, 32, 4}}) {
    EXPECT_EQ(kv_row_bytes(g.format, g.head_dim), g.row_bytes) << to_string(g.format) << " " << g.head_dim;
    EXPECT_EQ(kv_header_bytes(g.format, g.head_dim), g.header_bytes)
        << to_string(g.format) << " " << g.head_dim;
  }
}

TEST(KvFormat, SideIsTheStripesOfItsHeads) {
  for (const KvFormatInfo& info : kKvFormats) {
    for (const std::uint64_t head_dim : {8U, 64U, 80U, 128U, 512U}) {
      for (const std::uint64_t block_size : {16U, 32U, 64U, 128U}) {
        const std::uint64_t stripe = kv_head_stripe_bytes(info.format, block_size, head_dim);
        EXPECT_EQ(stripe, block_size *
                              (kv_row_bytes(info.format, head_dim) + kv_header_bytes(info.format, head_dim)));
        EXPECT_EQ(kv_side_bytes(info.format, block_size, 5, head_dim), 5 * stripe);
      }
    }
  }
}

TEST(KvFormat, CodesOfAHeadAreContiguousAndStartItsStripe) {
  for (const KvFormatInfo& info : kKvFormats) {
    const std::uint64_t stripe = kv_head_stripe_bytes(info.format, 16, 128);
    for (std::uint64_t head = 0; head < 3; ++head) {
      EXPECT_EQ(kv_codes_offset(info.format, 16, 128, head, 0), head * stripe);
      for (std::uint64_t token = 1; token < 16; ++token) {
        EXPECT_EQ(kv_codes_offset(info.format, 16, 128, head, token),
                  kv_codes_offset(info.format, 16, 128, head, token - 1) + kv_row_bytes(info.format, 128));
      }
    }
  }
}

TEST(KvFormat, EveryNameIsParsedBack) {
  for (const KvFormatInfo& info : kKvFormats) {
    EXPECT_EQ(parse_kv_format(to_string(info.format)), info.format);
  }
  EXPECT_EQ(parse_kv_format("int4"), std::nullopt);
  EXPECT_EQ(parse_kv_format(""), std::nullopt);
}

TEST(KvFormat, SizesOfALargePoolDoNotOverflow) {
  EXPECT_EQ(kv_side_bytes(KvFormat::kFp32, 128, 1024, 512) * 100'000, 26'843'545'600'000ULL);
}

TEST(ElementType, BytesAndNamesMatch) {
  EXPECT_EQ(element_bytes(ElementType::kF32), 4U);
  EXPECT_EQ(element_bytes(ElementType::kBf16), 2U);
  EXPECT_EQ(element_bytes(ElementType::kF16), 2U);
  EXPECT_EQ(to_string(ElementType::kF32), "fp32");
  EXPECT_EQ(to_string(ElementType::kBf16), "bf16");
  EXPECT_EQ(to_string(ElementType::kF16), "fp16");
}

}  // namespace
}  // namespace metrale::quant
