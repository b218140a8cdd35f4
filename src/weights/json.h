// SPDX-License-Identifier: Apache-2.0
// JsonText: strict reading of one JSON text. Every value is consumed through the calls below, so that nothing
// passes unchecked, and every failure names the byte in the file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <simdjson.h>

namespace metrale::weights {

// Nesting that is followed within a text; the reference implementation's limit.
inline constexpr int kMaxJsonDepth = 127;

// Memory for a text and the bytes that the reader may touch behind it.
class PaddedBuffer {
 public:
  explicit PaddedBuffer(std::size_t size_bytes)
      : data_(std::make_unique_for_overwrite<char[]>(size_bytes + simdjson::SIMDJSON_PADDING)),
        size_bytes_(size_bytes) {
    std::fill_n(data_.get() + size_bytes, simdjson::SIMDJSON_PADDING, '\0');
  }
  [[nodiscard]] std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(data_.get(), size_bytes_));
  }
  [[nodiscard]] std::string_view text() const { return {data_.get(), size_bytes_}; }

 private:
  std::unique_ptr<char[]> data_;
  std::size_t size_bytes_;
};

class JsonText {
 public:
  using Value = simdjson::ondemand::value;
  using Object = simdjson::ondemand::object;

  struct Key {
    std::string_view name;  // unescaped; valid as long as the text and its reader
    const char* at;         // the opening quote
  };

  // What a value is, for messages: tensor 'x': shape.
  struct Subject {
    std::string_view kind;
    std::string_view name;
    std::string_view part;
    [[nodiscard]] std::string text() const;
  };

  // `text` lies at byte `file_offset` of the file and is followed by SIMDJSON_PADDING readable bytes. Throws
  // FormatError unless it is UTF-8 and its quotes are closed.
  JsonText(std::string_view text, const std::string& path, std::uint64_t file_offset);

  // Calls `on_member(Key, Value)` for the members of the text's one object, which must consume the value
  // through a call below.
  template <class OnMember>
  void for_each_root_member(const OnMember& on_member);
  template <class OnMember>
  void for_each_member(Value value, const Subject& what, const OnMember& on_member);
  // Calls `on_element(Value)`.
  template <class OnElement>
  void for_each_element(Value value, const Subject& what, const OnElement& on_element);

  [[nodiscard]] std::string_view string(Value value, const Subject& what);
  [[nodiscard]] std::uint64_t unsigned_integer(Value value, const Subject& what);
  // nullopt where the value is something else, and then it is not consumed.
  [[nodiscard]] static std::optional<std::uint64_t> try_unsigned_integer(Value value);
  [[nodiscard]] static bool is_object(Value value);
  // True where the value is null, and then consumes it.
  [[nodiscard]] static bool consume_null(Value value);
  // Checks a value of any type, at nesting `depth` of the text, and drops it.
  void check(Value value, int depth);

  // The first character of a value that has not been consumed.
  [[nodiscard]] static const char* start_of(Value value) { return value.raw_json_token().data(); }
  [[nodiscard]] std::uint64_t offset_of(const char* at) const {
    return file_offset_ + static_cast<std::uint64_t>(at - text_.data());
  }
  [[noreturn]] void fail(const char* at, std::string_view problem) const;
  // At a byte of the text.
  [[noreturn]] void fail_at(std::size_t position, std::string_view problem) const;

 private:
  // Where the reader stands.
  [[nodiscard]] const char* here();
  // `error` is why `value` could not be read as `type`.
  [[noreturn]] void fail_value(simdjson::error_code error, Value value, const Subject& what,
                               std::string_view type);
  template <class OnMember>
  void walk(Object object, const OnMember& on_member);
  // The string whose characters begin at `begin`, nullopt if it has escapes.
  [[nodiscard]] std::optional<std::string_view> plain_string(const char* begin) const;

  std::string_view text_;
  const std::string* path_;
  std::uint64_t file_offset_;
  simdjson::ondemand::parser parser_;
  simdjson::ondemand::document document_;
};

template <class OnMember>
void JsonText::walk(Object object, const OnMember& on_member) {
  for (auto result : object) {
    simdjson::ondemand::field field;
    if (std::move(result).get(field) != simdjson::SUCCESS)
      fail(here(), "not JSON: a member of an object expected");
    const char* at = field.key().raw() - 1;
    std::string_view name;
    if (const auto plain = plain_string(at + 1)) {
      name = *plain;
    } else if (field.unescaped_key().get(name) != simdjson::SUCCESS) {
      fail(at, "not JSON: a bad escape in a name");
    }
    on_member(Key{name, at}, field.value());
  }
}

template <class OnMember>
void JsonText::for_each_root_member(const OnMember& on_member) {
  Object object;
  if (document_.get_object().get(object) != simdjson::SUCCESS) {
    fail_at(0, "not JSON of the expected form: one object expected, from '{' to '}'");
  }
  walk(object, on_member);
  if (document_.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    fail(here(), "not JSON: something follows the closing '}'");
  }
}

template <class OnMember>
void JsonText::for_each_member(Value value, const Subject& what, const OnMember& on_member) {
  Object object;
  if (const auto error = value.get_object().get(object)) fail_value(error, value, what, "an object");
  walk(object, on_member);
}

template <class OnElement>
void JsonText::for_each_element(Value value, const Subject& what, const OnElement& on_element) {
  simdjson::ondemand::array array;
  if (const auto error = value.get_array().get(array)) fail_value(error, value, what, "an array");
  for (auto result : array) {
    Value element;
    if (std::move(result).get(element) != simdjson::SUCCESS)
      fail(here(), "not JSON: an element of an array expected");
    on_element(element);
  }
}

}  // namespace metrale::weights
