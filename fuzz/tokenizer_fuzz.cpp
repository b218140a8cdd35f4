// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: engine_text
// A tokenizer file and a text, divided by the first NUL byte; an empty file stands for two small built-in
// ones, one over bytes and one over characters. A file is refused with a typed error or serves: ids lie in
// the vocabulary and streaming gives what decoding gives.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

namespace {

using metrale::engine::Detokenizer;
using metrale::engine::TextRange;
using metrale::engine::TokenId;
using metrale::engine::Tokenizer;

constexpr std::string_view kSmallFile = R"({
  "version": "1.0",
  "added_tokens": [
    {"id": 8, "content": "<|im_start|>", "special": true, "lstrip": false, "rstrip": false, "single_word": false, "normalized": false},
    {"id": 9, "content": "<|im_end|>", "special": true, "lstrip": true, "rstrip": true, "single_word": false, "normalized": false},
    {"id": 10, "content": "the", "special": false, "lstrip": false, "rstrip": false, "single_word": true, "normalized": true}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]},
  "post_processor": null,
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "unk_token": "?", "fuse_unk": true, "vocab":
    {"?": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4, "Ġa": 5, "Ã": 6, "aba": 7}, "merges": ["a b", ["Ġ", "a"], "ab a"]}
})";

constexpr std::string_view kCharacterFile = R"({
  "version": "1.0",
  "added_tokens": [
    {"id": 1, "content": "<s>", "special": true, "lstrip": false, "rstrip": true, "single_word": false, "normalized": false},
    {"id": 11, "content": "a b", "special": false, "lstrip": false, "rstrip": false, "single_word": false, "normalized": true}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": false, "strip_right": true},
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}]},
  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "unk_token": "?", "fuse_unk": true, "byte_fallback": true, "vocab":
    {"?": 0, "<s>": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4, "▁": 5, "a": 6, "b": 7, "▁a": 8, "ab": 9, "▁▁": 10},
    "merges": ["▁ a", "a b", "▁ ▁"]}
})";

void require(bool condition) {
  if (!condition) std::abort();
}

void exercise(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool flag : {false, true}) {
    const std::vector<TokenId> ids =
        tokenizer.encode(text, {.add_special_tokens = flag, .parse_special = flag});
    Detokenizer detokenizer(tokenizer, flag);
    std::string streamed;
    for (const TokenId id : ids) streamed += detokenizer.push(id);
    streamed += detokenizer.finish();
    require(streamed == tokenizer.decode(ids, flag));
  }
  const std::size_t half = text.size() / 2;
  const std::vector<TextRange> plain = {{half / 2, half}};
  (void)tokenizer.encode(text, {.plain = plain});
  std::vector<TokenId> ids;
  for (const char c : text) {
    ids.push_back(static_cast<TokenId>(static_cast<unsigned char>(c) % tokenizer.vocab_size()));
  }
  Detokenizer detokenizer(tokenizer, false);
  std::string streamed;
  for (const TokenId id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.finish();
  require(streamed == tokenizer.decode(ids, false));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t divider = input.find('\0');
  const std::string_view file = input.substr(0, divider);
  const std::string_view text = divider == std::string_view::npos ? file : input.substr(divider + 1);
  try {
    static const Tokenizer bytes = Tokenizer::parse(kSmallFile, "bytes");
    static const Tokenizer characters = Tokenizer::parse(kCharacterFile, "characters");
    if (file.empty()) {
      exercise(bytes, text);
      exercise(characters, text);
    } else {
      exercise(Tokenizer::parse(file, "fuzz"), text);
    }
  } catch (const metrale::FormatError&) {
    return 0;
  } catch (const metrale::Unsupported&) {
    return 0;
  } catch (const metrale::InvalidArgument&) {  // a pattern's step limit
    return 0;
  }
  return 0;
}
