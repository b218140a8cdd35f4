// SPDX-License-Identifier: Apache-2.0
// JsonNode: a value of a JSON document with its place, so that every complaint names file, field and value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <simdjson.h>

namespace metrale::engine {

// At most 64 bytes of a text, in quotes, for a message.
[[nodiscard]] std::string in_quotes(std::string_view text);

// A view: the parser and `origin` must outlive it. The typed getters throw FormatError on another type.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element value, std::string where, const std::string& origin)
      : value_(value), where_(std::move(where)), origin_(&origin) {}

  [[nodiscard]] simdjson::dom::object object() const;
  [[nodiscard]] simdjson::dom::array array() const;
  [[nodiscard]] std::string_view string() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;

  // A member of this object; nullopt where it is absent or null.
  [[nodiscard]] std::optional<JsonNode> find(std::string_view key) const;
  // A member that must be there and not null. Throws FormatError.
  [[nodiscard]] JsonNode at(std::string_view key) const;
  [[nodiscard]] std::vector<JsonNode> elements() const;

  [[nodiscard]] simdjson::dom::element value() const { return value_; }
  [[nodiscard]] std::string text() const;  // as JSON, shortened
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const std::string& origin() const { return *origin_; }

  // FormatError: "'file': where problem".
  [[noreturn]] void fail(std::string_view problem) const;
  // Unsupported: "file does not support where = value; supported: …".
  [[noreturn]] void unsupported(std::string_view supported) const;

 private:
  [[noreturn]] void wrong_type(std::string_view wanted) const;

  simdjson::dom::element value_;
  std::string where_;
  const std::string* origin_;
};

// The document as an object. Throws FormatError. The parser, `json` and `origin` must outlive the node.
[[nodiscard]] JsonNode parse_json(simdjson::dom::parser& parser, std::string_view json,
                                  const std::string& origin);

}  // namespace metrale::engine
