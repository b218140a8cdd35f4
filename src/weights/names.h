// SPDX-License-Identifier: Apache-2.0
// Names in messages, quoted and escaped, lists that stay short, and which names may be those of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metrale::weights {

// 'model.norm.weight', as printable_name() in quotes.
[[nodiscard]] std::string quote_name(std::string_view name);

// [32, 64], cut after 16 dimensions.
[[nodiscard]] std::string shape_text(std::span<const std::uint64_t> shape);

// "a, b, c and 5 more": the first `shown` entries.
[[nodiscard]] std::string list_some(const std::vector<std::string>& entries, std::size_t shown = 8);

// Whether it names a file in a given directory: not empty, not "." or "..", no separator, no NUL.
[[nodiscard]] bool is_plain_file_name(std::string_view name);

}  // namespace metrale::weights
