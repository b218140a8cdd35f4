// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/quant/kv_dtype.h>

namespace metrale::quant {
namespace {

KvFormat parse_side(std::string_view side, std::string_view whole) {
  if (const auto format = parse_kv_format(side)) return *format;
  throw InvalidArgument(fmt::format("unknown KV dtype '{}': {}", whole, kv_dtype_names()));
}

}  // namespace

std::string kv_dtype_names() {
  std::string names = "one of ";
  for (const KvFormatInfo& info : kKvFormats) names += fmt::format("{}, ", info.name);
  for (const KvPairName& pair : kKvPairNames) names += fmt::format("{} ({}), ", pair.name, pair.alias);
  return names + "or K:V for two formats";
}

std::string to_string(KvDtype dtype) {
  if (!dtype.is_asymmetric()) return std::string(to_string(dtype.k));
  for (const KvPairName& pair : kKvPairNames) {
    if (pair.dtype == dtype) return std::string(pair.name);
  }
  return fmt::format("{}:{}", to_string(dtype.k), to_string(dtype.v));
}

KvDtype parse_kv_dtype(std::string_view name) {
  for (const KvPairName& pair : kKvPairNames) {
    if (name == pair.name || name == pair.alias) return pair.dtype;
  }
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos) {
    const KvFormat format = parse_side(name, name);
    return {format, format};
  }
  return {parse_side(name.substr(0, colon), name), parse_side(name.substr(colon + 1), name)};
}

}  // namespace metrale::quant
