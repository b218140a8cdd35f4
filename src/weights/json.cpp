// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <weights/json.h>
#include <weights/names.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {
namespace {

// A value within a member that nobody reads.
constexpr JsonText::Subject kUnnamed{"a value of an", "unknown", "member"};
constexpr std::string_view kJsonSpace = " \t\r\n";

// The bytes of the well-formed UTF-8 sequence at `at`, 0 where it is not one.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

}  // namespace

std::string JsonText::Subject::text() const {
  return fmt::format("{} {}{}{}", kind, quote_name(name), part.empty() ? "" : ": ", part);
}

JsonText::JsonText(std::string_view text, const std::string& path, std::uint64_t file_offset)
    : text_(text), path_(&path), file_offset_(file_offset) {
  const simdjson::error_code error =
      parser_.iterate(text.data(), text.size(), text.size() + simdjson::SIMDJSON_PADDING).get(document_);
  switch (error) {
    case simdjson::SUCCESS:
      return;
    case simdjson::MEMALLOC:
      throw OutOfMemory("host", text.size() * 6, 0, fmt::format("for reading the JSON text of '{}'", path));
    case simdjson::UTF8_ERROR:
      fail_at(first_invalid_utf8(text), "not UTF-8");
    case simdjson::EMPTY:
      fail_at(0, "not JSON: nothing but white space");
    case simdjson::UNCLOSED_STRING:
      fail_at(0, "not JSON: a string is opened and never closed");
    case simdjson::UNESCAPED_CHARS:
      fail_at(0, "not JSON: a control character stands unescaped in a string");
    default:
      fail_at(0, fmt::format("not JSON: {}", simdjson::error_message(error)));
  }
}

void JsonText::fail(const char* at, std::string_view problem) const {
  throw FormatError(*path_, offset_of(at), problem);
}

void JsonText::fail_at(std::size_t position, std::string_view problem) const {
  throw FormatError(*path_, file_offset_ + position, problem);
}

const char* JsonText::here() {
  const char* at = nullptr;
  if (document_.current_location().get(at) != simdjson::SUCCESS) return text_.data() + text_.size();
  return std::clamp(at, text_.data(), text_.data() + text_.size());
}

void JsonText::fail_value(simdjson::error_code error, Value value, const Subject& what,
                          std::string_view type) {
  constexpr std::size_t kShownBytes = 32;
  const std::string_view token = value.raw_json_token();
  const char* const at = start_of(value);
  if (error == simdjson::STRING_ERROR) fail(at, "not JSON: a bad escape in a string");
  if (error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT || error == simdjson::TAPE_ERROR) {
    fail(at, "not JSON: brackets do not match");
  }
  const std::string_view shown =
      token.substr(0, token.find_last_not_of(kJsonSpace) + 1).substr(0, kShownBytes);
  const std::string got = token.starts_with('{')   ? "an object"
                          : token.starts_with('[') ? "an array"
                                                   : printable_name(shown);
  fail(at, fmt::format("{} must be {}, got {}", what.text(), type, got));
}

std::string_view JsonText::string(Value value, const Subject& what) {
  if (value.raw_json_token().starts_with('"')) {
    const auto plain = plain_string(start_of(value) + 1);
    simdjson::ondemand::raw_json_string consumed;
    if (plain && value.get_raw_json_string().get(consumed) == simdjson::SUCCESS) return *plain;
  }
  std::string_view result;
  if (const auto error = value.get_string().get(result)) fail_value(error, value, what, "a string");
  return result;
}

// Nearly all strings have no escapes and are used where they lie: copies of them would double the memory.
std::optional<std::string_view> JsonText::plain_string(const char* begin) const {
  const auto rest = static_cast<std::size_t>(text_.data() + text_.size() - begin);
  // Every quote of the text is closed. Where this one is part of an escape, a backslash stands before it.
  const void* end = std::memchr(begin, '"', rest);
  if (end == nullptr) return std::nullopt;
  const auto length = static_cast<std::size_t>(static_cast<const char*>(end) - begin);
  if (std::memchr(begin, '\\', length) != nullptr) return std::nullopt;
  return std::string_view(begin, length);
}

std::uint64_t JsonText::unsigned_integer(Value value, const Subject& what) {
  std::uint64_t result = 0;
  if (const auto error = value.get_uint64().get(result)) {
    fail_value(error, value, what, "an unsigned 64-bit integer");
  }
  return result;
}

std::optional<std::uint64_t> JsonText::try_unsigned_integer(Value value) {
  std::uint64_t result = 0;
  if (value.get_uint64().get(result) != simdjson::SUCCESS) return std::nullopt;
  return result;
}

bool JsonText::is_object(Value value) {
  simdjson::ondemand::json_type type{};
  return value.type().get(type) == simdjson::SUCCESS && type == simdjson::ondemand::json_type::object;
}

bool JsonText::consume_null(Value value) {
  bool is_null = false;
  return value.is_null().get(is_null) == simdjson::SUCCESS && is_null;
}

void JsonText::check(Value value, int depth) {
  simdjson::ondemand::json_type type{};
  if (value.type().get(type) != simdjson::SUCCESS) fail(here(), "not JSON: a value expected");
  switch (type) {
    case simdjson::ondemand::json_type::object:
    case simdjson::ondemand::json_type::array:
      if (depth > kMaxJsonDepth) fail(here(), fmt::format("nested more than {} deep", kMaxJsonDepth));
      if (type == simdjson::ondemand::json_type::object) {
        for_each_member(value, kUnnamed, [&](const Key&, Value member) { check(member, depth + 1); });
      } else {
        for_each_element(value, kUnnamed, [&](Value element) { check(element, depth + 1); });
      }
      return;
    case simdjson::ondemand::json_type::string:
      (void)string(value, kUnnamed);
      return;
    case simdjson::ondemand::json_type::number: {
      double ignored = 0;
      if (const auto error = value.get_double().get(ignored)) fail_value(error, value, kUnnamed, "a number");
      return;
    }
    case simdjson::ondemand::json_type::boolean: {
      bool ignored = false;
      if (const auto error = value.get_bool().get(ignored))
        fail_value(error, value, kUnnamed, "true or false");
      return;
    }
    case simdjson::ondemand::json_type::null:
      if (!consume_null(value)) fail_value(simdjson::INCORRECT_TYPE, value, kUnnamed, "null");
      return;
  }
}

}  // namespace metrale::weights
