// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <weights/json.h>
#include <weights/names.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/weights/name_index.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/shard_index.h>

namespace metrale::weights {
namespace {

class IndexReader {
 public:
  // No name is longer without its escapes than the `text_bytes` of the whole text.
  IndexReader(JsonText& json, std::size_t text_bytes, const std::string& path) : json_(&json), path_(&path) {
    index_.names = std::make_unique_for_overwrite<char[]>(text_bytes);
    names_end_ = index_.names.get();
  }

  ShardIndex read() {
    bool has_map = false;
    bool has_metadata = false;
    json_->for_each_root_member([&](const JsonText::Key& key, JsonText::Value value) {
      if (key.name == "weight_map") {
        if (std::exchange(has_map, true)) json_->fail(key.at, "weight_map stands there twice");
        read_weight_map(value);
      } else if (key.name == "metadata") {
        if (std::exchange(has_metadata, true)) json_->fail(key.at, "metadata stands there twice");
        read_metadata(value);
      } else {
        json_->check(value, kMemberDepth);
      }
    });
    if (!has_map) throw FormatError(*path_, 0, "weight_map is missing");
    if (index_.entries.empty()) throw FormatError(*path_, 0, "weight_map is empty");
    index_names();
    sort_files();
    return std::move(index_);
  }

 private:
  // Members of the index stand at depth 2: a member of a member at 3.
  static constexpr int kMemberDepth = 2;
  using FileNumbers = std::map<std::string, std::uint32_t, std::less<>>;
  using FileNumber = FileNumbers::value_type;

  void read_weight_map(JsonText::Value value) {
    const JsonText::Subject subject{"member", "weight_map", ""};
    json_->for_each_member(value, subject, [&](const JsonText::Key& key, JsonText::Value member) {
      const char* at = JsonText::start_of(member);
      const std::string_view file = json_->string(member, {"weight_map entry", key.name, ""});
      // Most entries name the file of the one before.
      if (last_file_ == nullptr || last_file_->first != file) last_file_ = number_file(key, at, file);
      index_.entries.push_back({keep_name(key.name), last_file_->second});
      entry_offsets_.push_back(json_->offset_of(key.at));
    });
  }

  const FileNumber* number_file(const JsonText::Key& key, const char* at, std::string_view file) {
    if (!is_plain_file_name(file)) {
      json_->fail(at, fmt::format("tensor {}: {} is not the name of a file beside the index",
                                  quote_name(key.name), quote_name(file)));
    }
    auto known = file_numbers_.find(file);
    if (known == file_numbers_.end()) {
      known = file_numbers_.emplace(file, static_cast<std::uint32_t>(file_numbers_.size())).first;
    }
    return &*known;
  }

  std::string_view keep_name(std::string_view name) {
    char* const begin = names_end_;
    names_end_ = std::copy(name.begin(), name.end(), begin);
    return {begin, name.size()};
  }

  // Nothing here decides anything, so nothing of another type is refused.
  void read_metadata(JsonText::Value value) {
    if (!JsonText::is_object(value)) {
      json_->check(value, kMemberDepth);
      return;
    }
    json_->for_each_member(value, {"member", "metadata", ""},
                           [&](const JsonText::Key& key, JsonText::Value member) {
                             if (key.name == "total_size")
                               index_.total_size_bytes = JsonText::try_unsigned_integer(member);
                             if (key.name != "total_size" || !index_.total_size_bytes)
                               json_->check(member, kMemberDepth + 1);
                           });
  }

  void index_names() {
    const auto name_at = [&](std::uint32_t i) -> std::string_view { return index_.entries[i].tensor; };
    index_.by_name = NameIndex(static_cast<std::uint32_t>(index_.entries.size()), name_at);
    if (const auto pair = index_.by_name.duplicate(name_at)) {
      throw FormatError(*path_, entry_offsets_[pair->second],
                        fmt::format("duplicate tensor name {}, first used at byte {}",
                                    quote_name(name_at(pair->first)), entry_offsets_[pair->first]));
    }
  }

  void sort_files() {
    std::vector<std::uint32_t> sorted_position(file_numbers_.size());
    for (const auto& [file, number] : file_numbers_) {
      sorted_position[number] = static_cast<std::uint32_t>(index_.files.size());
      index_.files.push_back(file);
    }
    for (ShardIndex::Entry& entry : index_.entries) entry.file = sorted_position[entry.file];
  }

  JsonText* json_;
  const std::string* path_;
  ShardIndex index_;
  std::vector<std::uint64_t> entry_offsets_;
  char* names_end_ = nullptr;
  FileNumbers file_numbers_;  // in the order of their first use
  const FileNumber* last_file_ = nullptr;
};

void check_length(std::uint64_t text_bytes, const std::string& path) {
  if (text_bytes <= kMaxHeaderBytes) return;
  throw FormatError(path, 0, fmt::format("{} bytes long, at most {} are read", text_bytes, kMaxHeaderBytes));
}

ShardIndex parse_padded(const PaddedBuffer& buffer, const std::string& path) {
  JsonText json(buffer.text(), path, 0);
  return IndexReader(json, buffer.text().size(), path).read();
}

}  // namespace

ShardIndex ShardIndex::parse(std::string_view json, const std::string& path) {
  check_length(json.size(), path);
  PaddedBuffer buffer(json.size());
  std::copy(json.begin(), json.end(), reinterpret_cast<char*>(buffer.bytes().data()));
  return parse_padded(buffer, path);
}

ShardIndex ShardIndex::open(const std::string& path) {
  const UniqueFd fd = open_regular_file(path);
  const std::uint64_t size = identify(fd, path).size_bytes;
  check_length(size, path);
  PaddedBuffer buffer(size);
  read_exactly(fd, buffer.bytes(), 0, path);
  return parse_padded(buffer, path);
}

}  // namespace metrale::weights
