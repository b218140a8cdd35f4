// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <weights/file_hasher.h>
#include <weights/names.h>
#include <weights/shard_resolution.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/base/hash.h>
#include <metrale/weights/name_index.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/verify.h>

namespace metrale::weights {
namespace {

using Kind = WeightProblem::Kind;

class Verifier {
 public:
  Verifier(const std::string& path, const VerifyOptions& options)
      : options_(&options), pool_(options.threads) {
    std::optional<ShardSet> single = single_file(path);
    directory_ = single ? directory_of(path) : path;
    try {
      shards_ = single ? std::move(*single) : find_shards(directory_);
    } catch (const FormatError& error) {
      add(Kind::kFormat, error.path(), std::nullopt, error.offset(), error.problem());
    }
  }

  VerifyReport run() {
    if (!report_.problems.empty()) return std::move(report_);  // which files count is not known
    report_missing();
    for (const std::string& name : shards_.files) open(name);
    check_index();
    if (!shards_.index) check_names();
    compare_index();
    if (shards_.has_extra) open(std::string(kExtraFile));
    sum_data();
    for (const auto& [name, file] : files_) hash(name, file);
    compare_files_there();
    return std::move(report_);
  }

 private:
  void add(Kind kind, const std::string& file, std::optional<std::string> tensor,
           std::optional<std::uint64_t> offset_bytes, std::string text) {
    report_.problems.push_back({kind, file, std::move(tensor), offset_bytes, std::move(text)});
  }

  void report_missing() {
    const std::size_t named = std::min(shards_.missing.size(), kMostNamedFiles);
    for (std::size_t i = 0; i < named; ++i) {
      add(Kind::kIo, path_within(directory_, shards_.missing[i]), std::nullopt, std::nullopt,
          fmt::format("missing: one of the {} files {}", shards_.files.size(), shards_.named_by));
    }
    if (named == shards_.missing.size()) return;
    add(Kind::kIo, directory_, std::nullopt, std::nullopt,
        fmt::format("{} more files are missing", shards_.missing.size() - named));
  }

  void sum_data() {
    for (const auto& [name, file] : files_) {
      const auto sum = try_add(report_.data_bytes, file.header().data_bytes());
      if (!sum) {
        add(Kind::kFormat, directory_, std::nullopt, std::nullopt,
            "the tensors take more bytes in all than 64 bits can count");
        return;
      }
      report_.data_bytes = *sum;
    }
  }

  void open(const std::string& name) {
    if (std::binary_search(shards_.missing.begin(), shards_.missing.end(), name)) return;
    const std::string path = path_within(directory_, name);
    try {
      files_.emplace(name, SafetensorsFile::open(path));
      report_.tensors += files_.at(name).header().tensors().size();
    } catch (const FormatError& error) {
      add(Kind::kFormat, path, std::nullopt, error.offset(), error.problem());
    } catch (const IoError& error) {
      add(Kind::kIo, path, std::nullopt, std::nullopt, error.what());
    } catch (const InvalidArgument& error) {
      add(Kind::kFormat, path, std::nullopt, std::nullopt, error.what());
    }
  }

  void check_index() {
    if (!shards_.index) return;
    std::uint64_t assigned_bytes = 0;
    std::uint64_t held = 0;
    for (const ShardIndex::Entry& entry : shards_.index->entries) {
      const auto file = files_.find(shards_.index->files[entry.file]);
      if (file == files_.end()) continue;  // said already
      const TensorInfo* info = file->second.header().find(entry.tensor);
      if (info != nullptr) {
        assigned_bytes += info->size_bytes;
        ++held;
      } else {
        add(Kind::kFormat, file->second.path(), std::string(entry.tensor), std::nullopt,
            fmt::format("{} says that it is here, and it is not", quote_name(shards_.index_path)));
      }
    }
    if (files_.size() != shards_.files.size()) return;
    if (held != report_.tensors) {
      report_.warnings.push_back(
          fmt::format("{}: {} of the {} tensors in its files are not assigned to the file that holds them; "
                      "they are not loaded",
                      quote_name(shards_.index_path), report_.tensors - held, report_.tensors));
    }
    if (shards_.index->total_size_bytes.value_or(assigned_bytes) != assigned_bytes) {
      report_.warnings.push_back(fmt::format("{}: total_size is {}, the tensors take {} bytes",
                                             quote_name(shards_.index_path),
                                             shards_.index->total_size_bytes.value(), assigned_bytes));
    }
  }

