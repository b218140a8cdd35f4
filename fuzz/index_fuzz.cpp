// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: weights
// Any bytes as a model.safetensors.index.json: refused with FormatError, or an index that stays in its
// directory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <metrale/base/error.h>
#include <metrale/weights/shard_index.h>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto index = metrale::weights::ShardIndex::parse(text, "input");
    require(!index.entries.empty() && !index.files.empty());
    for (const auto& entry : index.entries) require(entry.file < index.files.size());
    require(std::is_sorted(index.files.begin(), index.files.end()));
    for (const std::string& file : index.files) {
      require(!file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos);
    }
  } catch (const metrale::FormatError& error) {
    require(error.offset() <= size && !error.problem().empty());
  }
  return 0;
}
