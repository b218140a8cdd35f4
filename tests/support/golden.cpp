// SPDX-License-Identifier: Apache-2.0
#include "support/golden.h"

#include <cstring>
#include <filesystem>
#include <type_traits>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/base/hash.h>

namespace metrale::test {

namespace {

constexpr std::uint64_t kMaxJsonBytes = 16U << 20;

template <class T>
constexpr std::string_view dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "f32";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "u32";
  if constexpr (std::is_same_v<T, std::uint16_t>) return "u16";
}

nlohmann::json parse_json(const std::string& path) {
  try {
    return nlohmann::json::parse(read_text_file(path, kMaxJsonBytes));
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path, error.byte, error.what());
  }
}

std::vector<std::byte> read_all(const std::string& path) {
  const UniqueFd fd = open_for_reading(path);
  std::vector<std::byte> bytes(identify(fd, path).size_bytes);
  read_exactly(fd, bytes, 0, path);
  return bytes;
}

}  // namespace

template <class T>
std::span<const T> GoldenArray<T>::slice(std::span<const std::size_t> prefix) const {
  expects(prefix.size() <= shape.size(), "more indices than dimensions");
  std::size_t count = values.size();
  std::size_t first = 0;
  for (std::size_t dim = 0; dim < prefix.size(); ++dim) {
    expects(prefix[dim] < shape[dim], "index outside of the golden array");
    count /= shape[dim];
    first += prefix[dim] * count;
  }
  return std::span<const T>(values).subspan(first, count);
}

template struct GoldenArray<float>;
template struct GoldenArray<std::uint32_t>;
template struct GoldenArray<std::uint16_t>;

std::string& golden_directory() {
  static std::string directory = METRALE_GOLDEN_DIR;
  return directory;
}

std::string& demo_model_directory() {
  static std::string directory = METRALE_DEMO_MODEL;
  return directory;
}

GoldenFile::GoldenFile(std::string_view name) : path_(fmt::format("{}/{}.json", golden_directory(), name)) {
  facts_ = parse_json(path_);
  if (!facts_.contains("binary")) return;
  const nlohmann::json& binary = facts_.at("binary");
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const std::string data_path = folder / binary.at("file").get<std::string>();
  bytes_ = read_all(data_path);
  if (bytes_.size() != binary.at("bytes").get<std::size_t>() ||
      hex64(hash64(bytes_)) != binary.at("xxh3_64").get<std::string>()) {
    throw FormatError(data_path, 0, "not the file that " + path_ + " describes; make both again");
  }
}

template <class T>
GoldenArray<T> GoldenFile::array(std::string_view name) const {
  const nlohmann::json& arrays = facts_.at("arrays");
  const auto found = arrays.find(name);
  if (found == arrays.end()) throw FormatError(path_, 0, fmt::format("no array '{}'", name));
  if (found->at("dtype") != dtype_name<T>()) {
    throw FormatError(path_, 0, fmt::format("array '{}' is not {}", name, dtype_name<T>()));
  }
  GoldenArray<T> result;
  result.shape = found->at("shape").template get<std::vector<std::size_t>>();
  std::uint64_t count = 1;
  for (const std::size_t size : result.shape) count = checked_mul(count, size);
  const auto offset = found->at("offset").template get<std::uint64_t>();
  if (checked_add(offset, checked_mul(count, sizeof(T))) > bytes_.size()) {
    throw FormatError(path_, 0, fmt::format("array '{}' ends after the data", name));
  }
  result.values.resize(count);
  std::memcpy(result.values.data(), bytes_.data() + offset, count * sizeof(T));
  return result;
}

template GoldenArray<float> GoldenFile::array(std::string_view) const;
template GoldenArray<std::uint32_t> GoldenFile::array(std::string_view) const;
template GoldenArray<std::uint16_t> GoldenFile::array(std::string_view) const;

std::string hex64(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace metrale::test
