// SPDX-License-Identifier: Apache-2.0
// Variant: a way to keep keys and values whose effect on attention is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <metrale/quant/kv_dtype.h>

namespace metrale::quant_report {

enum class Group : std::uint32_t {
  kBoth,       // keys and values in one format
  kPair,       // one of the pairs that have a name
  kEqualised,  // both in one rotated format, keys equalised before
  kKeys,       // keys only; values stay FP32
  kValues,     // values only
};

struct Variant {
  std::string name;  // "turbo4", "turbo4k_turbo3v", "turbo4 + equaliser", "turbo4 keys", "turbo4 values"
  Group group = Group::kBoth;
  quant::KvDtype dtype;
};

// The formats that take the head_dim, in their order, and why the others do not.
[[nodiscard]] std::vector<quant::KvFormat> formats_for(std::uint32_t head_dim);
[[nodiscard]] std::vector<std::string> why_not_measured(std::uint32_t head_dim);
// Of these formats.
[[nodiscard]] std::vector<Variant> variants_for(std::uint32_t head_dim);

// Of one side, codes and headers.
[[nodiscard]] double bits_per_element(quant::KvFormat format, std::uint32_t head_dim);
// Of both sides together, or of the one that the variant is about.
[[nodiscard]] double bits_per_element(const Variant& variant, std::uint32_t head_dim);

[[nodiscard]] const char* to_string(Group group);

}  // namespace metrale::quant_report
