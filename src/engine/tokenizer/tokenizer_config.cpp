// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include <metrale/base/fd.h>

#include "engine/tokenizer/json_node.h"

namespace metrale::engine {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20;

// "…" or {"content": "…", …}.
std::string read_token(const JsonNode& node) {
  return std::string(node.value().is_object() ? node.at("content").string() : node.string());
}

std::optional<std::string> read_chat_template(const JsonNode& node) {
  if (!node.value().is_array()) return std::string(node.string());
  for (const JsonNode& each : node.elements()) {
    if (each.at("name").string() == "default") return std::string(each.at("template").string());
  }
  return std::nullopt;
}

}  // namespace

const std::string* TokenizerConfig::special_token(std::string_view name) const {
  const auto entry = std::find_if(special_tokens.begin(), special_tokens.end(),
                                  [&](const auto& each) { return each.first == name; });
  return entry == special_tokens.end() ? nullptr : &entry->second;
}

std::optional<TokenizerConfig::Frame> TokenizerConfig::frame() const {
  struct Class {
    std::string_view name;
    const char* bos;
    const char* eos;
    bool adds_bos;
  };
  // With what they take where the file does not say.
  constexpr std::array<Class, 5> kClasses = {
      {{"LlamaTokenizer", "<s>", "</s>", true},
       {"CodeLlamaTokenizer", "<s>", "</s>", true},
       {"GemmaTokenizer", "<bos>", "<eos>", true},
       {"GPTNeoXTokenizer", "<|endoftext|>", "<|endoftext|>", false},
       {"CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", true}}};
  std::string_view name = tokenizer_class;
  if (name.ends_with("Fast")) name.remove_suffix(4);
  const auto found =
      std::find_if(kClasses.begin(), kClasses.end(), [&](const Class& each) { return each.name == name; });
  if (found == kClasses.end()) return std::nullopt;
  const auto token = [&](std::string_view key, const char* preset) {
    const std::string* given = special_token(key);
    return given == nullptr ? std::string(preset) : *given;
  };
  Frame frame;
  if (add_bos_token.value_or(found->adds_bos)) frame.bos = token("bos_token", found->bos);
  if (add_eos_token.value_or(false)) frame.eos = token("eos_token", found->eos);
  return frame;
}

TokenizerConfig read_tokenizer_config(const std::string& path) {
  TokenizerConfig config;
  if (!std::filesystem::exists(path)) return config;
  const std::string text = read_text_file(path, kMaxConfigBytes);
  simdjson::dom::parser parser;
  const JsonNode root = parse_json(parser, text, path);
  if (const auto name = root.find("tokenizer_class")) config.tokenizer_class = name->string();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    if (const auto token = root.find(name)) config.special_tokens.emplace_back(name, read_token(*token));
  }
  if (const auto flag = root.find("add_bos_token")) config.add_bos_token = flag->boolean();
  if (const auto flag = root.find("add_eos_token")) config.add_eos_token = flag->boolean();
  if (const auto chat = root.find("chat_template")) config.chat_template = read_chat_template(*chat);
  return config;
}

}  // namespace metrale::engine
