// SPDX-License-Identifier: Apache-2.0
// Normalisation of text before it is cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace metrale::engine {

enum class NormalForm : std::uint8_t { kNfc, kNfkc, kNfd, kNfkd };

// Puts a text before every text that is not empty.
struct PrependStep {
  std::string prefix;
};
struct ReplaceStep {
  Regex pattern;
  std::string content;
};
// Character by character, without regard to their neighbours.
struct LowercaseStep {};
// Takes out every mark: general categories Mn, Mc and Me.
struct StripAccentsStep {};
// Takes off white space at the ends.
struct StripStep {
  bool left = true;
  bool right = true;
};
using NormalizerStep =
    std::variant<NormalForm, PrependStep, ReplaceStep, LowercaseStep, StripAccentsStep, StripStep>;

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps);

  // Whether apply() would return `text` unchanged without looking further: no step, or only normal forms and
  // pure ASCII.
  [[nodiscard]] bool keeps(std::string_view text) const;
  // The steps in order. `text` must be valid UTF-8. `continues`: the text goes on after something that is no
  // text, so that nothing is put before it. Linear but for sorting within a run of combining marks. Throws
  // InvalidArgument where a pattern exceeds its step limit.
  [[nodiscard]] std::string apply(std::string_view text, bool continues = false) const;

 private:
  std::vector<NormalizerStep> steps_;
  bool only_forms_;
};

}  // namespace metrale::engine
