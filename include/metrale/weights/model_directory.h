// SPDX-License-Identifier: Apache-2.0
// ModelDirectory: the tensors of a Hugging Face style model directory, over all its safetensors files, and
// the paths of the files beside them. docs/formats/safetensors.md says which files are chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/weights/name_index.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {

// A tensor of a ModelDirectory, valid as long as the directory is neither moved to nor destroyed.
class TensorRef {
 public:
  TensorRef(const TensorInfo& info, std::uint32_t file_index) : info_(&info), file_index_(file_index) {}
  [[nodiscard]] const TensorInfo& info() const { return *info_; }
  // Position in ModelDirectory::files().
  [[nodiscard]] std::uint32_t file_index() const { return file_index_; }

 private:
  const TensorInfo* info_;
  std::uint32_t file_index_;
};

// All files stay open. Const calls may come from several threads.
class ModelDirectory {
 public:
  // `path` is a directory or one .safetensors file. Checks every header and the size of every file; reads no
  // data. Warns once (in the log) about tensors that the index leaves out, and about a wrong total_size.
  // Throws IoError (files that are missing, all of them named), FormatError (a bad header or index, a tensor
  // that its shard does not have, without an index a name in two files), InvalidArgument. The tensors of
  // extra_weights.safetensors, if a directory has it, come last and take the place of others of their names.
  [[nodiscard]] static ModelDirectory open(const std::string& path,
                                           TrailingBytes trailing_bytes = TrailingBytes::kRefuse);

  // The directory, also where one file was opened.
  [[nodiscard]] const std::string& path() const { return path_; }
  // Sorted by name, extra weights last.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }
  // File by file, each in the order of its data.
  [[nodiscard]] const std::vector<TensorRef>& tensors() const { return tensors_; }
  // nullptr where the model has no such tensor.
  [[nodiscard]] const TensorRef* find(std::string_view name) const;
  [[nodiscard]] const SafetensorsFile& file(const TensorRef& tensor) const {
    return files_[tensor.file_index()];
  }
  // The position of extra_weights.safetensors in files(): the last one. nullopt where there is none.
  [[nodiscard]] std::optional<std::uint32_t> extra_file() const { return extra_file_; }
  // Of the tensors, not of the files.
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

  // The path of a file in the directory ("tokenizer.json"), nullopt where there is none. Links are not
  // resolved. Throws InvalidArgument unless `name` is a name without a directory.
  [[nodiscard]] std::optional<std::string> path_of(const std::string& name) const;
  // Throws IoError where the directory has no config.json.
  [[nodiscard]] std::string config_path() const;

  // As SafetensorsFile's.
  void read(const TensorRef& tensor, std::span<std::byte> out) const {
    file(tensor).read(tensor.info(), out);
  }
  void read_range(const TensorRef& tensor, std::uint64_t offset_bytes, std::span<std::byte> out) const {
    file(tensor).read_range(tensor.info(), offset_bytes, out);
  }
  [[nodiscard]] std::span<const std::byte> map(const TensorRef& tensor) const {
    return file(tensor).map(tensor.info());
  }
  void check_unchanged() const;

 private:
  ModelDirectory() = default;
  void index_names();
  void add_extra(TrailingBytes trailing_bytes);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorRef> tensors_;
  NameIndex by_name_;
  std::uint64_t total_bytes_ = 0;
  std::optional<std::uint32_t> extra_file_;
};

}  // namespace metrale::weights
