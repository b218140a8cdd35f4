// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <metrale/sampling/token_order.h>

namespace metrale::sampling {
namespace {

constexpr std::int32_t kNone = std::int32_t{-1} - 0x7FFFFFFF;
constexpr std::size_t kBlock = 1024;

// The logit half of a token's key, made signed because vector units take the maximum of signed integers;
// kNone where the logit is not finite. Masks, not choices: compilers vectorise only the former.
std::int32_t ascending(float logit) {
  const auto bits = std::bit_cast<std::int32_t>(logit + 0.0f);
  const std::int32_t invalid = -static_cast<std::int32_t>((bits & 0x7F800000) == 0x7F800000);
  return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) & ~invalid) | (kNone & invalid);
}

std::int32_t largest(std::span<const float> logits) {
  std::int32_t best = kNone;
  for (const float logit : logits) {
    const std::int32_t value = ascending(logit);
    best = value > best ? value : best;
  }
  return best;
}

}  // namespace

std::optional<std::uint32_t> greedy_token(std::span<const float> logits) {
  std::int32_t best = kNone;
  std::size_t best_block = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::int32_t value = largest(logits.subspan(begin, std::min(kBlock, logits.size() - begin)));
    if (value > best) {
      best = value;
      best_block = begin;
    }
  }
  if (best == kNone) return std::nullopt;
  std::size_t id = best_block;
  while (ascending(logits[id]) != best) ++id;
  return static_cast<std::uint32_t>(id);
}

}  // namespace metrale::sampling
