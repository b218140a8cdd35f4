// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>
#include <weights/json.h>
#include <weights/json_text.h>
#include <weights/names.h>
#include <weights/tensor_bits.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/weights/atomic_file.h>
#include <metrale/weights/manifest.h>
#include <metrale/weights/name_index.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {
namespace {

constexpr std::string_view kFormatName = "metrale weight manifest";
constexpr std::string_view kHashName = "xxh3-64";
constexpr std::size_t kHashDigits = 16;

// Members seen of one object: none may stand there twice, some must be there.
class Members {
 public:
  Members(const JsonText& json, const char* at, std::string what)
      : json_(&json), at_(at), what_(std::move(what)) {}

  void see(const JsonText::Key& key) {
    // Far more than any version has: the search below stays short.
    constexpr std::size_t kMaxMembers = 64;
    if (seen_.size() == kMaxMembers)
      json_->fail(key.at, fmt::format("{}: more than {} members", what_, kMaxMembers));
    if (std::find(seen_.begin(), seen_.end(), key.name) != seen_.end()) {
      json_->fail(key.at, fmt::format("{}: member {} stands there twice", what_, quote_name(key.name)));
    }
    seen_.push_back(key.name);
  }
  void require(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (std::find(seen_.begin(), seen_.end(), name) == seen_.end())
        json_->fail(at_, fmt::format("{}: {} is missing", what_, name));
    }
  }

 private:
  const JsonText* json_;
  const char* at_;
  std::string what_;
  std::vector<std::string_view> seen_;
};

class ManifestReader {
 public:
  ManifestReader(JsonText& json, std::string_view text, const std::string& path)
      : json_(&json), start_(text.data()), path_(&path) {}

  WeightManifest read() {
    Members members(*json_, start_, "manifest");
    json_->for_each_root_member([&](const JsonText::Key& key, JsonText::Value value) {
      members.see(key);
      if (key.name == "format") {
        read_format(value);
      } else if (key.name == "version") {
        read_version(value);
      } else if (key.name == "hash") {
        read_hash_name(value);
      } else if (key.name == "index") {
        read_index(key, value);
      } else if (key.name == "files") {
        json_->for_each_element(value, {"member", "files", ""},
                                [&](JsonText::Value file) { read_file(file); });
      } else {
        json_->check(value, 2);
      }
    });
    members.require({"format", "version", "hash", "files"});
    const auto by_name = [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; };
    std::sort(manifest_.files.begin(), manifest_.files.end(), by_name);
    const auto same = std::adjacent_find(manifest_.files.begin(), manifest_.files.end(),
                                         [](const auto& a, const auto& b) { return a.name == b.name; });
    if (same != manifest_.files.end())
      json_->fail(start_, fmt::format("file {} stands there twice", quote_name(same->name)));
    return std::move(manifest_);
  }

 private:
  // What the file is comes first, so that another JSON file is not searched for members that it cannot have.
  void read_format(JsonText::Value value) {
    const char* at = JsonText::start_of(value);
    const std::string_view name = json_->string(value, {"member", "format", ""});
    if (name != kFormatName)
      json_->fail(at, fmt::format("this is no weight manifest: its format is {}", quote_name(name)));
  }

  void read_version(JsonText::Value value) {
    const std::uint64_t version = json_->unsigned_integer(value, {"member", "version", ""});
    if (version == kManifestVersion) return;
    throw Unsupported(
        fmt::format("'{}'", *path_),
        fmt::format("version {} of the weight manifest; this reads {}", version, kManifestVersion));
  }

  void read_hash_name(JsonText::Value value) {
    const std::string_view name = json_->string(value, {"member", "hash", ""});
    if (name == kHashName) return;
    throw Unsupported(fmt::format("'{}'", *path_),
                      fmt::format("hash {}; this has {}", quote_name(name), kHashName));
  }

  // A file lies beside the manifest's model, so its name is a plain one.
  std::string file_name(JsonText::Value value, const JsonText::Subject& what) {
    const char* at = JsonText::start_of(value);
    const std::string_view name = json_->string(value, what);
    if (!is_plain_file_name(name))
      json_->fail(at, fmt::format("{} {} is not the name of a file", what.text(), quote_name(name)));
    return std::string(name);
  }

