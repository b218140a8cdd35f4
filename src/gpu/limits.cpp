// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/gpu/limits.h>

namespace metrale::gpu {
namespace {

constexpr std::array<std::uint32_t, 4> kBlockSizes{16, 32, 64, 128};

}  // namespace

void EngineLimits::validate() const {
  expects(max_seq_len != 0, "max_seq_len must be at least 1");
  expects(max_batch_size != 0, "max_batch_size must be at least 1");
  if (max_batch_tokens < max_batch_size) {
    throw InvalidArgument(fmt::format(
        "max_batch_tokens ({}) must be at least max_batch_size ({}): a decode step has one token a sequence",
        max_batch_tokens, max_batch_size));
  }
  if (std::find(kBlockSizes.begin(), kBlockSizes.end(), block_size) == kBlockSizes.end()) {
    throw InvalidArgument(fmt::format("block_size must be 16, 32, 64 or 128, not {}", block_size));
  }
}

std::uint32_t EngineLimits::blocks_per_seq() const {
  return ceil_div(max_seq_len, block_size);
}

}  // namespace metrale::gpu
