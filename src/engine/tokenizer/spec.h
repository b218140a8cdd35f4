// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json says, checked and resolved to ids, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/regex.h"

namespace metrale::engine {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in the normalised text
};

// What becomes of the matches of a Split pattern.
enum class SplitBehavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the pattern describes what lies between the matches
};
struct DigitsStep {
  bool individual = false;
};
struct ByteLevelStep {
  bool add_prefix_space = false;
  bool use_regex = true;
};
// Which pieces get the replacement before them: all, the one at the very start of the text, none.
enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };
struct MetaspaceStep {
  std::string replacement;  // of a space: one character, "▁"
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;  // before each replacement
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep, MetaspaceStep>;

struct Merge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;
};

struct BpeSpec {
  std::vector<Merge> merges;  // in the order of their rank
  std::optional<TokenId> unknown;
  bool fuse_unknown = false;
  bool ignore_merges = false;
  bool byte_level = false;     // over the byte alphabet; else over characters
  bool byte_fallback = false;  // a character without a token is the tokens "<0xE2>" … of its bytes
};

// How spellings become text. With `byte_level` nothing else counts.
struct DecoderSpec {
  bool byte_level = false;
  std::vector<ReplaceStep> replacements;
  std::string first_token_drops;  // what is cut out of the first token instead of being replaced
  bool byte_fallback = false;     // "<0xE2>" is that byte
  std::string strips;             // a character that is taken off the start of the whole text …
  std::size_t strip_count = 0;    // … at most so many times
};

struct TokenizerSpec {
  std::vector<std::string> spellings;  // by id, without gaps
  std::vector<bool> in_model;          // by id: in the model's vocabulary, not only an added token
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;  // with bpe.byte_level the last one is the only ByteLevelStep
  std::vector<TokenId> prefix;                  // of the post-processor
  std::vector<TokenId> suffix;
  BpeSpec bpe;
  DecoderSpec decoder;
};

// Throws FormatError and Unsupported; `origin` is the path in messages.
[[nodiscard]] TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& origin);

}  // namespace metrale::engine
