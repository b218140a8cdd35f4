// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <metrale/weights/dtype.h>

namespace metrale::weights {
namespace {

// Written out again, so that a slip in the table shows.
const std::map<std::string, unsigned> kBitsOf{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},   {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"I16", 16}, {"F8_E5M2FNUZ", 8},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32}, {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

TEST(DType, EveryTypeOfTheFormatHasItsSpellingAndItsBits) {
  for (const auto& [name, wanted] : kBitsOf) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(bits(*dtype), wanted) << name;
  }
  EXPECT_EQ(kBitsOf.size(), detail::kDTypes.size());
}

TEST(DType, EnumeratorsNameTheSpellingsOfTheFile) {
  EXPECT_EQ(to_string(DType::kBool), "BOOL");
  EXPECT_EQ(to_string(DType::kF4), "F4");
  EXPECT_EQ(to_string(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(to_string(DType::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(to_string(DType::kF16), "F16");
  EXPECT_EQ(to_string(DType::kBf16), "BF16");
  EXPECT_EQ(to_string(DType::kF32), "F32");
  EXPECT_EQ(to_string(DType::kU64), "U64");
}

TEST(DType, LaterTypesAreNeverSmaller) {
  // The order of the types is what keeps a writer's tensors aligned; F4 and the F6 types stand below the
  // bytes.
  for (std::size_t i = 2; i < detail::kDTypes.size(); ++i) {
    EXPECT_GE(detail::kDTypes[i].bits, detail::kDTypes[i - 1].bits) << detail::kDTypes[i].name;
  }
}

TEST(DType, OtherSpellingsAreNotKnown) {
  for (const char* name : {"", "bf16", "BF16 ", "F128", "float32", "E8M0", "F8"}) {
    EXPECT_FALSE(parse_dtype(name)) << name;
  }
}

}  // namespace
}  // namespace metrale::weights
