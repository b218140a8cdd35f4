// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "support/tiny_model.h"

namespace metrale::test {

namespace {

constexpr const char* kSpecials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"};
constexpr std::size_t kBytes = 256;
constexpr const char* kSpace = "\xC4\xA0";  // U+0120, the stand-in of a space

// UTF-8 of a code point below U+0800.
std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | (code >> 6)), static_cast<char>(0x80U | (code & 0x3FU))};
}

bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte < 0xAD) || byte >= 0xAE;
}

// The stand-in of each byte: itself where printable, else the next free code point from U+0100.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  unsigned next_free = 0x100;
  for (unsigned byte = 0; byte < kBytes; ++byte)
    alphabet.push_back(utf8(is_printable(byte) ? byte : next_free++));
  return alphabet;
}

// Pairs of the frequent letters, a space before each letter, pairs with a third letter.
std::vector<std::pair<std::string, std::string>> merge_pairs(std::size_t count) {
  const std::string letters = "etaoinshrdlu";
  std::vector<std::pair<std::string, std::string>> merges;
  for (const char a : letters) {
    for (const char b : letters) merges.emplace_back(std::string{a}, std::string{b});
  }
  const std::size_t pairs = merges.size();
  for (char c = 'a'; c <= 'z'; ++c) merges.emplace_back(kSpace, std::string{c});
  for (std::size_t i = 0; i < pairs; ++i) {
    for (const char c : letters) merges.emplace_back(merges[i].first + merges[i].second, std::string{c});
  }
  expects(count <= merges.size(), "a tiny model has at most 2158 tokens");
  merges.resize(count);
  return merges;
}

nlohmann::json added_tokens() {
  nlohmann::json added = nlohmann::json::array();
  for (std::size_t i = 0; i < std::size(kSpecials); ++i) {
    added.push_back({{"content", kSpecials[i]},
                     {"id", kBytes + i},
                     {"lstrip", false},
                     {"normalized", false},
                     {"rstrip", false},
                     {"single_word", false},
                     {"special", true}});
  }
  return added;
}

nlohmann::json bpe_model(std::uint32_t vocab_size) {
  std::vector<std::string> tokens = byte_alphabet();
  tokens.insert(tokens.end(), std::begin(kSpecials), std::end(kSpecials));
  expects(vocab_size >= tokens.size(), "a tiny model has at least 260 tokens");
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : merge_pairs(vocab_size - tokens.size())) {
    merges.push_back(left + " " + right);
    tokens.push_back(left + right);
  }
  nlohmann::json vocab = nlohmann::json::object();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  return {{"byte_fallback", false},      {"continuing_subword_prefix", nullptr},
          {"dropout", nullptr},          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},           {"ignore_merges", false},
          {"merges", std::move(merges)}, {"type", "BPE"},
          {"unk_token", nullptr},        {"vocab", std::move(vocab)}};
}

}  // namespace

std::string tiny_tokenizer_json(const TinyModel& model) {
  const nlohmann::json byte_level = {
      {"add_prefix_space", false}, {"trim_offsets", true}, {"type", "ByteLevel"}, {"use_regex", true}};
  const nlohmann::json digits = {{"individual_digits", true}, {"type", "Digits"}};
  const nlohmann::json tokenizer = {
      {"added_tokens", added_tokens()},
      {"decoder", byte_level},
      {"model", bpe_model(model.config.at("vocab_size"))},
      {"normalizer", nullptr},
      {"padding", nullptr},
      {"post_processor", nullptr},
      {"pre_tokenizer", {{"pretokenizers", {digits, byte_level}}, {"type", "Sequence"}}},
      {"truncation", nullptr},
      {"version", "1.0"},
  };
  return tokenizer.dump();
}

}  // namespace metrale::test
