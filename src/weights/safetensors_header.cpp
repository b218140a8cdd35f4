// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <weights/json.h>
#include <weights/names.h>
#include <weights/tensor_bits.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies");

struct DataOffsets {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend auto operator<=>(const DataOffsets&, const DataOffsets&) = default;
};

struct ParsedTensor {
  TensorInfo info;
  DataOffsets data;
  std::uint64_t key_offset = 0;  // of the name, in the file
};

// The members of a tensor's description stand at this depth: header, tensor, member.
constexpr int kTensorMemberDepth = 3;

// From JSON to tensors in the order of the text; their sizes and places are not checked here.
class HeaderReader {
 public:
  HeaderReader(JsonText& json, std::map<std::string, std::string, std::less<>>& metadata)
      : json_(&json), metadata_(&metadata) {}

  std::vector<ParsedTensor> read() {
    std::vector<ParsedTensor> tensors;
    bool metadata_seen = false;
    json_->for_each_root_member([&](const JsonText::Key& key, JsonText::Value value) {
      if (key.name != kMetadataKey) {
        tensors.push_back(read_tensor(key, value));
        return;
      }
      if (std::exchange(metadata_seen, true)) json_->fail(key.at, "__metadata__ stands there twice");
      read_metadata(value);
    });
    return tensors;
  }

 private:
  void read_metadata(JsonText::Value value) {
    if (json_->consume_null(value)) return;
    const JsonText::Subject subject{"member", kMetadataKey, ""};
    json_->for_each_member(value, subject, [&](const JsonText::Key& key, JsonText::Value member) {
      const std::string_view text = json_->string(member, {"metadata", key.name, ""});
      if (!metadata_->emplace(key.name, text).second) {
        json_->fail(key.at, fmt::format("metadata {} stands there twice", quote_name(key.name)));
      }
    });
  }

  ParsedTensor read_tensor(const JsonText::Key& key, JsonText::Value value) {
    ParsedTensor tensor;
    tensor.info.name = key.name;
    tensor.key_offset = json_->offset_of(key.at);
    members_.clear();
    json_->for_each_member(value, about(key, ""), [&](const JsonText::Key& member, JsonText::Value content) {
      members_.push_back(member);
      if (member.name == "dtype") {
        tensor.info.dtype = read_dtype(key, content);
      } else if (member.name == "shape") {
        json_->for_each_element(content, about(key, "shape"), [&](JsonText::Value dim) {
          tensor.info.shape.push_back(json_->unsigned_integer(dim, about(key, "shape")));
        });
      } else if (member.name == "data_offsets") {
        tensor.data = read_data_offsets(key, content);
      } else {
        json_->check(content, kTensorMemberDepth);
      }
    });
    check_members(key);
    return tensor;
  }

  // Each of the three members must be there, and no member twice.
  void check_members(const JsonText::Key& key) {
    constexpr std::array<std::string_view, 3> kMembers{"dtype", "shape", "data_offsets"};
    for (const std::string_view wanted : kMembers) {
      const auto has_name = [&](const JsonText::Key& member) { return member.name == wanted; };
      if (std::none_of(members_.begin(), members_.end(), has_name)) {
        json_->fail(key.at, about(key, wanted).text() + " is missing");
      }
    }
    if (members_.size() == kMembers.size()) return;
    std::sort(members_.begin(), members_.end(), [](const JsonText::Key& a, const JsonText::Key& b) {
      return a.name != b.name ? a.name < b.name : a.at < b.at;
    });
    const auto same_name = [](const JsonText::Key& a, const JsonText::Key& b) { return a.name == b.name; };
    const auto first = std::adjacent_find(members_.begin(), members_.end(), same_name);
    if (first == members_.end()) return;
    json_->fail((first + 1)->at, fmt::format("tensor {}: member {} stands there twice", quote_name(key.name),
                                             quote_name(first->name)));
  }

  DType read_dtype(const JsonText::Key& key, JsonText::Value value) {
    const char* at = JsonText::start_of(value);
    const std::string_view name = json_->string(value, about(key, "dtype"));
    const std::optional<DType> dtype = parse_dtype(name);
    if (!dtype)
      json_->fail(at, fmt::format("tensor {}: unknown dtype {}", quote_name(key.name), quote_name(name)));
    return *dtype;
  }

