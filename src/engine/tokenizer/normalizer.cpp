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

std::string normalized(std::string_view text, NormalForm form) {
  utf8proc_option_t options = with(UTF8PROC_STABLE, UTF8PROC_COMPOSE);
  if (form == NormalForm::kNfkc) options = with(options, UTF8PROC_COMPAT);
  std::vector<CodePoint> code_points = decompose(text, options);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  METRALE_ASSERT(length >= 0);
  std::string out;
  out.reserve(text.size());
  for (const CodePoint c : std::span(code_points).first(static_cast<std::size_t>(length))) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const utf8proc_ssize_t count = utf8proc_encode_char(c, bytes.data());
    out.append(bytes.begin(), bytes.begin() + count);
  }
  return out;
}

}  // namespace

bool Normalizer::keeps(std::string_view text) const {
  return forms_.empty() ||
         std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const NormalForm form : forms_) out = normalized(out, form);
  return out;
}

}  // namespace metrale::engine
