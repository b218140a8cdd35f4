// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <weights/names.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <metrale/weights/safetensors.h>

namespace metrale::weights {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

}  // namespace

std::string printable_name(std::string_view name) {
  constexpr std::size_t kShownBytes = 160;
  std::size_t end = std::min(name.size(), kShownBytes);
  while (end > 0 && end < name.size() && is_continuation(name[end])) --end;
  std::string text;
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    // The controls of Latin-1, U+0080 to U+009F, move a terminal's cursor as those of ASCII do.
    const bool latin_control = byte == 0xC2 && i + 1 < end && static_cast<unsigned char>(name[i + 1]) < 0xA0;
    if (latin_control) {
      text += fmt::format("\\u{:04x}", static_cast<unsigned char>(name[++i]));
    } else if (byte < 0x20 || byte == 0x7F) {
      text += fmt::format("\\u{:04x}", byte);
    } else if (byte == '\\') {
      text += "\\\\";
    } else {
      text += name[i];
    }
  }
  if (end < name.size()) text += fmt::format("… ({} bytes)", name.size());
  return text;
}

std::string quote_name(std::string_view name) {
  return fmt::format("'{}'", printable_name(name));
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kShownDims = 16;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(shape.size(), kShownDims));
  return fmt::format("[{}{}]", fmt::join(shape.begin(), shape.begin() + shown, ", "),
                     shape.size() > kShownDims ? fmt::format(", … {} dimensions", shape.size()) : "");
}

std::string list_some(const std::vector<std::string>& entries, std::size_t shown) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(entries.size(), shown));
  std::string text = fmt::format("{}", fmt::join(entries.begin(), entries.begin() + count, ", "));
  if (entries.size() > shown) text += fmt::format(" and {} more", entries.size() - shown);
  return text;
}

bool is_plain_file_name(std::string_view name) {
  constexpr std::string_view kForbidden("/\\\0", 3);
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(kForbidden) == std::string_view::npos;
}

}  // namespace metrale::weights
