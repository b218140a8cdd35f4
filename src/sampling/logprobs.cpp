// SPDX-License-Identifier: Apache-2.0
#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <metrale/sampling/token_order.h>

#include "sampling/row_passes.h"

namespace metrale::sampling {

TokenLogprob row_logprobs(std::span<const float> row, float temperature, std::uint32_t token,
                          std::span<std::uint64_t> scratch, std::span<TokenLogprob>& top) {
  const float best = row[greedy_token(row).value_or(token)];
  const std::uint64_t total = weigh(row, best, temperature, scratch);
  std::uint32_t greater = 0;
  std::size_t finite = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!is_finite(row[i])) continue;
    if (row[i] > row[token]) ++greater;
    scratch[finite++] = token_key(row[i], static_cast<std::uint32_t>(i));
  }
  const double log_total = std::log(static_cast<double>(total) * 0x1p-40);
  const auto logprob_of = [&](float logit) {
    const double logprob = (static_cast<double>(logit) - best) / temperature - log_total;
    return static_cast<float>(std::max(logprob, static_cast<double>(kLogprobFloor)));
  };

  const std::span<std::uint64_t> keys = scratch.first(finite);
  top = top.first(std::min(top.size(), keys.size()));
  std::partial_sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(top.size()), keys.end(),
                    std::greater<>());
  for (std::size_t i = 0; i < top.size(); ++i) {
    const std::uint32_t id = token_of_key(keys[i]);
    const bool ties = i != 0 && row[id] == row[top[i - 1].token];
    const std::uint32_t rank = ties ? top[i - 1].rank : static_cast<std::uint32_t>(i) + 1;
    top[i] = {id, logprob_of(row[id]), rank};
  }
  return {token, logprob_of(row[token]), greater + 1};
}

}  // namespace metrale::sampling
