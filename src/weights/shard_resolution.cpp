// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <weights/names.h>
#include <weights/shard_resolution.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::weights {
namespace {

constexpr std::array<const char*, 2> kIndexNames{"model.safetensors.index.json",
                                                 "consolidated.safetensors.index.json"};
constexpr const char* kSingleFile = "model.safetensors";
// Without an index the first of these that any file matches is the model; a second one would be a twin of it.
constexpr std::array<std::string_view, 3> kShardPrefixes{"model.safetensors-", "model-", "consolidated-"};
constexpr std::string_view kShardSuffix = ".safetensors";

bool is_shard_name(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.ends_with(kShardSuffix) &&
         name.size() >= prefix.size() + kShardSuffix.size();
}

// Whether the directory has an entry of this name, be it a link that leads nowhere.
bool has_entry(const std::string& path) {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0;
}

bool is_reachable(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 || errno != ENOENT;
}

ShardSet look_for(const std::string& directory, ShardSet set, std::string named_by) {
  std::copy_if(set.files.begin(), set.files.end(), std::back_inserter(set.missing),
               [&](const std::string& file) { return !is_reachable(path_within(directory, file)); });
  set.named_by = std::move(named_by);
  return set;
}

// model-00002-of-00005.safetensors
struct PartName {
  std::string stem;  // up to the number
  std::size_t width = 0;
  std::uint32_t number = 0;
  std::uint32_t total = 0;

  [[nodiscard]] std::string with_number(std::uint32_t other) const {
    return fmt::format("{}{:0{}}-of-{:0{}}{}", stem, other, width, total, width, kShardSuffix);
  }
};

std::optional<std::uint32_t> parse_digits(std::string_view text) {
  constexpr std::size_t kMaxDigits = 5;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && text.size() <= kMaxDigits ? std::optional(number) : std::nullopt;
}

std::optional<PartName> parse_part_name(std::string_view name) {
  name.remove_suffix(kShardSuffix.size());
  const std::size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  const std::string_view before = name.substr(0, of);
  const std::string_view total = name.substr(of + std::string_view("-of-").size());
  const std::string_view number = before.substr(before.find_last_not_of("0123456789") + 1);
  const auto parsed_number = parse_digits(number);
  const auto parsed_total = parse_digits(total);
  if (!parsed_number || !parsed_total || number.size() != total.size()) return std::nullopt;
  return PartName{std::string(before.substr(0, before.size() - number.size())), number.size(), *parsed_number,
                  *parsed_total};
}

// The names that a split needs, beside those that are there: numbers count from 0 or from 1.
std::vector<std::string> complete_split(const std::string& directory, const std::vector<std::string>& names) {
  std::optional<PartName> split;
  bool from_zero = false;
  for (const std::string& name : names) {
    const std::optional<PartName> part = parse_part_name(name);
    if (!part) continue;
    if (split && (split->stem != part->stem || split->total != part->total)) {
      throw FormatError(
          directory, 0,
          fmt::format("{} and {} belong to different splits, and no index says which is the model",
                      quote_name(split->with_number(split->number)), quote_name(name)));
    }
    split = part;
    from_zero = from_zero || part->number == 0;
  }
  std::set<std::string> all(names.begin(), names.end());
  for (std::uint32_t i = 0; split && i < split->total; ++i)
    all.insert(split->with_number(from_zero ? i : i + 1));
  return {all.begin(), all.end()};
}

std::vector<std::string> list_directory(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  if (error) throw IoError("cannot list", directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

ShardSet resolve_indexed(const std::string& directory, const std::string& index_name) {
  ShardSet set;
  set.index_path = path_within(directory, index_name);
  set.index = ShardIndex::open(set.index_path);
  set.files = set.index->files;
  return look_for(directory, std::move(set), fmt::format("named by {}", index_name));
}

ShardSet find_model_shards(const std::string& directory) {
  for (const char* name : kIndexNames) {
    if (has_entry(path_within(directory, name))) return resolve_indexed(directory, name);
  }
  if (has_entry(path_within(directory, kSingleFile)))
    return look_for(directory, {{kSingleFile}, std::nullopt, ""}, "of the model");
  const std::vector<std::string> names = list_directory(directory);
  for (const std::string_view prefix : kShardPrefixes) {
    std::vector<std::string> matching;
    std::copy_if(names.begin(), names.end(), std::back_inserter(matching),
                 [&](const std::string& name) { return is_shard_name(name, prefix); });
    if (matching.empty()) continue;
    return look_for(directory, {complete_split(directory, matching), std::nullopt, ""}, "of the split");
  }
  throw IoError("cannot load", directory, ENOENT, 0,
                fmt::format("no {}, {}, {} and no split of it; only safetensors files are read",
                            kIndexNames[0], kIndexNames[1], kSingleFile));
}

}  // namespace

std::string path_within(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

bool is_model_file_name(std::string_view name) {
  if (name == kSingleFile || name == kExtraFile ||
      std::find(kIndexNames.begin(), kIndexNames.end(), name) != kIndexNames.end())
    return true;
  return std::any_of(kShardPrefixes.begin(), kShardPrefixes.end(),
                     [&](std::string_view prefix) { return is_shard_name(name, prefix); });
}

ShardSet find_shards(const std::string& directory) {
  ShardSet set = find_model_shards(directory);
  // One that an index names is a file like the others.
  set.has_extra = has_entry(path_within(directory, std::string(kExtraFile))) &&
                  std::find(set.files.begin(), set.files.end(), kExtraFile) == set.files.end();
  return set;
}

std::optional<ShardSet> single_file(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) throw IoError("cannot open", path, errno);
  if (S_ISDIR(info.st_mode)) return std::nullopt;
  if (!path.ends_with(".safetensors")) {
    throw InvalidArgument(fmt::format("'{}' is neither a directory nor a .safetensors file", path));
  }
  return ShardSet{{std::filesystem::path(path).filename().string()}, std::nullopt, ""};
}

std::string directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

ShardSet resolve_shards(const std::string& directory) {
  ShardSet set = find_shards(directory);
  if (set.missing.empty()) return set;
  std::vector<std::string> names;
  for (const std::string& file : set.missing) names.push_back(quote_name(file));
  throw IoError("cannot load", directory, ENOENT, 0,
                fmt::format("{} of {} files {} are missing: {}", names.size(), set.files.size(), set.named_by,
                            list_some(names, kMostNamedFiles)));
}

}  // namespace metrale::weights
