// SPDX-License-Identifier: Apache-2.0
#include "model_converter.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/weights/atomic_file.h>
#include <metrale/weights/manifest.h>
#include <metrale/weights/model_directory.h>
#include <metrale/weights/model_output.h>
#include <metrale/weights/safetensors_writer.h>
#include <metrale/weights/shard_index.h>

#include "element_converter.h"
#include "glob.h"

namespace metrale::app {
namespace {

namespace fs = std::filesystem;
using weights::DType;
using weights::ModelDirectory;
using weights::Shard;
using weights::TensorRef;
using weights::TensorSpec;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;        // a multiple of every element
constexpr std::uint64_t kRoomToSpare = std::uint64_t{64} << 10;  // what the file system adds
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20;

// One file of the result.
struct OutFile {
  Shard shard;
  std::vector<const TensorRef*> sources;  // of shard.tensors
  weights::SafetensorsMetadata metadata;
  weights::SafetensorsLayout layout;
};

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

// As config.json spells it.
const char* config_name(quant::ElementType dtype) {
  switch (dtype) {
    case quant::ElementType::kF32:
      return "float32";
    case quant::ElementType::kBf16:
      return "bfloat16";
    case quant::ElementType::kF16:
      return "float16";
  }
  return "float32";
}

// Weights in any format, their indexes and what says how they should be: not these weights any more.
bool holds_weights(const std::string& name) {
  static constexpr std::array kSuffixes{".safetensors", ".index.json", ".manifest.json", ".bin",  ".pt",
                                        ".pth",         ".ckpt",       ".gguf",          ".ggml", ".h5",
                                        ".onnx",        ".msgpack",    ".onnx_data"};
  return name == weights::kManifestName ||
         std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](const char* suffix) { return name.ends_with(suffix); });
}

class Conversion {
 public:
  Conversion(const std::string& in, std::string out, const ConvertOptions& options)
      : source_(ModelDirectory::open(in)),
        is_directory_(fs::is_directory(in)),
        out_(std::move(out)),
        options_(&options) {
    std::error_code absent;
    if (fs::equivalent(out_, source_.path(), absent))
      throw InvalidArgument(
          fmt::format("'{}' is the source's directory; the result needs another one", out_));
    const bool is_free = options_->replace || !fs::is_directory(out_, absent) || fs::is_empty(out_, absent);
    if (!is_free) {
      throw InvalidArgument(fmt::format(
          "'{}' is not empty; --force replaces a model that is there, and leaves other files", out_));
    }
    plan_files();
    plan_copies();
  }

  ConvertReport run() {
    weights::ModelStaging staging(
        out_, options_->replace ? weights::ExistingFiles::kReplace : weights::ExistingFiles::kRefuse);
    staging.require_room(room_needed());
    for (const OutFile& file : files_) write(file, staging.file(file.shard.file));
    // Every byte is read: had a file changed meanwhile, it would show.
    source_.check_unchanged();
    if (!index_.empty()) write_text(staging.file(kIndexName), index_);
    for (const std::string& name : copies_) copy(name, staging.file(name));
    staging.publish();
    report_.copied = copies_;
    return std::move(report_);
  }

 private:
  [[nodiscard]] TensorSpec spec_of(const TensorRef& tensor) const {
    const weights::TensorInfo& info = tensor.info();
    const bool stays =
        !options_->dtype || !is_convertible(info.dtype) ||
        std::any_of(options_->keep.begin(), options_->keep.end(),
                    [&](const std::string& pattern) { return matches_glob(pattern, info.name); });
    return {info.name, stays ? info.dtype : file_dtype(*options_->dtype), info.shape};
  }

  void plan_files() {
    if (options_->max_shard_bytes) {
      cut_anew();
    } else {
      keep_files();
    }
    for (OutFile& file : files_) {
      file.layout = weights::lay_out_tensor_specs(file.shard.tensors, file.metadata);
      report_.files.push_back(file.shard.file);
      report_.tensors += file.sources.size();
      for (const TensorSpec& tensor : file.shard.tensors) report_.bytes += weights::size_bytes(tensor);
    }
    plan_index();
  }

