// SPDX-License-Identifier: Apache-2.0
// Unicode normalisation of text before it is cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace metrale::engine {

enum class NormalForm : std::uint8_t { kNfc, kNfkc };

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalForm> forms) : forms_(std::move(forms)) {}

  // Whether apply() would return `text` unchanged without looking further: no form, or pure ASCII.
  [[nodiscard]] bool keeps(std::string_view text) const;
  // The forms applied in order. `text` must be valid UTF-8. Linear but for sorting within a run of combining
  // marks.
  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  std::vector<NormalForm> forms_;
};

}  // namespace metrale::engine
