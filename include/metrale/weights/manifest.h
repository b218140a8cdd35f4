// SPDX-License-Identifier: Apache-2.0
// WeightManifest: hashes of a model's weights, tensor by tensor, so that a difference has a name.
// docs/formats/weight_manifest.md has the text, byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/weights/dtype.h>

namespace metrale::weights {

// Its name in a model directory. Beside one file it is that file's name with ".manifest.json".
inline constexpr std::string_view kManifestName = "metrale.manifest.json";
[[nodiscard]] std::string default_manifest_path(const std::string& model_path);

inline constexpr std::uint64_t kManifestVersion = 1;
// The longest text that is read or written.
inline constexpr std::uint64_t kMaxManifestBytes = 1'000'000'000;

// Hashes are XXH3-64 with seed 0.
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;    // what dtype and shape take
  std::uint64_t hash = 0;
  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct ManifestFile {
  std::string name;  // without a directory
  std::uint64_t size_bytes = 0;
  std::uint64_t header_bytes = 0;  // the length and the JSON text with its padding: the data follow
  std::uint64_t header_hash = 0;
  std::vector<ManifestTensor> tensors;  // in the order of their data, without gaps
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestIndex {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t hash = 0;
  friend bool operator==(const ManifestIndex&, const ManifestIndex&) = default;
};

struct WeightManifest {
  std::optional<ManifestIndex> index;
  std::vector<ManifestFile> files;  // sorted by name, none twice

  // Throws FormatError naming `path`, what is wrong and the byte; Unsupported for another version or hash;
  // OutOfMemory.
  [[nodiscard]] static WeightManifest parse(std::string_view json, const std::string& path);
  // Throws IoError as well.
  [[nodiscard]] static WeightManifest read(const std::string& path);
  // Throws InvalidArgument where that would be more than kMaxManifestBytes.
  [[nodiscard]] std::string to_json() const;
  // The file appears whole or not at all. Throws IoError.
  void write(const std::string& path) const;

  friend bool operator==(const WeightManifest&, const WeightManifest&) = default;
};

// Something that is not as it should be, and where.
struct WeightProblem {
  enum class Kind : std::uint8_t {
    kFormat,      // a rule of the format is broken
    kIo,          // cannot be read, is missing, or changed meanwhile
    kDifference,  // not what the manifest says
  };
  Kind kind = Kind::kFormat;
  std::string file;                        // as it can be opened; the directory where no file is meant
  std::optional<std::string> tensor = {};  // its name, unescaped
  std::optional<std::uint64_t> offset_bytes = {};  // in the file
  std::string text;                                // a sentence without the three above
};

// What of one file differs: nothing where both are equal. With `compare_data` false the hashes of tensors do
// not count.
[[nodiscard]] std::vector<WeightProblem> compare_files(const ManifestFile& expected,
                                                       const ManifestFile& actual, const std::string& path,
                                                       bool compare_data = true);

}  // namespace metrale::weights
