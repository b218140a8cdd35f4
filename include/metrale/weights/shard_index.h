// SPDX-License-Identifier: Apache-2.0
// ShardIndex: the text of a model.safetensors.index.json, which says in which file each tensor lies.
// docs/formats/safetensors.md says what is accepted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/weights/name_index.h>

namespace metrale::weights {

struct ShardIndex {
  struct Entry {
    std::string_view tensor;  // valid as long as the index, be it moved
    std::uint32_t file;       // position in `files`
  };

  std::vector<std::string> files;                 // distinct and sorted; names without a directory
  std::vector<Entry> entries;                     // in the order of the text; no tensor twice
  NameIndex by_name;                              // of the entries
  std::optional<std::uint64_t> total_size_bytes;  // advisory: repositories with shared tensors get it wrong
  std::unique_ptr<char[]> names;                  // what the entries' names lie in

  // Throws FormatError naming `path`, the entry and the byte.
  [[nodiscard]] static ShardIndex parse(std::string_view json, const std::string& path);
  // The same of the file at `path`; IoError too.
  [[nodiscard]] static ShardIndex open(const std::string& path);
};

}  // namespace metrale::weights
