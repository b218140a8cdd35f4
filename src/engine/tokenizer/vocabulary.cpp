// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/byte_alphabet.h"

namespace metrale::engine {

namespace {

std::string bytes_of(std::string_view spelling, const DecoderSpec& decoder) {
  if (decoder.byte_level) {
    // A spelling outside the byte alphabet (an added token with a space in it) is its own text.
    return bytes_of_spelling(spelling).value_or(std::string(spelling));
  }
  if (decoder.byte_fallback) {
    if (const auto byte = byte_of_fallback_spelling(spelling)) return {static_cast<char>(*byte)};
  }
  std::string text(spelling);
  for (const ReplaceStep& step : decoder.replacements)
    text = replace_matches(step.pattern, text, step.content);
  return text;
}

}  // namespace

Vocabulary::Vocabulary(const TokenizerSpec& spec)
    : first_token_drops_(spec.decoder.first_token_drops), special_(spec.spellings.size(), false) {
  std::size_t total_bytes = 0;
  for (const std::string& spelling : spec.spellings) total_bytes += spelling.size();
  spellings_.reserve(total_bytes);
  bytes_.reserve(total_bytes);
  spelling_ends_.reserve(spec.spellings.size());
  byte_ends_.reserve(spec.spellings.size());
  index_.reserve(spec.spellings.size());
  for (const std::string& spelling : spec.spellings) {
    const std::size_t begin = spellings_.size();
    spellings_ += spelling;
    index_.emplace(std::string_view(spellings_).substr(begin), static_cast<TokenId>(byte_ends_.size()));
    spelling_ends_.push_back(spellings_.size());
    bytes_ += bytes_of(spelling, spec.decoder);
    byte_ends_.push_back(bytes_.size());
  }
  for (const AddedToken& token : spec.added_tokens) {
    if (token.special) special_[static_cast<std::size_t>(token.id)] = true;
  }
}

std::optional<TokenId> Vocabulary::find(std::string_view spelling) const {
  const auto entry = index_.find(spelling);
  if (entry == index_.end()) return std::nullopt;
  return entry->second;
}

std::string Vocabulary::first_bytes(TokenId id) const {
  if (first_token_drops_.empty()) return std::string(bytes(id));
  std::string text(spelling(id));
  for (std::size_t at = 0; (at = text.find(first_token_drops_, at)) != std::string::npos;)
    text.erase(at, first_token_drops_.size());
  return text;
}

void Vocabulary::check(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= size()) {
    throw InvalidArgument(fmt::format("token id {} is outside the vocabulary of {} tokens", id, size()));
  }
}

}  // namespace metrale::engine
