// SPDX-License-Identifier: Apache-2.0
// Which files of a model directory hold its tensors. docs/formats/safetensors.md has the rules.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <metrale/weights/shard_index.h>

namespace metrale::weights {

struct ShardSet {
  std::vector<std::string> files;   // names within the directory, sorted, at least one
  std::optional<ShardIndex> index;  // its `files` are the same list
  std::string index_path;           // where there is an index
};

// Every file of the result is there. Throws IoError naming all files that are missing, FormatError for a bad
// index.
[[nodiscard]] ShardSet resolve_shards(const std::string& directory);

// "directory/name", with neither resolved.
[[nodiscard]] std::string path_within(const std::string& directory, const std::string& name);

}  // namespace metrale::weights
