// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <weights/json_text.h>
#include <weights/names.h>
#include <weights/shard_resolution.h>
#include <weights/tensor_bits.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/weights/manifest.h>
#include <metrale/weights/model_output.h>

namespace metrale::weights {

namespace fs = std::filesystem;

namespace {

// Inside the folder that a model grows in: what the new files take the place of, until all of them are there.
constexpr std::string_view kOldFolder = ".old";

}  // namespace

std::uint64_t size_bytes(const TensorSpec& tensor) {
  const auto total = tensor_bits(tensor.shape, tensor.dtype);
  if (!total || *total % 8 != 0) {
    throw InvalidArgument(fmt::format("tensor {}: shape {} of {} takes no whole number of bytes",
                                      quote_name(tensor.name), shape_text(tensor.shape),
                                      to_string(tensor.dtype)));
  }
  return *total / 8;
}

std::vector<Shard> cut_into_shards(std::span<const TensorSpec> tensors, std::uint64_t max_bytes) {
  std::vector<Shard> shards(1);
  std::uint64_t in_shard = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t bytes = size_bytes(tensor);
    if (!shards.back().tensors.empty() && checked_add(in_shard, bytes) > max_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().tensors.push_back(tensor);
    in_shard = checked_add(in_shard, bytes);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

std::string shard_index_json(std::span<const Shard> shards) {
  std::map<std::string_view, std::string_view> files;  // by tensor
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) {
      files.emplace(tensor.name, shard.file);
      total = checked_add(total, size_bytes(tensor));
    }
  }
  std::string json =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  std::string_view separator = "\n    ";
  for (const auto& [tensor, file] : files) {
    json += std::exchange(separator, ",\n    ");
    append_ascii_json_string(json, tensor);
    json += ": ";
    append_ascii_json_string(json, file);
  }
  return json + (files.empty() ? "}\n}\n" : "\n  }\n}\n");
}

ModelStaging::ModelStaging(const std::string& directory, ExistingFiles existing)
    : target_(directory), existing_(existing) {
  const auto failed = [&](const char* what, const std::error_code& error) {
    return IoError(what, directory, error.value());
  };
  std::error_code error;
  made_target_ = fs::create_directory(target_, error);
  if (error && !fs::exists(target_)) throw failed("cannot create", error);
  if (!fs::is_directory(target_)) throw IoError("cannot write into", directory, ENOTDIR);
  const bool is_free = made_target_ || existing_ == ExistingFiles::kReplace || fs::is_empty(target_, error);
  if (error) throw failed("cannot list", error);
  if (!is_free) {
    throw InvalidArgument(
        fmt::format("'{}' is not empty (it holds '{}'): a model is written into a new directory", directory,
                    fs::directory_iterator(target_)->path().filename().string()));
  }
  path_ = target_ / fmt::format(".{}.part", ::getpid());
  fs::create_directory(path_, error);
  if (error) {
    remove_all();
    throw failed("cannot write into", error);
  }
}

ModelStaging::~ModelStaging() {
  if (!published_) remove_all();
}

std::string ModelStaging::file(const std::string& name) {
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
    throw InvalidArgument(fmt::format("a model has one file {}, not two", quote_name(name)));
  }
  names_.push_back(name);
  return (path_ / name).string();
}

void ModelStaging::require_room(std::uint64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error || space.available >= bytes) return;
  throw IoError("cannot write a model into", target_.string(), ENOSPC, 0,
                fmt::format("it takes {} bytes, {} are free", bytes, space.available));
}

void ModelStaging::publish() {
  if (existing_ == ExistingFiles::kReplace) set_old_model_aside();
  for (; moved_ < names_.size(); ++moved_) {
    std::error_code error;
    fs::rename(path_ / names_[moved_], target_ / names_[moved_], error);
    if (error) throw IoError("cannot create", (target_ / names_[moved_]).string(), error.value());
  }
  published_ = true;
  std::error_code left;
  fs::remove_all(path_, left);
  if (left) log().warn("'{}' is left, with files of the old model: {}", path_.string(), left.message());
}

std::vector<std::string> ModelStaging::old_files() const {
  std::vector<std::string> old;
  std::error_code error;
  for (fs::directory_iterator entry(target_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_replaced = std::find(names_.begin(), names_.end(), name) != names_.end();
    if (!is_replaced && !is_model_file_name(name) && name != kManifestName) continue;
    if (fs::is_directory(entry->symlink_status())) {
      throw IoError("cannot replace", entry->path().string(), EISDIR, 0, "move the folder away first");
    }
    old.push_back(name);
  }
  if (error) throw IoError("cannot list", target_.string(), error.value());
  std::stable_partition(old.begin(), old.end(),
                        [](const std::string& name) { return name.ends_with(".json"); });
  return old;
}

void ModelStaging::set_old_model_aside() {
  const std::vector<std::string> old = old_files();
  if (old.empty()) return;
  std::error_code error;
  fs::create_directory(path_ / kOldFolder, error);
  if (error) throw IoError("cannot create", (path_ / kOldFolder).string(), error.value());
  for (const std::string& name : old) {
    fs::rename(target_ / name, path_ / kOldFolder / name, error);
    if (error) throw IoError("cannot replace", (target_ / name).string(), error.value());
    set_aside_.push_back(name);
  }
}

// The old model is whole again before its index is there.
bool ModelStaging::put_old_model_back() noexcept {
  while (!set_aside_.empty()) {
    std::error_code error;
    fs::rename(path_ / kOldFolder / set_aside_.back(), target_ / set_aside_.back(), error);
    if (error) {
      log().error("'{}' could not be put back ({}); it is in '{}'", (target_ / set_aside_.back()).string(),
                  error.message(), (path_ / kOldFolder).string());
      return false;
    }
    set_aside_.pop_back();
  }
  return true;
}

void ModelStaging::remove_all() noexcept {
  std::error_code ignored;
  for (std::size_t i = 0; i < moved_; ++i) fs::remove(target_ / names_[i], ignored);
  if (!put_old_model_back()) return;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (made_target_) fs::remove(target_, ignored);
}

}  // namespace metrale::weights
