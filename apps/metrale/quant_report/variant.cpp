// SPDX-License-Identifier: Apache-2.0
#include "variant.h"

#include <algorithm>

#include <fmt/format.h>

namespace metrale::quant_report {

using quant::KvFormat;

namespace {

constexpr std::uint32_t kBlockSize = 16;  // bytes an element are the same in every block

}  // namespace

std::vector<KvFormat> formats_for(std::uint32_t head_dim) {
  std::vector<KvFormat> formats;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    if (quant::kv_format_takes(info.format, head_dim)) formats.push_back(info.format);
  }
  return formats;
}

std::vector<std::string> why_not_measured(std::uint32_t head_dim) {
  std::vector<std::string> notes;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    if (!quant::kv_format_takes(info.format, head_dim))
      notes.push_back(fmt::format("{} has no vectors of head_dim {}", info.name, head_dim));
  }
  return notes;
}

std::vector<Variant> variants_for(std::uint32_t head_dim) {
  const std::vector<KvFormat> formats = formats_for(head_dim);
  const auto has = [&](KvFormat format) { return std::ranges::find(formats, format) != formats.end(); };
  std::vector<Variant> variants;
  for (const KvFormat format : formats)
    variants.push_back({std::string(to_string(format)), Group::kBoth, {format, format}});
  for (const quant::KvPairName& pair : quant::kKvPairNames) {
    if (has(pair.dtype.k) && has(pair.dtype.v))
      variants.push_back({std::string(pair.name), Group::kPair, pair.dtype});
  }
  for (const KvFormat format : formats) {
    if (!quant::kv_format_info(format).rotated) continue;
    variants.push_back(
        {fmt::format("{} + equaliser", to_string(format)), Group::kEqualised, {format, format}});
  }
  for (const KvFormat format : formats)
    variants.push_back({fmt::format("{} keys", to_string(format)), Group::kKeys, {format, KvFormat::kFp32}});
  for (const KvFormat format : formats)
    variants.push_back(
        {fmt::format("{} values", to_string(format)), Group::kValues, {KvFormat::kFp32, format}});
  return variants;
}

double bits_per_element(KvFormat format, std::uint32_t head_dim) {
  return 8.0 * static_cast<double>(quant::kv_side_bytes(format, kBlockSize, 1, head_dim)) /
         (1.0 * kBlockSize * head_dim);
}

double bits_per_element(const Variant& variant, std::uint32_t head_dim) {
  switch (variant.group) {
    case Group::kKeys:
      return bits_per_element(variant.dtype.k, head_dim);
    case Group::kValues:
      return bits_per_element(variant.dtype.v, head_dim);
    default:
      return (bits_per_element(variant.dtype.k, head_dim) + bits_per_element(variant.dtype.v, head_dim)) / 2;
  }
}

const char* to_string(Group group) {
  switch (group) {
    case Group::kBoth:
      return "both";
    case Group::kPair:
      return "pair";
    case Group::kEqualised:
      return "equalised";
    case Group::kKeys:
      return "keys";
    case Group::kValues:
      return "values";
  }
  return "";
}

}  // namespace metrale::quant_report
