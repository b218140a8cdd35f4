// SPDX-License-Identifier: Apache-2.0
// Which files of a model directory hold its tensors. docs/formats/safetensors.md has the rules.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/weights/shard_index.h>

namespace metrale::weights {

struct ShardSet {
  std::vector<std::string> files;         // names within the directory, sorted, at least one
  std::optional<ShardIndex> index;        // its `files` are the same list
  std::string index_path;                 // where there is an index
  std::vector<std::string> missing = {};  // those of `files` that are not there
  std::string named_by = {};              // says why they should be
  bool has_extra = false;                 // kExtraFile is there, and not among the files
};

// Loaded after all others, of whatever name they are.
inline constexpr std::string_view kExtraFile = "extra_weights.safetensors";

// Throws IoError where nothing in the directory looks like a model, FormatError for a bad index.
[[nodiscard]] ShardSet find_shards(const std::string& directory);

// Of files that are missing, so many are named: one file can claim to be of 99,999.
inline constexpr std::size_t kMostNamedFiles = 100;

// The same, with every file there: throws IoError naming those that are missing.
[[nodiscard]] ShardSet resolve_shards(const std::string& directory);

// The model that one .safetensors file is; nullopt for a directory. The name as it was given decides: what a
// link leads to may have no suffix and no siblings. Throws IoError, InvalidArgument for another file.
[[nodiscard]] std::optional<ShardSet> single_file(const std::string& path);
// Where that file lies.
[[nodiscard]] std::string directory_of(const std::string& path);

// Whether find_shards() may take a file of this name for an index or a part of a model.
[[nodiscard]] bool is_model_file_name(std::string_view name);

// "directory/name", with neither resolved.
[[nodiscard]] std::string path_within(const std::string& directory, const std::string& name);

}  // namespace metrale::weights