  // The files of the source under their names.
  void keep_files() {
    for (const weights::SafetensorsFile& file : source_.files()) {
      files_.push_back({{file_name(file.path()), {}}, {}, file.header().metadata(), {}});
    }
    for (const TensorRef& tensor : source_.tensors()) {
      files_[tensor.file_index()].shard.tensors.push_back(spec_of(tensor));
      files_[tensor.file_index()].sources.push_back(&tensor);
    }
  }

  void cut_anew() {
    weights::SafetensorsMetadata metadata;
    for (const weights::SafetensorsFile& file : source_.files()) {
      for (const auto& [key, value] : file.header().metadata()) {
        const auto [known, is_new] = metadata.emplace(key, value);
        if (is_new || known->second == value) continue;
        report_.warnings.push_back(
            fmt::format("metadata '{}' differs between the files; that of the first is kept",
                        weights::printable_name(key)));
      }
    }
    std::vector<TensorSpec> specs;
    for (const TensorRef& tensor : source_.tensors()) specs.push_back(spec_of(tensor));
    std::size_t next = 0;
    for (Shard& shard : weights::cut_into_shards(specs, *options_->max_shard_bytes)) {
      OutFile file{std::move(shard), {}, metadata, {}};
      for (std::size_t i = 0; i < file.shard.tensors.size(); ++i)
        file.sources.push_back(&source_.tensors()[next++]);
      files_.push_back(std::move(file));
    }
  }

