// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/json_node.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

constexpr std::size_t kShownBytes = 64;

std::string shortened(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  return std::string(text.substr(0, valid_utf8_prefix(text.substr(0, kShownBytes)))) + "…";
}

std::string_view type_name(simdjson::dom::element_type type) {
  switch (type) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  return fmt::format("\"{}\"", shortened(text));
}

void JsonNode::fail(std::string_view problem) const {
  throw FormatError(*origin_, 0, fmt::format("{} {}", where_, problem));
}

void JsonNode::unsupported(std::string_view supported) const {
  throw Unsupported(fmt::format("tokenizer '{}'", *origin_),
                    fmt::format("{} = {}; supported: {}", where_, text(), supported));
}

void JsonNode::wrong_type(std::string_view wanted) const {
  fail(fmt::format("must be {}, is {} {}", wanted, type_name(value_.type()), text()));
}

std::string JsonNode::text() const {
  return shortened(simdjson::minify(value_));
}

simdjson::dom::object JsonNode::object() const {
  simdjson::dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) wrong_type("an object");
  return object;
}

simdjson::dom::array JsonNode::array() const {
  simdjson::dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) wrong_type("an array");
  return array;
}

std::string_view JsonNode::string() const {
  std::string_view text;
  if (value_.get(text) != simdjson::SUCCESS) wrong_type("a string");
  return text;
}

bool JsonNode::boolean() const {
  bool flag = false;
  if (value_.get(flag) != simdjson::SUCCESS) wrong_type("true or false");
  return flag;
}

std::int64_t JsonNode::integer() const {
  std::int64_t number = 0;
  if (value_.get(number) != simdjson::SUCCESS) wrong_type("an integer");
  return number;
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  simdjson::dom::element value;
  if (object().at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return JsonNode(value, where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key), *origin_);
}

JsonNode JsonNode::at(std::string_view key) const {
  std::optional<JsonNode> member = find(key);
  if (!member) {
    throw FormatError(*origin_, 0, fmt::format("{}{}{} is missing", where_, where_.empty() ? "" : ".", key));
  }
  return *std::move(member);
}

std::vector<JsonNode> JsonNode::elements() const {
  std::vector<JsonNode> nodes;
  for (const simdjson::dom::element element : array()) {
    nodes.emplace_back(element, fmt::format("{}[{}]", where_, nodes.size()), *origin_);
  }
  return nodes;
}

JsonNode parse_json(simdjson::dom::parser& parser, std::string_view json, const std::string& origin) {
  simdjson::dom::element document;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(document);
  if (error != simdjson::SUCCESS) {
    throw FormatError(origin, 0,
                      fmt::format("is not a whole JSON document: {}", simdjson::error_message(error)));
  }
  if (!document.is_object()) throw FormatError(origin, 0, "must be a JSON object");
  return {document, "", origin};
}

}  // namespace metrale::engine
