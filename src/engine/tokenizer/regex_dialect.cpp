// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/regex_dialect.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

// White_Space and what is not, as class items. PCRE2's own \s would add U+180E.
constexpr std::string_view kSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{00}-\x{08}\x{0E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// Oniguruma's words; its table for Latin-1 counts the superscript digits and the fractions in.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kHex = "0-9A-Fa-f";

constexpr std::array<std::string_view, 37> kCategories = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    if (rest().starts_with("(?i)")) take(4);
    while (!at_end()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Unsupported(where_, fmt::format("{} at byte {} of the pattern '{}'", what, at_, pattern_));
  }

  [[nodiscard]] bool at_end() const { return at_ == pattern_.size(); }
  [[nodiscard]] std::string_view rest() const { return pattern_.substr(at_); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void take(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void item() {
    switch (peek()) {
      case '\\':
        return escape(false);
      case '[':
        return character_class();
      case '(':
        return group();
      case '{':
        return interval();
      default:
        return take(1);
    }
  }

  void group() {
    if (peek(1) != '?') return take(1);
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"}) {
      if (rest().starts_with(opening)) return take(opening.size());
    }
    refuse("the group " + std::string(rest().substr(0, 4)));
  }

  void interval() {
    std::size_t length = 1;
    while (is_digit(peek(length)) || peek(length) == ',') ++length;
    // Not an interval for either engine: a plain brace.
    if (length == 1 || peek(length) != '}') {
      out_ += "\\{";
      ++at_;
      return;
    }
    if (peek(1) == ',' || peek(length + 1) == '+')
      refuse("the interval " + std::string(rest().substr(0, length + 2)));
    take(length + 1);
  }

  // Oniguruma nests classes and knows intersections; PCRE2 reads both as plain characters, so they are
  // refused.
  void character_class() {
    take(1);
    if (peek() == '^') take(1);
    if (peek() == ']') {
      out_ += "\\]";
      ++at_;
    }
    while (peek() != ']') {
      if (at_end()) refuse("a class without end");
      if (peek() == '[') refuse("a class in a class");
      if (rest().starts_with("&&")) refuse("the class operation &&");
      if (peek() == '-' && peek(1) == '\\' && is_set_escape(peek(2))) refuse("a range to a class escape");
      if (peek() != '\\') {
        take(1);
        continue;
      }
      const bool is_set = is_set_escape(peek(1));
      escape(true);
      if (is_set && peek() == '-' && peek(1) != ']') refuse("a range from a class escape");
    }
    take(1);
  }

  static bool is_set_escape(char c) {
    return std::string_view("sSwWhHdDpP").find(c) != std::string_view::npos;
  }

  void set(std::string_view items, bool negated, bool in_class) {
    if (in_class && negated) refuse("a negated class escape in a class");
    out_ += in_class ? std::string(items) : fmt::format("[{}{}]", negated ? "^" : "", items);
    at_ += 2;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
        return set(kSpace, false, in_class);
      case 'S':
        return in_class ? set(kNotSpace, false, true) : set(kSpace, true, false);
      case 'w':
      case 'W':
        return set(kWord, c == 'W', in_class);
      case 'h':
      case 'H':
        return set(kHex, c == 'H', in_class);
      case 'v':
        return set("\\x{0B}", false, in_class);
      case 'p':
      case 'P':
        return property();
      case 'x':
      case 'u':
        return code_point();
      case '\0':
        refuse("a backslash at the end");
      default:
        break;
    }
    constexpr std::string_view kSame = "dDrntfae";
    constexpr std::string_view kSameOutsideClass = "AzZ";
    const bool letter_or_digit = is_letter(c) || is_digit(c);
    const bool same = kSame.find(c) != std::string_view::npos ||
                      (!in_class && kSameOutsideClass.find(c) != std::string_view::npos);
    if (letter_or_digit && !same) refuse(fmt::format("the escape \\{}", c));
    // Not ASCII: an escaped character that is itself.
    if (static_cast<unsigned char>(c) >= 0x80) {
      ++at_;
      return take(1);
    }
    take(2);
  }

  void property() {
    const std::size_t close = rest().find('}');
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property without braces");
    std::string_view name = rest().substr(3, close - 3);
    bool negated = peek(1) == 'P';
    if (!negated && name.starts_with('^')) {
      negated = true;
      name.remove_prefix(1);
    }
    const bool is_category = std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end();
    const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(),
                                                      [](char c) { return is_letter(c) || c == '_'; });
    if (!is_name) refuse("the property " + std::string(name));
    // Oniguruma's script names are the Script property; PCRE2's are Script_Extensions unless it is told.
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', is_category ? "" : "sc:", name);
    at_ += close + 1;
  }

  // \xH, \xHH, \x{H…}, \uHHHH.
  void code_point() {
    std::size_t begin = 2;
    std::size_t end = 2;
    const bool braced = peek(1) == 'x' && peek(2) == '{';
    if (braced) begin = end = 3;
    const std::size_t most = braced ? 6 : (peek(1) == 'x' ? 2 : 4);
    while (end - begin < most && is_hex(peek(end))) ++end;
    const bool exact = peek(1) != 'u' || end - begin == most;
    if (end == begin || !exact || (braced && peek(end) != '}')) refuse("a broken code point");
    out_ += fmt::format("\\x{{{}}}", rest().substr(begin, end - begin));
    at_ += end + (braced ? 1 : 0);
  }

  std::string_view pattern_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace metrale::engine