  void plan_index() {
    const bool had_index = is_directory_ && source_.path_of(kIndexName).has_value();
    if (files_.size() == 1 && (options_->max_shard_bytes || !had_index)) return;
    if (had_index && !options_->max_shard_bytes && !changes_types()) {
      // It may say more than is needed.
      index_ = read_text_file(*source_.path_of(kIndexName), weights::kMaxHeaderBytes);
      if (is_true(index_)) return;
    }
    std::vector<Shard> shards;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const bool is_extra = !options_->max_shard_bytes && source_.extra_file() == i;
      if (!is_extra) shards.push_back(files_[i].shard);
    }
    index_ = weights::shard_index_json(shards);
  }

  // Every tensor that the index names is in the file that it says: extra weights take the place of others.
  [[nodiscard]] bool is_true(const std::string& index) const {
    const auto parsed = weights::ShardIndex::parse(index, *source_.path_of(kIndexName));
    return std::all_of(parsed.entries.begin(), parsed.entries.end(), [&](const auto& entry) {
      const TensorRef* tensor = source_.find(entry.tensor);
      return tensor != nullptr &&
             file_name(source_.files()[tensor->file_index()].path()) == parsed.files[entry.file];
    });
  }

  [[nodiscard]] bool changes_types() const {
    return std::any_of(files_.begin(), files_.end(), [](const OutFile& file) {
      for (std::size_t i = 0; i < file.sources.size(); ++i) {
        if (file.shard.tensors[i].dtype != file.sources[i]->info().dtype) return true;
      }
      return false;
    });
  }

  // The weights may have any name where an index says so.
  [[nodiscard]] bool is_shard(const std::string& name) const {
    return std::any_of(
        source_.files().begin(), source_.files().end(),
        [&](const weights::SafetensorsFile& file) { return fs::path(file.path()).filename() == name; });
  }

  // Regular files beside the weights, config.json last: a directory that has one is a model.
  void plan_copies() {
    if (!is_directory_) return;
    std::error_code error;
    for (fs::directory_iterator entry(source_.path(), error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      std::error_code unknown;
      if (name.starts_with('.') || holds_weights(name) || is_shard(name) || !entry->is_regular_file(unknown))
        continue;
      copies_.push_back(name);
    }
    if (error) throw IoError("cannot list", source_.path(), error.value());
    std::sort(copies_.begin(), copies_.end(), [](const std::string& a, const std::string& b) {
      const bool a_last = a == "config.json";
      const bool b_last = b == "config.json";
      return a_last != b_last ? b_last : a < b;
    });
  }

  [[nodiscard]] std::uint64_t room_needed() const {
    std::uint64_t room = checked_add(report_.bytes, kRoomToSpare + index_.size());
    for (const OutFile& file : files_) room = checked_add(room, std::uint64_t{file.layout.prefix.size()});
    for (const std::string& name : copies_) {
      std::error_code unknown;
      const auto bytes = fs::file_size(fs::path(source_.path()) / name, unknown);
      if (!unknown) room = checked_add(room, std::uint64_t{bytes});
    }
    return room;
  }

  void write(const OutFile& file, const std::string& path) {
    weights::AtomicFile out(path);
    out.write(std::as_bytes(std::span(file.layout.prefix)));
    for (const std::size_t i : file.layout.order)
      write_tensor(*file.sources[i], file.shard.tensors[i].dtype, out);
    out.commit();
  }

  void write_tensor(const TensorRef& tensor, DType to, weights::AtomicFile& out) {
    const weights::TensorInfo& info = tensor.info();
    std::optional<ElementConverter> converter;
    if (to != info.dtype) converter.emplace(info.dtype, *options_->dtype);
    report_.converted += converter ? 1 : 0;
    for (std::uint64_t done = 0; done < info.size_bytes;) {
      piece_.resize(std::min<std::uint64_t>(kPieceBytes, info.size_bytes - done));
      source_.read_range(tensor, done, piece_);
      const std::span<const std::byte> bytes =
          converter ? converter->convert(piece_) : std::span<const std::byte>(piece_);
      out.write(bytes);
      done += piece_.size();
      written_ += bytes.size();
      if (options_->progress && !options_->progress(written_, report_.bytes))
        throw Cancelled("converting was cancelled");
    }
    if (converter && converter->overflows() != 0)
      report_.overflows.push_back({info.name, converter->overflows()});
  }

  void copy(const std::string& name, const std::string& to) {
    const std::string from = (fs::path(source_.path()) / name).string();
    if (name == "config.json" && options_->dtype) {
      write_text(to, with_dtype(read_text_file(from, kMaxConfigBytes)));
      return;
    }
    const UniqueFd file = open_regular_file(from);
    const FileIdentity identity = identify(file, from);
    weights::AtomicFile out(to);
    for (std::uint64_t done = 0; done < identity.size_bytes; done += piece_.size()) {
      piece_.resize(std::min<std::uint64_t>(kPieceBytes, identity.size_bytes - done));
      read_exactly(file, piece_, done, from);
      out.write(piece_);
    }
    out.commit();
  }

  // Loaders that ask for the checkpoint's own type look there. The rest of the text stays byte for byte.
  [[nodiscard]] std::string with_dtype(const std::string& config) const {
    static const std::regex type(
        R"re(("(?:torch_)?dtype"\s*:\s*")(?:torch\.)?(?:float(?:16|32|64)|bfloat16)")re");
    return std::regex_replace(config, type, fmt::format("$01{}\"", config_name(*options_->dtype)));
  }

  static void write_text(const std::string& path, const std::string& text) {
    weights::AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }

  ModelDirectory source_;
  bool is_directory_;
  std::string out_;
  const ConvertOptions* options_;
  std::vector<OutFile> files_;
  std::string index_;  // empty where none is needed
  std::vector<std::string> copies_;
  std::vector<std::byte> piece_;
  std::uint64_t written_ = 0;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert_model(const std::string& in, const std::string& out, const ConvertOptions& options) {
  return Conversion(in, out, options).run();
}

}  // namespace metrale::app
