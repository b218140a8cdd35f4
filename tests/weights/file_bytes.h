// SPDX-License-Identifier: Apache-2.0
// Building safetensors files by hand, byte by byte, and parsing them from memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>

namespace metrale::weights {

inline std::string length_bytes(std::uint64_t length) {
  std::string bytes(kLengthPrefixBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

// A file whose length prefix is right for `json`.
inline std::string file_bytes(std::string_view json, std::string_view data = {}) {
  return length_bytes(json.size()) + std::string(json) + std::string(data);
}

// As file_bytes, with `data_bytes` zeroes.
inline std::string file_of(std::string_view json, std::size_t data_bytes = 0) {
  return file_bytes(json, std::string(data_bytes, '\0'));
}

inline SafetensorsHeader parse_bytes(const std::string& file, const SafetensorsOptions& options = {}) {
  const auto bytes = std::as_bytes(std::span(file));
  const std::uint64_t length =
      SafetensorsHeader::parse_length(bytes.first(std::min<std::size_t>(kLengthPrefixBytes, bytes.size())),
                                      bytes.size(), "m.safetensors", options);
  return SafetensorsHeader::parse(bytes.subspan(kLengthPrefixBytes, length), bytes.size(), "m.safetensors",
                                  options);
}

// `file` must be refused with a message that names the file and holds `problem`.
inline void expect_refused(const std::string& file, std::string_view problem) {
  try {
    (void)parse_bytes(file);
    ADD_FAILURE() << "accepted, not refused with: " << problem;
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), "m.safetensors");
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(problem)));
    EXPECT_LE(error.offset(), file.size());
  }
}

}  // namespace metrale::weights
