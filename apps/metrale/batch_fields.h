// SPDX-License-Identifier: Apache-2.0
// The fields of a request of `metrale batch`. All throw InvalidArgument, which names the field.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "batch_line.h"

namespace metrale::app {

// Reads every field of `body` into the line; one that is null counts as not there, one that is not known is
// refused. A bare body has "custom_id" beside the fields.
void read_body(const nlohmann::json& body, bool is_bare, BatchLine& line);

[[nodiscard]] std::string string_field(std::string_view name, const nlohmann::json& value);
[[noreturn]] void fail_field(std::string_view name, const nlohmann::json& value, std::string_view expected);

}  // namespace metrale::app
