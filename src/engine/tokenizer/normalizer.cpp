// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <utf8proc.h>

#include <metrale/base/assert.h>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

using CodePoint = utf8proc_int32_t;

constexpr std::size_t kMaxDecomposition = 32;  // Unicode's longest (U+FDFA) has 18

// The enumeration is a set of flags.
utf8proc_option_t with(utf8proc_option_t a, utf8proc_option_t b) {
  return std::bit_cast<utf8proc_option_t>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

std::uint64_t combining_class(CodePoint c) {
  return static_cast<std::uint64_t>(utf8proc_get_property(c)->combining_class);
}

bool is_mark(CodePoint c) {
  return combining_class(c) != 0;
}

// Canonical order: marks between two starters sorted by class, equal ones kept. utf8proc_decompose would do
// it by exchanging neighbours, which is quadratic in a long run of marks.
void sort_marks(std::vector<CodePoint>& text) {
  constexpr unsigned kCodePointBits = 21;
  constexpr unsigned kClassShift = 56;
  std::vector<std::uint64_t> keys;  // class, place, code point
  auto at = text.begin();
  while (at != text.end()) {
    const auto first = std::find_if(at, text.end(), is_mark);
    const auto last = std::find_if_not(first, text.end(), is_mark);
    keys.clear();
    for (auto mark = first; mark != last; ++mark) {
      keys.push_back(combining_class(*mark) << kClassShift | keys.size() << kCodePointBits |
                     static_cast<std::uint64_t>(*mark));
    }
    std::sort(keys.begin(), keys.end());
    std::transform(keys.begin(), keys.end(), first, [](std::uint64_t key) {
      return static_cast<CodePoint>(key & ((std::uint64_t{1} << kCodePointBits) - 1));
    });
    at = last;
  }
}

std::vector<CodePoint> decompose(std::string_view text, utf8proc_option_t options) {
  std::vector<CodePoint> out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    METRALE_ASSERT(unit.kind == Utf8Kind::kCharacter);
    text.remove_prefix(unit.length_bytes);
    std::array<CodePoint, kMaxDecomposition> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<CodePoint>(unit.code_point),
                                                           parts.data(), parts.size(), options, &boundary);
    METRALE_ASSERT(count > 0 && static_cast<std::size_t>(count) <= parts.size());
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  sort_marks(out);
  return out;
}

void append_character(std::string& out, CodePoint c) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t count = utf8proc_encode_char(c, bytes.data());
  out.append(bytes.begin(), bytes.begin() + count);
}

std::string normalized(std::string_view text, NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  utf8proc_option_t options = with(UTF8PROC_STABLE, composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (compatible) options = with(options, UTF8PROC_COMPAT);
  std::vector<CodePoint> code_points = decompose(text, options);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  METRALE_ASSERT(length >= 0);
  std::string out;
  out.reserve(text.size());
  for (const CodePoint c : std::span(code_points).first(static_cast<std::size_t>(length)))
    append_character(out, c);
  return out;
}

// Calls character(code point) for each.
template <class Character>
void for_each_character(std::string_view text, Character character) {
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    METRALE_ASSERT(unit.kind == Utf8Kind::kCharacter);
    character(static_cast<CodePoint>(unit.code_point));
    text.remove_prefix(unit.length_bytes);
  }
}

std::string lowercased(std::string_view text) {
  constexpr CodePoint kDottedI = 0x130;  // the only one whose lower case is two characters
  constexpr CodePoint kDotAbove = 0x307;
  std::string out;
  for_each_character(text, [&](CodePoint c) {
    append_character(out, c == kDottedI ? 'i' : utf8proc_tolower(c));
    if (c == kDottedI) append_character(out, kDotAbove);
  });
  return out;
}

std::string without_marks(std::string_view text) {
  std::string out;
  for_each_character(text, [&](CodePoint c) {
    const utf8proc_category_t category = utf8proc_category(c);
    const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                      category == UTF8PROC_CATEGORY_ME;
    if (!mark) append_character(out, c);
  });
  return out;
}

std::string stripped(std::string_view text, const StripStep& step) {
  if (step.left) text.remove_prefix(white_space_after(text, 0));
  if (step.right) text = text.substr(0, white_space_before(text, text.size(), 0));
  return std::string(text);
}

struct ApplyStep {
  std::string_view text;
  bool continues;

  std::string operator()(NormalForm form) const { return normalized(text, form); }
  std::string operator()(const PrependStep& step) const {
    return text.empty() || continues ? std::string(text) : step.prefix + std::string(text);
  }
  std::string operator()(const ReplaceStep& step) const {
    return replace_matches(step.pattern, text, step.content);
  }
  std::string operator()(LowercaseStep /*step*/) const { return lowercased(text); }
  std::string operator()(StripAccentsStep /*step*/) const { return without_marks(text); }
  std::string operator()(const StripStep& step) const { return stripped(text, step); }
};

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps)
    : steps_(std::move(steps)),
      only_forms_(std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
        return std::holds_alternative<NormalForm>(step);
      })) {}

bool Normalizer::keeps(std::string_view text) const {
  return steps_.empty() || (only_forms_ && std::all_of(text.begin(), text.end(), [](char c) {
                              return static_cast<unsigned char>(c) < 0x80;
                            }));
}

std::string Normalizer::apply(std::string_view text, bool continues) const {
  std::string out(text);
  for (const NormalizerStep& step : steps_) out = std::visit(ApplyStep{out, continues}, step);
  return out;
}

}  // namespace metrale::engine
