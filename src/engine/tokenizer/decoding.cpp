// SPDX-License-Identifier: Apache-2.0
// From ids to text, whole and token by token.
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {

std::size_t whole_character_bytes(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const Utf8Unit unit = first_utf8_unit(bytes);
  return unit.kind == Utf8Kind::kCharacter ? unit.length_bytes : 0;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  bool first = true;
  for (const TokenId id : ids) {
    const std::string_view token = token_bytes(id);
    if (skip_special && is_special(id)) continue;
    if (first) {
      bytes += first_token_bytes(id);
    } else {
      bytes += token;
    }
    first = false;
  }
  static_cast<void>(strip_start(bytes, strip_count()));
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  if (append_repaired_utf8(text, bytes) != 0) text += kReplacementCharacter;
  return text;
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), strips_left_(tokenizer.strip_count()) {}

std::string Detokenizer::push(TokenId id) {
  const std::string_view token = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  if (first_) {
    held_ = tokenizer_->first_token_bytes(id);
  } else {
    held_ += token;
  }
  first_ = false;
  std::string text;
  const std::size_t incomplete = append_repaired_utf8(text, held_);
  held_.erase(0, held_.size() - incomplete);
  strips_left_ = tokenizer_->strip_start(text, strips_left_);
  return text;
}

std::string Detokenizer::finish() {
  first_ = true;
  strips_left_ = tokenizer_->strip_count();
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace metrale::engine