  DataOffsets read_data_offsets(const JsonText::Key& key, JsonText::Value value) {
    const char* at = JsonText::start_of(value);
    const JsonText::Subject subject = about(key, "data_offsets");
    std::array<std::uint64_t, 2> offsets{};
    std::size_t count = 0;
    json_->for_each_element(value, subject, [&](JsonText::Value offset) {
      const std::uint64_t number = json_->unsigned_integer(offset, subject);
      if (count < offsets.size()) offsets[count] = number;
      ++count;
    });
    if (count != offsets.size())
      json_->fail(at, fmt::format("{} must be 2 numbers, got {}", subject.text(), count));
    return {offsets[0], offsets[1]};
  }

  [[nodiscard]] static JsonText::Subject about(const JsonText::Key& key, std::string_view part) {
    return {"tensor", key.name, part};
  }

  JsonText* json_;
  std::map<std::string, std::string, std::less<>>* metadata_;
  std::vector<JsonText::Key> members_;  // of the tensor being read
};

NameIndex index_names(const std::vector<ParsedTensor>& tensors, const std::string& path) {
  const auto name_at = [&](std::uint32_t i) -> std::string_view { return tensors[i].info.name; };
  NameIndex index(static_cast<std::uint32_t>(tensors.size()), name_at);
  if (const auto pair = index.duplicate(name_at)) {
    const auto [first, second] =
        std::minmax(tensors[pair->first].key_offset, tensors[pair->second].key_offset);
    throw FormatError(path, second,
                      fmt::format("duplicate tensor name {}, first used at byte {}",
                                  quote_name(name_at(pair->first)), first));
  }
  return index;
}

// Whether `tensor` begins where the data so far ended.
void check_place(const ParsedTensor& tensor, const ParsedTensor* previous, const std::string& path) {
  const std::uint64_t expected = previous == nullptr ? 0 : previous->data.end;
  if (tensor.data.begin == expected && tensor.data.end >= expected) return;
  const std::string before =
      previous == nullptr ? "the data begin" : fmt::format("{} ends", quote_name(previous->info.name));
  const char* problem = tensor.data.begin < expected   ? "overlap"
                        : tensor.data.begin > expected ? "leave a hole"
                                                       : "run backwards";
  throw FormatError(path, tensor.key_offset,
                    fmt::format("tensor {}: data_offsets [{}, {}] {}: {} at {}", quote_name(tensor.info.name),
                                tensor.data.begin, tensor.data.end, problem, before, expected));
}

[[noreturn]] void throw_bad_size(const ParsedTensor& tensor, const std::string& path,
                                 std::string_view problem) {
  throw FormatError(path, tensor.key_offset,
                    fmt::format("tensor {}: shape {} of {} {}", quote_name(tensor.info.name),
                                shape_text(tensor.info.shape), to_string(tensor.info.dtype), problem));
}

// Whether the span is what shape and dtype take.
void check_size(const ParsedTensor& tensor, const std::string& path) {
  const std::optional<std::uint64_t> total = tensor_bits(tensor.info.shape, tensor.info.dtype);
  if (!total) throw_bad_size(tensor, path, "overflows 64 bits");
  if (*total % 8 != 0)
    throw_bad_size(tensor, path, fmt::format("does not fill whole bytes: {} bits", *total));
  const std::uint64_t span = tensor.data.end - tensor.data.begin;
  if (*total / 8 != span)
    throw_bad_size(tensor, path, fmt::format("takes {} bytes, data_offsets give {}", *total / 8, span));
}

[[noreturn]] void throw_truncated(const std::vector<ParsedTensor>& tensors, std::uint64_t held_bytes,
                                  std::uint64_t data_start, const std::string& path) {
  const auto cut = std::find_if(tensors.begin(), tensors.end(),
                                [&](const ParsedTensor& tensor) { return tensor.data.end > held_bytes; });
  throw FormatError(
      path, data_start + held_bytes,
      fmt::format("truncated: {} bytes of data needed, {} there; tensor {} is the first that is cut",
                  tensors.back().data.end, held_bytes, quote_name(cut->info.name)));
}

}  // namespace

std::uint64_t TensorInfo::num_elems() const {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : shape) count *= dim;
  return count;
}