  std::uint64_t hash(JsonText::Value value, const JsonText::Subject& what) {
    const char* at = JsonText::start_of(value);
    const std::string_view digits = json_->string(value, what);
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    std::uint64_t result = 0;
    if (digits.size() != kHashDigits || !std::all_of(digits.begin(), digits.end(), is_digit)) {
      json_->fail(at, fmt::format("{} must be {} digits of 0-9a-f, got {}", what.text(), kHashDigits,
                                  quote_name(digits)));
    }
    (void)std::from_chars(digits.data(), digits.data() + digits.size(), result, 16);
    return result;
  }

  void read_index(const JsonText::Key& key, JsonText::Value value) {
    ManifestIndex index;
    Members members(*json_, key.at, "index");
    json_->for_each_member(
        value, {"member", "index", ""}, [&](const JsonText::Key& member, JsonText::Value content) {
          members.see(member);
          if (member.name == "name") {
            index.name = file_name(content, {"member", "index", "name"});
          } else if (member.name == "size") {
            index.size_bytes = json_->unsigned_integer(content, {"member", "index", "size"});
          } else if (member.name == "xxh3") {
            index.hash = hash(content, {"member", "index", "xxh3"});
          } else {
            json_->check(content, 3);
          }
        });
    members.require({"name", "size", "xxh3"});
    manifest_.index = std::move(index);
  }

  void read_file(JsonText::Value value) {
    const char* at = JsonText::start_of(value);
    ManifestFile file;
    tensor_offsets_.clear();
    Members members(*json_, at, "a file");
    const auto about = [&](std::string_view part) { return JsonText::Subject{"file", file.name, part}; };
    json_->for_each_member(
        value, {"element of", "files", ""}, [&](const JsonText::Key& key, JsonText::Value content) {
          members.see(key);
          if (key.name == "name") {
            file.name = file_name(content, about("name"));
          } else if (key.name == "size") {
            file.size_bytes = json_->unsigned_integer(content, about("size"));
          } else if (key.name == "header_size") {
            file.header_bytes = json_->unsigned_integer(content, about("header_size"));
          } else if (key.name == "header_xxh3") {
            file.header_hash = hash(content, about("header_xxh3"));
          } else if (key.name == "tensors") {
            json_->for_each_member(
                content, about("tensors"),
                [&](const JsonText::Key& name, JsonText::Value tensor) { read_tensor(file, name, tensor); });
          } else {
            json_->check(content, 4);
          }
        });
    members.require({"name", "size", "header_size", "header_xxh3", "tensors"});
    place_tensors(file, at);
    manifest_.files.push_back(std::move(file));
  }

  void read_tensor(ManifestFile& file, const JsonText::Key& key, JsonText::Value value) {
    ManifestTensor tensor;
    tensor.name = key.name;
    const auto about = [&](std::string_view part) { return JsonText::Subject{"tensor", key.name, part}; };
    Members members(*json_, key.at, fmt::format("tensor {}", quote_name(key.name)));
    json_->for_each_member(value, about(""), [&](const JsonText::Key& member, JsonText::Value content) {
      members.see(member);
      if (member.name == "dtype") {
        tensor.dtype = read_dtype(content, about("dtype"));
      } else if (member.name == "shape") {
        json_->for_each_element(content, about("shape"), [&](JsonText::Value dim) {
          tensor.shape.push_back(json_->unsigned_integer(dim, about("shape")));
        });
      } else if (member.name == "xxh3") {
        tensor.hash = hash(content, about("xxh3"));
      } else {
        json_->check(content, 5);
      }
    });
    members.require({"dtype", "shape", "xxh3"});
    const auto bits = tensor_bits(tensor.shape, tensor.dtype);
    if (!bits || *bits % 8 != 0)
      json_->fail(key.at,
                  fmt::format("tensor {}: shape {} of {} takes no whole number of bytes",
                              quote_name(key.name), shape_text(tensor.shape), to_string(tensor.dtype)));
    tensor.size_bytes = *bits / 8;
    tensor_offsets_.push_back(key.at);
    file.tensors.push_back(std::move(tensor));
  }

