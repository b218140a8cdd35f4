// SPDX-License-Identifier: Apache-2.0
#include "score_texts.h"

#include <algorithm>
#include <string>

#include <metrale/base/error.h>

namespace metrale::app {
namespace {

using TokenList = std::vector<std::int32_t>;

// What the tokenizer puts before a text.
TokenList special_prefix(const engine::Tokenizer& tokenizer, std::string_view text) {
  const TokenList plain = tokenizer.encode(text, {.add_special_tokens = false});
  const TokenList full = tokenizer.encode(text);
  const auto found = std::search(full.begin(), full.end(), plain.begin(), plain.end());
  return {full.begin(), found};
}

TokenList stand_in_for_nothing(const engine::ModelConfig& config) {
  if (config.bos_id) return {*config.bos_id};
  if (!config.eos_ids.empty()) return {config.eos_ids.front()};
  throw InvalidArgument(
      "--prompt is empty, and the model has neither a BOS nor an EOS token to stand for it");
}

}  // namespace

PromptAndContinuation encode_pair(const engine::Tokenizer& tokenizer, const engine::ModelConfig& config,
                                  std::string_view prompt, std::string_view continuation,
                                  bool add_special_tokens) {
  constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
  const std::size_t last = prompt.find_last_not_of(kWhiteSpace);
  const std::size_t cut = last == std::string_view::npos ? 0 : last + 1;
  const std::string whole_text = std::string(prompt) + std::string(continuation);
  const TokenList context = tokenizer.encode(prompt.substr(0, cut), {.add_special_tokens = false});
  const TokenList whole = tokenizer.encode(whole_text, {.add_special_tokens = false});

  PromptAndContinuation pair;
  if (add_special_tokens) pair.tokens = special_prefix(tokenizer, whole_text);
  pair.tokens.insert(pair.tokens.end(), context.begin(), context.end());
  if (pair.tokens.empty()) pair.tokens = stand_in_for_nothing(config);
  pair.first_target = pair.tokens.size();
  if (whole.size() <= context.size()) {
    throw InvalidArgument(
        continuation.empty()
            ? "--continuation is empty: it needs a token at least"
            : "--continuation has no token of its own: its text melts into the prompt's last token");
  }
  pair.tokens.insert(pair.tokens.end(), whole.begin() + static_cast<std::ptrdiff_t>(context.size()),
                     whole.end());
  return pair;
}

}  // namespace metrale::app
