// SPDX-License-Identifier: Apache-2.0
// GoldenFile: reference values made by scripts/golden, one NAME.json (facts and a table of arrays) beside one
// NAME.bin (the arrays, little endian). tests/golden/engine/README.md describes the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace metrale::test {

// Where the golden files and the demo model are: in the source tree that the tests were built from, unless a
// program that travels says otherwise.
[[nodiscard]] std::string& golden_directory();
[[nodiscard]] std::string& demo_model_directory();

// One array of a golden file: row-major values and their shape.
template <class T>
struct GoldenArray {
  std::vector<std::size_t> shape;
  std::vector<T> values;

  // The values under a prefix of the index: at(2) of [8][128][64] is 128 * 64 values, at(2, 5) is 64.
  // Throws InvalidArgument where an index lies outside.
  template <class... Index>
  [[nodiscard]] std::span<const T> at(Index... index) const {
    const std::size_t prefix[] = {static_cast<std::size_t>(index)...};
    return slice(prefix);
  }
  [[nodiscard]] std::span<const T> slice(std::span<const std::size_t> prefix) const;
};

extern template struct GoldenArray<float>;
extern template struct GoldenArray<std::uint32_t>;
extern template struct GoldenArray<std::uint16_t>;

class GoldenFile {
 public:
  // `name` is relative to tests/golden and has no suffix: "engine/tiny_base". Checks the length and XXH3-64
  // of the .bin file. Throws IoError, FormatError.
  explicit GoldenFile(std::string_view name);

  [[nodiscard]] const nlohmann::json& facts() const { return facts_; }

  // T is float ("f32"), uint32_t ("u32") or uint16_t ("u16"). Throws FormatError where the file has no such
  // array of this type.
  template <class T>
  [[nodiscard]] GoldenArray<T> array(std::string_view name) const;

 private:
  std::string path_;
  nlohmann::json facts_;
  std::vector<std::byte> bytes_;
};

// 16 hexadecimal digits, as digests stand in golden files.
[[nodiscard]] std::string hex64(std::uint64_t value);

}  // namespace metrale::test