  DType read_dtype(JsonText::Value value, const JsonText::Subject& what) {
    const char* at = JsonText::start_of(value);
    const std::string_view name = json_->string(value, what);
    const auto dtype = parse_dtype(name);
    if (!dtype) json_->fail(at, fmt::format("{}: unknown dtype {}", what.text(), quote_name(name)));
    return *dtype;
  }

  // The tensors follow each other behind the header and fill the file.
  void place_tensors(ManifestFile& file, const char* at) {
    std::optional<std::uint64_t> end = file.header_bytes;
    for (ManifestTensor& tensor : file.tensors) {
      if (!end) break;
      tensor.offset_bytes = *end;
      end = try_add(*end, tensor.size_bytes);
    }
    if (file.header_bytes < kLengthPrefixBytes || end != file.size_bytes) {
      json_->fail(at, fmt::format("file {}: size is {}, but its header takes {} and header and tensors {}",
                                  quote_name(file.name), file.size_bytes, file.header_bytes,
                                  end ? fmt::to_string(*end) : std::string("more than 64 bits count")));
    }
    const auto name_at = [&](std::uint32_t i) -> std::string_view { return file.tensors[i].name; };
    const NameIndex names(narrow<std::uint32_t>(file.tensors.size(), "too many tensors"), name_at);
    if (const auto pair = names.duplicate(name_at)) {
      json_->fail(tensor_offsets_[pair->second],
                  fmt::format("tensor {} stands there twice", quote_name(name_at(pair->first))));
    }
  }

  JsonText* json_;
  const char* start_;
  const std::string* path_;
  WeightManifest manifest_;
  std::vector<const char*> tensor_offsets_;  // of the file being read
};

std::string hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

void append_file(std::string& json, const ManifestFile& file) {
  json += "{\"name\":";
  append_json_string(json, file.name);
  json += fmt::format(",\"size\":{},\"header_size\":{},\"header_xxh3\":\"{}\",\"tensors\":{{",
                      file.size_bytes, file.header_bytes, hex(file.header_hash));
  std::string_view separator = "\n";
  for (const ManifestTensor& tensor : file.tensors) {
    json += std::exchange(separator, ",\n");
    append_json_string(json, tensor.name);
    json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"xxh3":"{}"}})", to_string(tensor.dtype),
                        fmt::join(tensor.shape, ","), hex(tensor.hash));
  }
  json += "}}";
}

}  // namespace

std::string default_manifest_path(const std::string& model_path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(model_path, ignored)) return model_path + ".manifest.json";
  return (std::filesystem::path(model_path) / kManifestName).string();
}

WeightManifest WeightManifest::parse(std::string_view json, const std::string& path) {
  if (json.size() > kMaxManifestBytes) {
    throw FormatError(path, 0,
                      fmt::format("{} bytes long, at most {} are read", json.size(), kMaxManifestBytes));
  }
  PaddedBuffer buffer(json.size());
  std::copy(json.begin(), json.end(), reinterpret_cast<char*>(buffer.bytes().data()));
  JsonText text(buffer.text(), path, 0);
  return ManifestReader(text, buffer.text(), path).read();
}

WeightManifest WeightManifest::read(const std::string& path) {
  return parse(read_text_file(path, kMaxManifestBytes), path);
}

std::string WeightManifest::to_json() const {
  std::string json =
      fmt::format(R"({{"format":"{}","version":{},"hash":"{}",)", kFormatName, kManifestVersion, kHashName);
  if (index) {
    json += "\n\"index\":{\"name\":";
    append_json_string(json, index->name);
    json += fmt::format(R"(,"size":{},"xxh3":"{}"}},)", index->size_bytes, hex(index->hash));
  }
  json += "\n\"files\":[";
  std::string_view separator = "\n";
  for (const ManifestFile& file : files) {
    json += std::exchange(separator, ",\n");
    append_file(json, file);
  }
  json += "]}\n";
  if (json.size() > kMaxManifestBytes) {
    throw InvalidArgument(fmt::format("the manifest would take {} bytes, at most {} can be read back",
                                      json.size(), kMaxManifestBytes));
  }
  return json;
}

void WeightManifest::write(const std::string& path) const {
  const std::string json = to_json();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(json)));
  file.commit();
}

}  // namespace metrale::weights
