// SPDX-License-Identifier: Apache-2.0
// What every body of mla_attention refuses before it looks at the step.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/mla_attention.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

// One of the two vectors that a token has.
inline void check_mla_side(std::string_view side, quant::KvFormat format, std::uint32_t dim,
                           std::uint32_t least, std::uint32_t most) {
  if (dim < least || dim > most || dim % kMlaDimStep != 0) {
    throw Unsupported("mla_attention", fmt::format("{}_dim {}: multiples of {} from {} to {} are", side, dim,
                                                   kMlaDimStep, least, most));
  }
  const auto value = static_cast<std::uint32_t>(format);
  if (value >= quant::kKvFormats.size()) {
    throw Unsupported("mla_attention", fmt::format("{}_format {}", side, value));
  }
  if (!quant::kv_format_takes(format, dim)) {
    throw Unsupported("mla_attention",
                      fmt::format("{0}_format {1} with {0}_dim {2}", side, quant::to_string(format), dim));
  }
}

// Throws Unsupported for a type, format or dimension without kernels, InvalidArgument for no heads and for
// blocks of no tokens.
inline void check_mla_attention(const MlaAttentionArgs& a) {
  check_type("mla_attention", a.type);
  check_mla_side("latent", a.latent_format, a.latent_dim, kMlaMinLatentDim, kMlaMaxLatentDim);
  check_mla_side("rope", a.rope_format, a.rope_dim, kMlaMinRopeDim, kMlaMaxRopeDim);
  if (a.num_heads == 0) throw InvalidArgument("mla_attention: num_heads is 0");
  check_block_size("mla_attention", a.block_size, quant::KvFormat::kBf16);
}

}  // namespace metrale::kernels
