// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: engine_text
// A tokenizer file and a text, divided by the first NUL byte; an empty file stands for a small built-in one.
// A file is refused with a typed error or serves: ids lie in the vocabulary and streaming gives what decoding
// gives.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/engine/chat_template.h>
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

namespace {

using metrale::engine::Detokenizer;
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
  if (metrale::engine::uses_chatml(tokenizer)) {
    const std::vector<metrale::engine::ChatMessage> messages = {{"user", std::string(text)}};
    (void)metrale::engine::encode_chatml(tokenizer, messages, true, text);
  }
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
    static const Tokenizer small = Tokenizer::parse(kSmallFile, "small");
    if (file.empty()) {
      exercise(small, text);
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
