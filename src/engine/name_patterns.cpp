// SPDX-License-Identifier: Apache-2.0
#include "engine/name_patterns.h"

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

namespace metrale::engine {
namespace {

// "a.layers.12.b" -> "a.layers.*.b"; others stay as they are.
std::string pattern_of(const std::string& entry) {
  constexpr std::string_view kMark = ".layers.";
  const std::size_t mark = entry.find(kMark);
  if (mark == std::string::npos) return entry;
  const std::size_t begin = mark + kMark.size();
  const std::size_t end = entry.find_first_not_of("0123456789", begin);
  if (end == begin || end == std::string::npos) return entry;
  return entry.substr(0, begin) + "*" + entry.substr(end);
}

}  // namespace

std::string list_by_pattern(std::span<const std::string> entries) {
  struct Group {
    std::string pattern;
    const std::string* first;
    std::size_t count;
  };
  std::vector<Group> groups;
  std::unordered_map<std::string, std::size_t> positions;
  for (const std::string& entry : entries) {
    std::string pattern = pattern_of(entry);
    const auto [found, is_new] = positions.emplace(pattern, groups.size());
    if (is_new) groups.push_back({std::move(pattern), &entry, 0});
    ++groups[found->second].count;
  }
  std::string text;
  for (const Group& group : groups) {
    if (!text.empty()) text += "; ";
    text += group.count == 1 ? *group.first : fmt::format("{} ({} layers)", group.pattern, group.count);
  }
  return text;
}

}  // namespace metrale::engine
