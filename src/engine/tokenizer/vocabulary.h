// SPDX-License-Identifier: Apache-2.0
// Vocabulary: tokens by id and by spelling, and the text that each stands for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/spec.h"

namespace metrale::engine {

class Vocabulary {
 public:
  explicit Vocabulary(const TokenizerSpec& spec);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  ~Vocabulary() = default;

  [[nodiscard]] std::size_t size() const noexcept { return byte_ends_.size(); }
  [[nodiscard]] std::optional<TokenId> find(std::string_view spelling) const;
  // Throws InvalidArgument where `id` is not in [0, size()).
  void check(TokenId id) const;

  // The id must be checked before.
  [[nodiscard]] std::string_view spelling(TokenId id) const { return part(spellings_, spelling_ends_, id); }
  [[nodiscard]] std::string_view bytes(TokenId id) const { return part(bytes_, byte_ends_, id); }
  // The bytes of a token that begins a text.
  [[nodiscard]] std::string first_bytes(TokenId id) const;
  [[nodiscard]] bool is_special(TokenId id) const { return special_[static_cast<std::size_t>(id)]; }

 private:
  static std::string_view part(std::string_view all, const std::vector<std::size_t>& ends, TokenId id) {
    const auto at = static_cast<std::size_t>(id);
    const std::size_t begin = at == 0 ? 0 : ends[at - 1];
    return all.substr(begin, ends[at] - begin);
  }

  std::string spellings_;  // all of them joined; the index points into it, so a Vocabulary never moves
  std::string bytes_;
  std::vector<std::size_t> spelling_ends_;  // by id
  std::vector<std::size_t> byte_ends_;      // by id
  std::string first_token_drops_;
  std::vector<bool> special_;  // by id
  std::unordered_map<std::string_view, TokenId> index_;
};

}  // namespace metrale::engine
