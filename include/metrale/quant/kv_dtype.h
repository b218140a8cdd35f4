// SPDX-License-Identifier: Apache-2.0
// KvDtype: the formats of the two sides of a KV block, as users name them: "bf16", or "bf16:fp32" for K and V
// apart.
#pragma once

#include <string>
#include <string_view>

#include <metrale/quant/kv_format.h>

namespace metrale::quant {

struct KvDtype {
  KvFormat k = KvFormat::kBf16;
  KvFormat v = KvFormat::kBf16;

  [[nodiscard]] constexpr bool is_asymmetric() const { return k != v; }
  friend constexpr bool operator==(KvDtype, KvDtype) = default;
};

// to_string and parse_kv_dtype are each other's inverse.
[[nodiscard]] std::string to_string(KvDtype dtype);
// Throws InvalidArgument listing the accepted names.
[[nodiscard]] KvDtype parse_kv_dtype(std::string_view name);

}  // namespace metrale::quant