  // Without an index nothing says which one of two tensors counts.
  void check_names() {
    struct Held {
      std::string_view name;
      const SafetensorsFile* file;
      const TensorInfo* info;
    };
    std::vector<Held> all;
    for (const auto& [name, file] : files_) {
      for (const TensorInfo& info : file.header().tensors()) all.push_back({info.name, &file, &info});
    }
    std::stable_sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (all[i].name != all[i - 1].name) continue;
      add(Kind::kFormat, all[i].file->path(), all[i].info->name, all[i].info->offset_bytes,
          fmt::format("also in {}, and no index says which one counts", quote_name(all[i - 1].file->path())));
    }
  }

  void compare_index() {
    if (shards_.index) {
      try {
        const std::string text = read_text_file(shards_.index_path, kMaxHeaderBytes);
        report_.found.index = ManifestIndex{shards_.index_path.substr(shards_.index_path.rfind('/') + 1),
                                            text.size(), hash64(std::as_bytes(std::span(text)))};
      } catch (const IoError& error) {
        add(Kind::kIo, shards_.index_path, std::nullopt, std::nullopt, error.what());
        return;
      }
    }
    if (options_->manifest == nullptr || options_->manifest->index == report_.found.index) return;
    const auto& expected = options_->manifest->index;
    const std::string path =
        shards_.index ? shards_.index_path : path_within(directory_, expected.value().name);
    add(Kind::kDifference, path, std::nullopt, std::nullopt,
        !expected        ? "the manifest has no index"
        : !shards_.index ? "the index that the manifest has is not there, or not used"
                         : "the index is not the manifest's");
  }

  void hash(const std::string& name, const SafetensorsFile& file) {
    try {
      report_.found.files.push_back(hash_file(
          file, name, options_->read_data, pool_, [&](std::uint64_t bytes) { count(bytes); },
          report_.problems));
    } catch (const IoError& error) {
      add(Kind::kIo, file.path(), std::nullopt, std::nullopt, error.what());
    }
  }

  void count(std::uint64_t bytes) {
    report_.read_bytes += bytes;
    if (options_->progress && !options_->progress(report_.read_bytes, report_.data_bytes))
      throw Cancelled("verifying was cancelled");
  }

  void compare_files_there() {
    if (options_->manifest == nullptr) return;
    std::map<std::string_view, const ManifestFile*> expected;
    for (const ManifestFile& file : options_->manifest->files) expected.emplace(file.name, &file);
    for (const ManifestFile& file : report_.found.files) {
      const std::string path = path_within(directory_, file.name);
      const auto known = expected.find(file.name);
      if (known == expected.end()) {
        add(Kind::kDifference, path, std::nullopt, std::nullopt, "not in the manifest");
        continue;
      }
      const std::set<std::string> unread = unread_tensors(path);
      for (WeightProblem& problem : compare_files(*known->second, file, path, options_->read_data)) {
        if (!problem.tensor || !unread.contains(*problem.tensor))
          report_.problems.push_back(std::move(problem));
      }
    }
    for (const auto& [name, file] : expected) {
      const bool known = std::binary_search(shards_.files.begin(), shards_.files.end(), name) ||
                         (shards_.has_extra && name == kExtraFile);
      if (!known) {
        add(Kind::kDifference, path_within(directory_, std::string(name)), std::nullopt, std::nullopt,
            "in the manifest, but not one of the model's files");
      }
    }
  }

  // Nothing is known of their bytes.
  [[nodiscard]] std::set<std::string> unread_tensors(const std::string& path) const {
    std::set<std::string> names;
    for (const WeightProblem& problem : report_.problems) {
      if (problem.kind == Kind::kIo && problem.file == path && problem.tensor) names.insert(*problem.tensor);
    }
    return names;
  }

  const VerifyOptions* options_;
  ThreadPool pool_;
  std::string directory_;
  ShardSet shards_;
  std::map<std::string, SafetensorsFile> files_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_weights(const std::string& path, const VerifyOptions& options) {
  return Verifier(path, options).run();
}

}  // namespace metrale::weights
