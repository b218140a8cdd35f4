// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: weights
// Any bytes as a weight manifest: refused with a typed error, or one whose tensors fill its files and that
// its own text gives again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <metrale/base/error.h>
#include <metrale/weights/manifest.h>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace metrale::weights;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const WeightManifest manifest = WeightManifest::parse(text, "input");
    for (const ManifestFile& file : manifest.files) {
      std::uint64_t end = file.header_bytes;
      for (const ManifestTensor& tensor : file.tensors) {
        require(tensor.offset_bytes == end);
        end += tensor.size_bytes;
      }
      require(end == file.size_bytes && file.name.find('/') == std::string::npos);
      require(compare_files(file, file, "input").empty());
    }
    require(WeightManifest::parse(manifest.to_json(), "again") == manifest);
  } catch (const metrale::FormatError& error) {
    require(error.offset() <= size && !error.problem().empty());
  } catch (const metrale::Unsupported&) {
    // Another version or hash.
  }
  return 0;
}
