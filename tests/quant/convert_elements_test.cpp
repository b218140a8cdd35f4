// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/quant/convert_elements.h>
#include <metrale/quant/float_convert.h>

namespace metrale::quant {
namespace {

constexpr std::array kTypes{ElementType::kF32, ElementType::kBf16, ElementType::kF16};

std::vector<std::byte> encoded(const std::vector<float>& values, ElementType type) {
  std::vector<std::byte> bytes(values.size() * element_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half =
        type == ElementType::kBf16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
    const void* from = type == ElementType::kF32 ? static_cast<const void*>(&values[i]) : &half;
    std::memcpy(&bytes[i * element_bytes(type)], from, element_bytes(type));
  }
  return bytes;
}

TEST(ConvertElements, EveryPairIsThatOfTheScalarFunctions) {
  // Exact in every type, so that the way there does not matter.
  const std::vector<float> values{0.0F, -0.0F, 1.0F, -2.5F, 0.125F, 448.0F};
  for (const ElementType from : kTypes) {
    for (const ElementType to : kTypes) {
      std::vector<std::byte> out(values.size() * element_bytes(to));
      EXPECT_EQ(convert_elements(encoded(values, from), from, out, to), 0U);
      EXPECT_EQ(out, encoded(values, to)) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(ConvertElements, FiniteValuesThatBecomeInfiniteAreCounted) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{65519.0F, 65520.0F, -70000.0F, 3.4e38F, inf, -inf, nan};
  const auto count = [&](ElementType from, ElementType to) {
    std::vector<std::byte> out(values.size() * element_bytes(to));
    return convert_elements(encoded(values, from), from, out, to);
  };
  EXPECT_EQ(count(ElementType::kF32, ElementType::kF16), 3U);
  EXPECT_EQ(count(ElementType::kF32, ElementType::kBf16), 1U);
  EXPECT_EQ(count(ElementType::kF32, ElementType::kF32), 0U);
  // As bf16 the first is 65536 and the fourth infinite already.
  EXPECT_EQ(count(ElementType::kBf16, ElementType::kF16), 3U);
  EXPECT_EQ(count(ElementType::kF16, ElementType::kF32), 0U);
}

TEST(ConvertElements, NoAlignmentIsNeeded) {
  const std::vector<float> values{1.5F, -3.0F};
  std::vector<std::byte> in(9);
  std::memcpy(&in[1], values.data(), 8);
  std::vector<std::byte> out(5);
  convert_elements(std::span(in).subspan(1), ElementType::kF32, std::span(out).subspan(1),
                   ElementType::kBf16);
  EXPECT_EQ(std::vector<std::byte>(out.begin() + 1, out.end()), encoded(values, ElementType::kBf16));
}

}  // namespace
}  // namespace metrale::quant
