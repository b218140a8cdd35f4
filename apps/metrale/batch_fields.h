// SPDX-License-Identifier: Apache-2.0
// The fields of a request of `metrale batch`. All throw InvalidArgument, which names the field.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "batch_line.h"

namespace metrale::app {

// OpenAI takes 4 stops; other servers of its form take more.
inline constexpr std::size_t kMaxStops = 64;
inline constexpr std::size_t kMaxStopBytes = 1024;  // of each
inline constexpr std::size_t kMaxStopIds = 1024;

// Reads every field of `body` into the line; one that is null counts as not there, one that is not known is
// refused. A bare body has "custom_id" beside the fields.
void read_body(const nlohmann::json& body, bool is_bare, BatchLine& line);

[[nodiscard]] std::string string_field(std::string_view name, const nlohmann::json& value);
[[noreturn]] void fail_field(std::string_view name, const nlohmann::json& value, std::string_view expected);

}  // namespace metrale::app
