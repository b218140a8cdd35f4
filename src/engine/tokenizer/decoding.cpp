// SPDX-License-Identifier: Apache-2.0
// From ids to text, whole and token by token.
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const std::string_view token = token_bytes(id);
    if (!skip_special || !is_special(id)) bytes += token;
  }
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  if (append_repaired_utf8(text, bytes) != 0) text += kReplacementCharacter;
  return text;
}

std::string Detokenizer::push(TokenId id) {
  const std::string_view token = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += token;
  std::string text;
  const std::size_t incomplete = append_repaired_utf8(text, held_);
  held_.erase(0, held_.size() - incomplete);
  return text;
}

std::string Detokenizer::finish() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace metrale::engine
