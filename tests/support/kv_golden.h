// SPDX-License-Identifier: Apache-2.0
// The golden file of the KV formats; tests/golden/quant/README.md describes its arrays.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/hash.h>
#include <metrale/quant/kv_codec.h>

#include "support/golden.h"

namespace metrale::test {

// One NaN stands for all: which one comes out of arithmetic is the processor's affair.
[[nodiscard]] inline std::vector<std::uint32_t> value_bits(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float v : values) bits.push_back(std::isnan(v) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(v));
  return bits;
}

[[nodiscard]] inline std::uint32_t short_hash(std::span<const float> values) {
  const std::vector<std::uint32_t> bits = value_bits(values);
  return static_cast<std::uint32_t>(hash64(std::as_bytes(std::span(bits))));
}

class KvGolden {
 public:
  KvGolden()
      : file_("quant/kv_formats"),
        bases_(file_.array<float>("bases")),
        factors_(file_.array<float>("factors")),
        own_dims_(file_.array<std::uint32_t>("own.dims")),
        own_elements_(file_.array<std::uint32_t>("own.elements")),
        scales_(file_.array<float>("scales")),
        diagonals_(file_.array<float>("diagonals")),
        means_(file_.array<float>("means")) {}

  [[nodiscard]] std::vector<std::uint32_t> head_dims() const { return numbers("head_dims"); }
  // The token of the stripe that holds each kind of vector.
  [[nodiscard]] std::vector<std::uint32_t> tokens() const { return numbers("tokens"); }
  [[nodiscard]] std::vector<std::string> kinds() const {
    return file_.facts().at("kinds").get<std::vector<std::string>>();
  }
  [[nodiscard]] std::size_t hows() const { return scales_.values.size(); }
  [[nodiscard]] std::uint32_t block_size() const {
    return file_.facts().at("block_size").get<std::uint32_t>();
  }
  // The head_dim whose bytes are there, and not their hash alone; they are those of the last `how`.
  [[nodiscard]] std::uint32_t shown() const { return file_.facts().at("shown").get<std::uint32_t>(); }

  [[nodiscard]] std::vector<float> input(std::size_t kind, std::uint32_t head_dim) const {
    std::vector<float> x;
    for (const float v : bases_.at(numbers("base_of")[kind]).first(head_dim)) {
      x.push_back(v * factors_.values[kind]);
    }
    x[own_dims_.values[kind]] = std::bit_cast<float>(own_elements_.values[kind]);
    return x;
  }
  // Without a diagonal and a mean for the first `how`.
  [[nodiscard]] quant::KvHeadParams params(std::size_t how, std::uint32_t head_dim) const {
    if (how == 0) return {.scale = scales_.values[0], .diagonal = {}, .mean = {}};
    return {.scale = scales_.values[how],
            .diagonal = diagonals_.at(how).first(head_dim),
            .mean = means_.at(how).first(head_dim)};
  }
  // As a kernel takes them: of every `how`, the first one's ones and zeros too.
  [[nodiscard]] const std::vector<float>& scales() const { return scales_.values; }
  [[nodiscard]] std::vector<float> diagonals(std::uint32_t head_dim) const {
    return cut(diagonals_, head_dim);
  }
  [[nodiscard]] std::vector<float> means(std::uint32_t head_dim) const { return cut(means_, head_dim); }

  [[nodiscard]] GoldenArray<std::uint32_t> words(std::string_view name) const {
    return file_.array<std::uint32_t>(name);
  }
  [[nodiscard]] GoldenArray<std::uint32_t> words(quant::KvFormat format, quant::KvSide side,
                                                 std::string_view what) const {
    // Only the formats with tables differ by side.
    const bool tables = quant::kv_format_info(format).header == quant::KvHeader::kTurboRows;
    const char* name = tables && side == quant::KvSide::kValue ? ".v." : ".k.";
    return words(std::string(quant::to_string(format)) + name + std::string(what));
  }
  [[nodiscard]] std::uint64_t stripe_hash(const GoldenArray<std::uint32_t>& stripes,
                                          std::size_t head_dim_index, std::size_t how) const {
    const auto halves = stripes.at(head_dim_index, how);
    return halves[0] | std::uint64_t{halves[1]} << 32;
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> numbers(const char* key) const {
    return file_.facts().at(key).get<std::vector<std::uint32_t>>();
  }
  [[nodiscard]] std::vector<float> cut(const GoldenArray<float>& rows, std::uint32_t head_dim) const {
    std::vector<float> all;
    for (std::size_t how = 0; how < hows(); ++how) {
      const auto row = rows.at(how).first(head_dim);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  GoldenFile file_;
  GoldenArray<float> bases_;
  GoldenArray<float> factors_;
  GoldenArray<std::uint32_t> own_dims_;
  GoldenArray<std::uint32_t> own_elements_;
  GoldenArray<float> scales_;
  GoldenArray<float> diagonals_;
  GoldenArray<float> means_;
};

}  // namespace metrale::test
