// SPDX-License-Identifier: Apache-2.0
// The hard strings and the packed answers of tests/golden/tokenizer; its README.md describes both.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tiny_tokenizer.h"

namespace metrale::engine {

// FNV-1a of 64 bits.
class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  // Little endian.
  void add_integer(std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i, value >>= 8) {
      const char byte = static_cast<char>(value & 0xFF);
      add({&byte, 1});
    }
  }
  void add_ids(const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) add_integer(static_cast<std::uint64_t>(id), 2);
  }
  [[nodiscard]] std::string hex() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325U;
};

inline std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

inline std::vector<std::string> hard_strings() {
  std::vector<std::string> strings;
  for (const nlohmann::json& each : golden_json("strings.json")) {
    if (each.is_string()) {
      strings.push_back(each.get<std::string>());
    } else if (each.contains("hex")) {
      strings.push_back(bytes_of_hex(each["hex"].get<std::string>()));
    } else {
      std::string& text = strings.emplace_back();
      for (const nlohmann::json& part : each["parts"]) {
        for (int i = part[1].get<int>(); i > 0; --i) text += part[0].get<std::string>();
      }
    }
  }
  return strings;
}

// As a JSON string, at most 200 bytes.
inline std::string shown(const std::string& text) {
  return nlohmann::json(text.substr(0, 200)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

inline std::vector<TokenId> unpacked_ids(const std::string& base64) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : base64) {
    if (c == '=') break;
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) throw std::runtime_error("no base64: " + base64);
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<unsigned char>(bytes[i]) | static_cast<unsigned char>(bytes[i + 1]) << 8);
  }
  return ids;
}

// Whether `ids` are those of a base64 string, or have the length and hash of [length, hash].
inline bool is_packed(const std::vector<TokenId>& ids, const nlohmann::json& packed) {
  if (packed.is_string()) return ids == unpacked_ids(packed.get<std::string>());
  Fnv hash;
  hash.add_ids(ids);
  return ids.size() == packed[0].get<std::size_t>() && hash.hex() == packed[1].get<std::string>();
}

// The same for a text, which is itself where it is short.
inline bool is_packed(const std::string& text, const nlohmann::json& packed) {
  if (packed.is_string()) return text == packed.get<std::string>();
  Fnv hash;
  hash.add(text);
  return text.size() == packed[0].get<std::size_t>() && hash.hex() == packed[1].get<std::string>();
}

}  // namespace metrale::engine
