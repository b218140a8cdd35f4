// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "engine/tokenizer/jinja/ast.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine::jinja {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

void append_code_point(std::string& out, std::uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

// Python reads \r\n and \r as \n, and Jinja drops one newline at the end.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : owned_(with_plain_newlines(source)), source_(owned_) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      data();
      if (at_ >= source_.size()) break;
      const std::string_view open = source_.substr(at_, 2);
      if (open == "{#") {
        comment();
      } else {
        tag(open == "{{");
      }
    }
    put(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string message) const {
    throw FailureAt{{Failure::Kind::kUnsupported, std::move(message)}, line_};
  }

  void put(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t count) {
    line_ += static_cast<std::uint32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                   source_.begin() + static_cast<std::ptrdiff_t>(at_ + count),
                                                   '\n'));
    at_ += count;
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  // Text up to the next tag, without the white space that the tag takes.
  void data() {
    std::size_t open = at_;
    while ((open = source_.find('{', open)) != std::string_view::npos) {
      const char next = open + 1 < source_.size() ? source_[open + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++open;
    }
    const std::size_t stop = std::min(open, source_.size());
    std::size_t end = stop;
    if (stop < source_.size()) {
      const char sign = stop + 2 < source_.size() ? source_[stop + 2] : '\0';
      if (sign == '-') {
        while (end > at_ && is_space(source_[end - 1])) --end;
      } else if (sign != '+' && source_[stop + 1] != '{') {
        end = without_indent(stop);
      }
    }
    if (end > at_) put(TokenKind::kData, std::string(source_.substr(at_, end - at_)));
    advance(stop - at_);
  }

  // lstrip_blocks: white space before a tag goes where nothing else stands before it on its line.
  [[nodiscard]] std::size_t without_indent(std::size_t stop) const {
    std::size_t begin = stop;
    while (begin > at_ && is_space(source_[begin - 1]) && source_[begin - 1] != '\n') --begin;
    const bool begins_line = begin > at_ ? source_[begin - 1] == '\n' : at_ == 0 || source_[at_ - 1] == '\n';
    return begins_line ? begin : stop;
  }

  // Behind a tag: all white space with a minus sign, else one newline where `trims`.
  void after_tag(bool minus, bool trims) {
    if (minus) {
      std::size_t count = 0;
      while (is_space(peek(count))) ++count;
      advance(count);
    } else if (trims && peek() == '\n') {
      advance(1);
    }
  }

  void comment() {
    const std::size_t close = source_.find("#}", at_ + 2);
    if (close == std::string_view::npos) fail("a comment without end");
    const char sign = close > at_ + 2 ? source_[close - 1] : '\0';
    advance(close + 2 - at_);
    after_tag(sign == '-', sign != '+');
  }

  void tag(bool is_output) {
    put(is_output ? TokenKind::kOutputBegin : TokenKind::kTagBegin, {});
    advance(2);
    if (peek() == '-' || peek() == '+') advance(1);
    const std::string_view close = is_output ? "}}" : "%}";
    std::vector<char> open_brackets;
    for (;;) {
      while (is_space(peek())) advance(1);
      if (at_ >= source_.size()) fail("a tag without end");
      const char sign = peek();
      const bool has_sign = sign == '-' || (sign == '+' && !is_output);
      const std::string_view rest = source_.substr(at_ + (has_sign ? 1 : 0));
      if (open_brackets.empty() && rest.starts_with(close)) {
        advance(close.size() + (has_sign ? 1 : 0));
        put(is_output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, {});
        after_tag(has_sign && sign == '-', !is_output && !has_sign);
        return;
      }
      if (sign == '(' || sign == '[' || sign == '{') open_brackets.push_back(sign);
      if (!open_brackets.empty() && (sign == ')' || sign == ']' || sign == '}')) open_brackets.pop_back();
      token();
    }
  }

  void token() {
    const char c = peek();
    if (is_name_start(c)) {
      std::size_t length = 1;
      while (is_name_start(peek(length)) || is_digit(peek(length))) ++length;
      take(TokenKind::kName, length);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      operator_token();
    }
  }

  void take(TokenKind kind, std::size_t length) {
    put(kind, std::string(source_.substr(at_, length)));
    advance(length);
  }

  void number() {
    std::size_t length = 1;
    while (is_digit(peek(length)) || peek(length) == '_') ++length;
    const bool has_fraction = peek(length) == '.' && is_digit(peek(length + 1));
    if (has_fraction) {
      ++length;
      while (is_digit(peek(length))) ++length;
    }
    if (is_name_start(peek(length))) fail("a number in another form than 12 and 1.5");
    put(has_fraction ? TokenKind::kFloat : TokenKind::kInteger, std::string(source_.substr(at_, length)));
    std::erase(tokens_.back().text, '_');
    advance(length);
  }

  void operator_token() {
    constexpr std::array<std::string_view, 25> kOperators = {
        "==", "!=", "<=", ">=", "//", "**", "<", ">", "+", "-", "*", "/", "%",
        "~",  "(",  ")",  "[",  "]",  "{",  "}", "=", ",", ":", ".", "|"};
    for (const std::string_view each : kOperators) {
      if (source_.substr(at_).starts_with(each)) return take(TokenKind::kOperator, each.size());
    }
    fail(fmt::format("the character '{}' in a tag",
                     source_.substr(at_, first_utf8_unit(source_.substr(at_)).length_bytes)));
  }

  void string(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        text += source_[at++];
      } else {
        at = escape(at + 1, text);
      }
    }
    if (at >= source_.size()) fail("a string without end");
    put(TokenKind::kString, std::move(text));
    advance(at + 1 - at_);
  }

  // The escape whose character is at `at`, as Python reads it; returns the place after it.
  std::size_t escape(std::size_t at, std::string& text) const {
    if (at >= source_.size()) fail("a string without end");
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at];
    if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
      text += kValues[known];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c == 'x' || c == 'u') {
      const std::size_t digits = c == 'x' ? 2 : 4;
      std::uint32_t value = 0;
      for (std::size_t i = 1; i <= digits; ++i) {
        const std::size_t digit =
            at + i < source_.size()
                ? std::string_view("0123456789abcdef").find(static_cast<char>(source_[at + i] | 0x20))
                : std::string_view::npos;
        if (digit == std::string_view::npos) fail("a broken escape in a string");
        value = value << 4 | static_cast<std::uint32_t>(digit);
      }
      if (value >= 0xD800 && value <= 0xDFFF) fail("a surrogate in a string");
      append_code_point(text, value);
      return at + 1 + digits;
    }
    if (is_digit(c) || c == 'N' || c == 'U') fail(fmt::format("the escape \\{} in a string", c));
    text += '\\';
    return at;
  }

  std::string owned_;
  std::string_view source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace metrale::engine::jinja
