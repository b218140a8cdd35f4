// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <sys/stat.h>
#include <thread>
#include <utility>
#include <weights/names.h>
#include <weights/shard_resolution.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/base/thread_pool.h>
#include <metrale/weights/model_directory.h>

namespace metrale::weights {
namespace {

constexpr std::size_t kMostOpeners = 8;

// Side by side: of many tensors, the headers take longer than the disk. Throws the first file's error.
std::vector<SafetensorsFile> open_files(const std::string& directory, const std::vector<std::string>& names,
                                        TrailingBytes trailing_bytes) {
  std::vector<std::optional<SafetensorsFile>> opened(names.size());
  std::vector<std::exception_ptr> errors(names.size());
  const auto open = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      try {
        opened[i] =
            SafetensorsFile::open(path_within(directory, names[i]), {.trailing_bytes = trailing_bytes});
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  if (names.size() == 1) {
    open(0, 1);
  } else {
    const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
    try {
      ThreadPool pool(static_cast<unsigned>(std::min({names.size(), processors, kMostOpeners})));
      pool.parallel_for(names.size(), 1, open);
    } catch (const DeviceError& error) {
      log().info("shards are opened one after the other: {}", error.what());
      open(0, names.size());
    }
  }
  std::vector<SafetensorsFile> files;
  files.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (errors[i] != nullptr) std::rethrow_exception(errors[i]);
    files.push_back(std::move(opened[i]).value());
  }
  return files;
}

std::vector<TensorRef> all_tensors(const std::vector<SafetensorsFile>& files) {
  std::vector<TensorRef> tensors;
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    for (const TensorInfo& info : files[i].header().tensors()) tensors.emplace_back(info, i);
  }
  return tensors;
}

// The tensors that the index assigns, which must all be where it says. Puts its names in their order.
std::vector<TensorRef> assigned_tensors(const std::vector<SafetensorsFile>& files, ShardIndex& index,
                                        const std::string& index_path) {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::vector<std::uint32_t>> entry_of(files.size());  // by the tensor's position in its file
  for (std::size_t i = 0; i < files.size(); ++i)
    entry_of[i].assign(files[i].header().tensors().size(), kNone);
  std::vector<std::string> absent;
  for (std::uint32_t i = 0; i < index.entries.size(); ++i) {
    const ShardIndex::Entry& entry = index.entries[i];
    const SafetensorsHeader& header = files[entry.file].header();
    if (const TensorInfo* info = header.find(entry.tensor)) {
      entry_of[entry.file][static_cast<std::size_t>(info - header.tensors().data())] = i;
    } else {
      absent.push_back(
          fmt::format("{} from {}", quote_name(entry.tensor), quote_name(index.files[entry.file])));
    }
  }
  if (!absent.empty()) {
    throw FormatError(index_path, 0,
                      fmt::format("{} tensors are not in the file that weight_map names: {}", absent.size(),
                                  list_some(absent)));
  }
  std::vector<TensorRef> tensors;
  tensors.reserve(index.entries.size());
  std::vector<std::uint32_t> position_of(index.entries.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < entry_of[i].size(); ++j) {
      if (entry_of[i][j] == kNone) continue;
      position_of[entry_of[i][j]] = static_cast<std::uint32_t>(tensors.size());
      tensors.emplace_back(files[i].header().tensors()[j], i);
    }
  }
  index.by_name.reorder(position_of);
  return tensors;
}

// A sparse file has no size that it could not claim; several of them pass what 64 bits count.
std::uint64_t bytes_of(const std::vector<TensorRef>& tensors, const std::string& path) {
  std::uint64_t bytes = 0;
  for (const TensorRef& tensor : tensors) {
    const auto sum = try_add(bytes, tensor.info().size_bytes);
    if (!sum) throw FormatError(path, 0, "the tensors take more bytes in all than 64 bits can count");
    bytes = *sum;
  }
  return bytes;
}