std::uint64_t SafetensorsHeader::parse_length(std::span<const std::byte> prefix,
                                              std::uint64_t container_size_bytes, const std::string& path,
                                              const SafetensorsOptions& options) {
  const std::uint64_t at = options.container_offset_bytes;
  (void)checked_add(at, container_size_bytes);
  if (prefix.size() < kLengthPrefixBytes || container_size_bytes < kLengthPrefixBytes) {
    throw FormatError(
        path, at,
        fmt::format("too short for a safetensors file: {} bytes, the header's length alone takes {}",
                    std::min<std::uint64_t>(prefix.size(), container_size_bytes), kLengthPrefixBytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), kLengthPrefixBytes);
  if (std::memcmp(prefix.data(), "version ", kLengthPrefixBytes) == 0) {
    throw FormatError(path, at, "this is a Git LFS pointer and not the file: fetch it with 'git lfs pull'");
  }
  if (length > kMaxHeaderBytes) {
    throw FormatError(
        path, at, fmt::format("the header is {} bytes long, at most {} are read", length, kMaxHeaderBytes));
  }
  if (length > container_size_bytes - kLengthPrefixBytes) {
    throw FormatError(
        path, at,
        fmt::format("truncated: the header takes {} bytes after the first {}, the file has {} in all", length,
                    kLengthPrefixBytes, container_size_bytes));
  }
  return length;
}

SafetensorsHeader SafetensorsHeader::parse(std::span<const std::byte> header_json,
                                           std::uint64_t container_size_bytes, const std::string& path,
                                           const SafetensorsOptions& options) {
  const std::uint64_t length = header_json.size();
  std::array<std::byte, kLengthPrefixBytes> prefix{};
  std::memcpy(prefix.data(), &length, sizeof(length));
  (void)parse_length(prefix, container_size_bytes, path, options);
  PaddedBuffer buffer(header_json.size());
  std::copy(header_json.begin(), header_json.end(), buffer.bytes().begin());
  return parse_padded(buffer.text(), container_size_bytes, path, options);
}

SafetensorsHeader SafetensorsHeader::parse_padded(std::string_view text, std::uint64_t container_size_bytes,
                                                  const std::string& path,
                                                  const SafetensorsOptions& options) {
  SafetensorsHeader header;
  const std::uint64_t text_offset = options.container_offset_bytes + kLengthPrefixBytes;
  std::vector<ParsedTensor> parsed;
  {
    JsonText json(text, path, text_offset);
    parsed = HeaderReader(json, header.metadata_).read();
  }
  const auto by_place = [](const ParsedTensor& a, const ParsedTensor& b) { return a.data < b.data; };
  if (!std::is_sorted(parsed.begin(), parsed.end(), by_place)) {
    std::stable_sort(parsed.begin(), parsed.end(), by_place);
  }
  header.by_name_ = index_names(parsed, path);

  const std::uint64_t data_start = text_offset + text.size();
  std::uint64_t end = 0;
  const ParsedTensor* previous = nullptr;
  for (const ParsedTensor& tensor : parsed) {
    check_place(tensor, previous, path);
    check_size(tensor, path);
    end = tensor.data.end;
    previous = &tensor;
  }
  const std::uint64_t held = container_size_bytes - kLengthPrefixBytes - text.size();
  if (end > held) throw_truncated(parsed, held, data_start, path);
  if (end < held && options.trailing_bytes == TrailingBytes::kRefuse) {
    throw FormatError(path, data_start + end, fmt::format("{} bytes follow the last tensor", held - end));
  }

  header.data_bytes_ = end;
  header.tensors_.reserve(parsed.size());
  for (ParsedTensor& tensor : parsed) {
    tensor.info.offset_bytes = data_start + tensor.data.begin;
    tensor.info.size_bytes = tensor.data.end - tensor.data.begin;
    header.tensors_.push_back(std::move(tensor.info));
  }
  return header;
}

const TensorInfo* SafetensorsHeader::find(std::string_view name) const {
  const auto found =
      by_name_.find(name, [&](std::uint32_t i) -> std::string_view { return tensors_[i].name; });
  return found ? &tensors_[*found] : nullptr;
}

}  // namespace metrale::weights
