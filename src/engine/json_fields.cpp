// SPDX-License-Identifier: Apache-2.0
#include "engine/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/json_scan.h>

namespace metrale::engine {

namespace {

std::string shown(const nlohmann::json* value) {
  if (value == nullptr) return "absent";
  std::string text = value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

}  // namespace

nlohmann::json parse_json_object(const std::string& text, const std::string& path) {
  // Printing and comparing values is recursive.
  if (is_too_deep_json(text)) {
    throw FormatError(path, 0, fmt::format("nested more than {} deep", kMaxJsonDepth));
  }
  try {
    nlohmann::json value = nlohmann::json::parse(text);
    if (!value.is_object()) throw FormatError(path, 0, "a JSON object was expected");
    return value;
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path, error.byte, fmt::format("not JSON: {}", error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(path, 0, fmt::format("not readable JSON: {}", error.what()));  // a number beyond double
  }
}

JsonFields::JsonFields(const nlohmann::json& object, const std::string& path, std::string prefix)
    : object_(&object), path_(&path), prefix_(std::move(prefix)) {}

const nlohmann::json* JsonFields::find(std::string_view name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::is_null(std::string_view name) const {
  const auto found = object_->find(name);
  return found != object_->end() && found->is_null();
}

JsonFields JsonFields::object(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr || !value->is_object()) fail(name, "an object");
  return {*value, *path_, fmt::format("{}{}.", prefix_, name)};
}

std::optional<std::uint32_t> JsonFields::count(std::string_view name, std::uint32_t minimum) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  constexpr std::uint64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < minimum ||
      value->get<std::uint64_t>() > kMax) {
    fail(name, fmt::format("a whole number from {} to {}", minimum, kMax));
  }
  return static_cast<std::uint32_t>(value->get<std::uint64_t>());
}

std::optional<double> JsonFields::number(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) fail(name, "a finite number");
  return number;
}

std::optional<bool> JsonFields::boolean(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::text(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "a string");
  return value->get<std::string>();
}

std::vector<std::int32_t> JsonFields::token_ids(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  std::vector<std::int32_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      fail(name, "a token id, or an array of them");
    }
    ids.push_back(id.get<std::int32_t>());
  };
  if (value->is_array()) {
    for (const nlohmann::json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

std::uint32_t JsonFields::required_count(std::string_view name) const {
  const auto value = count(name);
  if (!value) fail(name, "a whole number");
  return *value;
}

double JsonFields::positive(std::string_view name, double otherwise) const {
  const double value = number(name).value_or(otherwise);
  if (value <= 0) fail(name, "a number above 0");
  return value;
}

void JsonFields::refuse(std::string_view name) const {
  throw Unsupported(fmt::format("'{}': this engine", *path_),
                    fmt::format("{}{} = {}", prefix_, name, shown(find(name))));
}

void JsonFields::fail(std::string_view name, std::string_view expectation) const {
  throw FormatError(
      *path_, 0,
      fmt::format("field \"{}{}\" is {}; expected {}", prefix_, name, shown(find(name)), expectation));
}

}  // namespace metrale::engine
