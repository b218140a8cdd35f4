// SPDX-License-Identifier: Apache-2.0
// tokenizer.json documents for tests: the golden files, and small ones made on the spot.
#pragma once

#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/byte_alphabet.h"

namespace metrale::engine {

inline nlohmann::json golden_json(const std::string& name) {
  const std::string path = std::string(METRALE_GOLDEN_DIR) + "/" + name;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(in);
}

inline Tokenizer golden_tokenizer(const std::string& name) {
  return Tokenizer::load(std::string(METRALE_GOLDEN_DIR) + "/" + name + ".json");
}

inline Tokenizer tokenizer_of(const nlohmann::json& document) {
  return Tokenizer::parse(document.dump(), "test.json");
}

inline void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

inline std::string spelling_of_byte(unsigned char byte) {
  std::string out;
  append_utf8(out, kByteCharacters[byte]);
  return out;
}

// All 256 bytes (ids 0 … 255 in byte order), then the merges "a b" in order, each with its result as a new
// token.
inline nlohmann::json tiny_json(const std::vector<std::string>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spelling_of_byte(static_cast<unsigned char>(byte))] = byte;
  for (const std::string& merge : merges) {
    std::string result = merge;
    result.erase(result.find(' '), 1);
    vocab.emplace(result, vocab.size());
  }
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// A vocabulary over characters: <unk>, the 256 byte tokens, then `characters`, then the merges' results.
// Llama 2's steps.
inline nlohmann::json characters_json(const std::vector<std::string>& characters,
                                      const std::vector<std::string>& merges = {}) {
  nlohmann::json vocab = {{"<unk>", 0}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte + 1;
  for (const std::string& character : characters) vocab.emplace(character, vocab.size());
  for (const std::string& merge : merges) {
    std::string result = merge;
    result.erase(result.find(' '), 1);
    vocab.emplace(result, vocab.size());
  }
  const nlohmann::json space = {{"String", " "}};
  const nlohmann::json mark = {{"String", "▁"}};
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", space}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

inline nlohmann::json metaspace_json(const char* scheme, bool split) {
  return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
}

// Adds a token after all others and returns its id.
inline TokenId add_token(nlohmann::json& document, const std::string& content,
                         const nlohmann::json& flags = {}) {
  std::size_t id = document["model"]["vocab"].size();
  for (const auto& token : document["added_tokens"]) {
    if (token["id"].get<std::size_t>() >= id) id = token["id"].get<std::size_t>() + 1;
  }
  nlohmann::json token = {{"id", id},        {"content", content},   {"special", false},   {"lstrip", false},
                          {"rstrip", false}, {"single_word", false}, {"normalized", false}};
  if (!flags.is_null()) token.update(flags);
  document["added_tokens"].push_back(token);
  return static_cast<TokenId>(id);
}

// Random text of valid UTF-8: characters of all lengths, with runs of spaces, digits and marks among them.
inline std::string random_text(std::mt19937& random, std::size_t characters) {
  std::string text;
  const auto below = [&](std::uint32_t bound) { return static_cast<char32_t>(random() % bound); };
  for (std::size_t i = 0; i < characters; ++i) {
    char32_t c = 0;
    switch (random() % 8) {
      case 0:
        c = U" \n\t\r\u00a0\u3000"[below(6)];
        break;
      case 1:
        c = U'0' + below(10);
        break;
      case 2:
        c = 0x300 + below(0x50);
        break;
      case 3:
        c = 0x4E00 + below(0x1000);
        break;
      case 4:
        c = 0x1F300 + below(0x300);
        break;
      case 5:
        c = below(0x110000);
        break;
      default:
        c = below(0x80);
        break;
    }
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  return text;
}

inline std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::string_view text,
                                          EncodeOptions options = {}) {
  std::vector<std::string> pieces;
  for (const TokenId id : tokenizer.encode(text, options)) pieces.emplace_back(tokenizer.token_bytes(id));
  return pieces;
}

}  // namespace metrale::engine
