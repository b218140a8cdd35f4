// SPDX-License-Identifier: Apache-2.0
// JsonFields: typed access to the members of one JSON object, with errors that name file, field and
// expectation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace metrale::engine {

// Throws FormatError with the byte where the text stops being JSON, or where it is not an object.
[[nodiscard]] nlohmann::json parse_json_object(const std::string& text, const std::string& path);

class JsonFields {
 public:
  // `object` and `path` outlive this. `prefix` is put before field names in messages ("rope_scaling.").
  JsonFields(const nlohmann::json& object, const std::string& path, std::string prefix = {});

  // A member that is absent or null counts as not there.
  [[nodiscard]] const nlohmann::json* find(std::string_view name) const;

  // The member is there and null.
  [[nodiscard]] bool is_null(std::string_view name) const;
  // The members of an object; throws FormatError where it is absent or none.
  [[nodiscard]] JsonFields object(std::string_view name) const;

  // Each throws FormatError where the member is there and is not of the type or in the range.
  [[nodiscard]] std::optional<std::uint32_t> count(std::string_view name, std::uint32_t minimum = 1) const;
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  // One token id, or an array of them.
  [[nodiscard]] std::vector<std::int32_t> token_ids(std::string_view name) const;

  // As count(), and throws where it is absent.
  [[nodiscard]] std::uint32_t required_count(std::string_view name) const;

  // A finite number above zero, or the default where absent.
  [[nodiscard]] double positive(std::string_view name, double otherwise) const;

  // Throws Unsupported for a value that is well-formed and that this engine does not have.
  [[noreturn]] void refuse(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, std::string_view expectation) const;

 private:
  const nlohmann::json* object_;
  const std::string* path_;
  std::string prefix_;
};

}  // namespace metrale::engine
