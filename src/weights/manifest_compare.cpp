// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>
#include <weights/names.h>

#include <fmt/format.h>

#include <metrale/weights/manifest.h>
#include <metrale/weights/name_index.h>

namespace metrale::weights {
namespace {

class FileComparison {
 public:
  FileComparison(const ManifestFile& expected, const ManifestFile& actual, const std::string& path)
      : expected_(&expected), actual_(&actual), path_(&path), by_name_(index_of(expected)) {}

  std::vector<WeightProblem> run(bool compare_data) {
    if (actual_->size_bytes != expected_->size_bytes) {
      add(std::nullopt, std::nullopt,
          fmt::format("{} bytes, the manifest says {}", actual_->size_bytes, expected_->size_bytes));
    }
    if (actual_->header_bytes != expected_->header_bytes || actual_->header_hash != expected_->header_hash) {
      add(std::nullopt, 0,
          fmt::format("the header (bytes 0 to {}) is not the manifest's: XXH3 {:016x}, expected {:016x}",
                      actual_->header_bytes, actual_->header_hash, expected_->header_hash));
    }
    std::vector<bool> met(expected_->tensors.size());
    for (const ManifestTensor& tensor : actual_->tensors) compare(tensor, met, compare_data);
    for (std::size_t i = 0; i < met.size(); ++i) {
      if (!met[i]) add(expected_->tensors[i].name, std::nullopt, "in the manifest, but not in the file");
    }
    return std::move(problems_);
  }

 private:
  static NameIndex index_of(const ManifestFile& file) {
    return {static_cast<std::uint32_t>(file.tensors.size()),
            [&](std::uint32_t i) -> std::string_view { return file.tensors[i].name; }};
  }

  void compare(const ManifestTensor& tensor, std::vector<bool>& met, bool compare_data) {
    const auto found = by_name_.find(
        tensor.name, [&](std::uint32_t i) -> std::string_view { return expected_->tensors[i].name; });
    if (!found) {
      add(tensor.name, tensor.offset_bytes, "in the file, but not in the manifest");
      return;
    }
    met[*found] = true;
    const ManifestTensor& expected = expected_->tensors[*found];
    if (tensor.dtype != expected.dtype || tensor.shape != expected.shape) {
      add(tensor.name, tensor.offset_bytes,
          fmt::format("{} {}, the manifest says {} {}", to_string(tensor.dtype), shape_text(tensor.shape),
                      to_string(expected.dtype), shape_text(expected.shape)));
    }
    if (tensor.offset_bytes != expected.offset_bytes) {
      add(tensor.name, tensor.offset_bytes,
          fmt::format("moved: the manifest has it at byte {}", expected.offset_bytes));
    }
    if (compare_data && tensor.hash != expected.hash) {
      add(tensor.name, tensor.offset_bytes,
          fmt::format("its {} bytes differ: XXH3 {:016x}, expected {:016x}", tensor.size_bytes, tensor.hash,
                      expected.hash));
    }
  }

  void add(std::optional<std::string> tensor, std::optional<std::uint64_t> offset_bytes, std::string text) {
    problems_.push_back(
        {WeightProblem::Kind::kDifference, *path_, std::move(tensor), offset_bytes, std::move(text)});
  }

  const ManifestFile* expected_;
  const ManifestFile* actual_;
  const std::string* path_;
  NameIndex by_name_;
  std::vector<WeightProblem> problems_;
};

}  // namespace

std::vector<WeightProblem> compare_files(const ManifestFile& expected, const ManifestFile& actual,
                                         const std::string& path, bool compare_data) {
  if (compare_data && expected == actual) return {};
  return FileComparison(expected, actual, path).run(compare_data);
}

}  // namespace metrale::weights