void warn_unassigned(const std::vector<SafetensorsFile>& files, std::size_t assigned,
                     const std::string& index_path) {
  std::size_t held = 0;
  for (const SafetensorsFile& file : files) held += file.header().tensors().size();
  if (held == assigned) return;
  log().warn(
      "'{}': {} of the {} tensors in its files are not assigned to the file that holds them; they are not "
      "loaded",
      index_path, held - assigned, held);
}

}  // namespace

ModelDirectory ModelDirectory::open(const std::string& path, TrailingBytes trailing_bytes) {
  std::optional<ShardSet> single = single_file(path);
  ModelDirectory directory;
  directory.path_ = single ? directory_of(path) : path;
  ShardSet shards = single ? std::move(*single) : resolve_shards(path);
  directory.files_ = open_files(directory.path_, shards.files, trailing_bytes);
  if (shards.index) {
    directory.tensors_ = assigned_tensors(directory.files_, *shards.index, shards.index_path);
    directory.by_name_ = std::move(shards.index->by_name);
    warn_unassigned(directory.files_, directory.tensors_.size(), shards.index_path);
  } else {
    directory.tensors_ = all_tensors(directory.files_);
  }
  const std::uint64_t indexed_bytes = bytes_of(directory.tensors_, path);
  if (shards.index && shards.index->total_size_bytes.value_or(indexed_bytes) != indexed_bytes) {
    log().warn("'{}': total_size is {}, the tensors take {} bytes", shards.index_path,
               shards.index->total_size_bytes.value(), indexed_bytes);
  }
  if (shards.has_extra) directory.add_extra(trailing_bytes);
  directory.total_bytes_ = bytes_of(directory.tensors_, path);
  if (!shards.index || shards.has_extra) directory.index_names();
  return directory;
}

void ModelDirectory::add_extra(TrailingBytes trailing_bytes) {
  const std::string path = path_within(path_, std::string(kExtraFile));
  extra_file_ = static_cast<std::uint32_t>(files_.size());
  files_.push_back(SafetensorsFile::open(path, {.trailing_bytes = trailing_bytes}));
  const SafetensorsHeader& extra = files_.back().header();
  const std::size_t before = tensors_.size();
  std::erase_if(tensors_, [&](const TensorRef& tensor) { return extra.find(tensor.info().name) != nullptr; });
  if (tensors_.size() != before) {
    log().warn("'{}' takes the place of {} tensors of other files", path, before - tensors_.size());
  }
  for (const TensorInfo& info : extra.tensors()) tensors_.emplace_back(info, *extra_file_);
}

void ModelDirectory::index_names() {
  const auto name_at = [&](std::uint32_t i) -> std::string_view { return tensors_[i].info().name; };
  by_name_ = NameIndex(static_cast<std::uint32_t>(tensors_.size()), name_at);
  if (const auto pair = by_name_.duplicate(name_at)) {
    throw FormatError(
        path_, 0,
        fmt::format("tensor {} is in {} and in {}, and no index says which one counts",
                    quote_name(name_at(pair->first)), quote_name(file(tensors_[pair->first]).path()),
                    quote_name(file(tensors_[pair->second]).path())));
  }
}

const TensorRef* ModelDirectory::find(std::string_view name) const {
  const auto found =
      by_name_.find(name, [&](std::uint32_t i) -> std::string_view { return tensors_[i].info().name; });
  return found ? &tensors_[*found] : nullptr;
}

std::optional<std::string> ModelDirectory::path_of(const std::string& name) const {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw InvalidArgument(fmt::format("{} is not the name of a file in a model directory", quote_name(name)));
  }
  const std::string path = path_within(path_, name);
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? std::optional(path) : std::nullopt;
}

std::string ModelDirectory::config_path() const {
  const std::optional<std::string> path = path_of("config.json");
  if (!path) throw IoError("cannot open", path_within(path_, "config.json"), ENOENT);
  return *path;
}

void ModelDirectory::check_unchanged() const {
  for (const SafetensorsFile& file : files_) file.check_unchanged();
}

}  // namespace metrale::weights
