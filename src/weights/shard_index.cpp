// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>
#include <weights/json.h>
#include <weights/names.h>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/weights/name_index.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/shard_index.h>

namespace metrale::weights {
namespace {

class IndexReader {
 public:
  IndexReader(JsonText& json, const std::string& path) : json_(&json), path_(&path) {}

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
    check_names();
    sort_files();
    return std::move(index_);
  }

 private:
  // Members of the index stand at depth 2: a member of a member at 3.
  static constexpr int kMemberDepth = 2;

  void read_weight_map(JsonText::Value value) {
    const JsonText::Subject subject{"member", "weight_map", ""};
    json_->for_each_member(value, subject, [&](const JsonText::Key& key, JsonText::Value member) {
      const char* at = JsonText::start_of(member);
      const std::string_view file = json_->string(member, {"weight_map entry", key.name, ""});
      if (!is_plain_file_name(file)) {
        json_->fail(at, fmt::format("tensor {}: {} is not the name of a file beside the index",
                                    quote_name(key.name), quote_name(file)));
      }
      auto known = file_numbers_.find(file);
      if (known == file_numbers_.end()) known = file_numbers_.emplace(file, file_numbers_.size()).first;
      index_.entries.push_back({std::string(key.name), static_cast<std::uint32_t>(known->second)});
      entry_offsets_.push_back(json_->offset_of(key.at));
    });
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

  void check_names() const {
    const auto name_at = [&](std::uint32_t i) -> std::string_view { return index_.entries[i].tensor; };
    const NameIndex names(static_cast<std::uint32_t>(index_.entries.size()), name_at);
    if (const auto pair = names.duplicate(name_at)) {
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
  std::map<std::string, std::size_t, std::less<>> file_numbers_;  // in the order of their first use
};

}  // namespace

ShardIndex ShardIndex::parse(std::string_view json, const std::string& path) {
  if (json.size() > kMaxHeaderBytes) {
    throw FormatError(path, 0,
                      fmt::format("{} bytes long, at most {} are read", json.size(), kMaxHeaderBytes));
  }
  PaddedBuffer buffer(json.size());
  std::copy(json.begin(), json.end(), reinterpret_cast<char*>(buffer.bytes().data()));
  JsonText text(buffer.text(), path, 0);
  return IndexReader(text, path).read();
}

}  // namespace metrale::weights
