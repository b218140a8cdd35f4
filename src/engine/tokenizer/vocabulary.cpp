// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/byte_alphabet.h"

namespace metrale::engine {

Vocabulary::Vocabulary(const TokenizerSpec& spec) : special_(spec.spellings.size(), false) {
  std::size_t total_bytes = 0;
  for (const std::string& spelling : spec.spellings) total_bytes += spelling.size();
  spellings_.reserve(total_bytes);
  bytes_.reserve(total_bytes);
  byte_ends_.reserve(spec.spellings.size());
  index_.reserve(spec.spellings.size());
  for (const std::string& spelling : spec.spellings) {
    const std::size_t begin = spellings_.size();
    spellings_ += spelling;
    index_.emplace(std::string_view(spellings_).substr(begin), static_cast<TokenId>(byte_ends_.size()));
    // A spelling outside the byte alphabet (an added token with a space in it) is its own text.
    bytes_ += bytes_of_spelling(spelling).value_or(spelling);
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

void Vocabulary::check(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= size()) {
    throw InvalidArgument(fmt::format("token id {} is outside the vocabulary of {} tokens", id, size()));
  }
}

}  // namespace metrale::engine
