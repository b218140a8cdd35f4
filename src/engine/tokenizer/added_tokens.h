// SPDX-License-Identifier: Apache-2.0
// AddedTokenFinder: finds added tokens in a text, leftmost first and the longest of those that begin there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/spec.h"

namespace metrale::engine {

// A token may be no longer: a search takes at most text length times token length steps.
inline constexpr std::size_t kMaxAddedTokenBytes = 1024;

// A part of a text: an added token, or text between them.
struct Segment {
  std::string_view text;
  std::optional<TokenId> id;
};

// Where special tokens count.
struct SpecialRules {
  bool parse = true;
  std::span<const TextRange> plain;  // in order and apart: special tokens that touch one do not count
  std::size_t offset = 0;            // of the text that is searched, in what `plain` counts from

  // The first plain range that ends behind `begin`, counted from the text's start; nullopt where there is
  // none.
  [[nodiscard]] std::optional<TextRange> plain_behind(std::size_t begin) const;
};

// Immutable; safe to use from many threads.
class AddedTokenFinder {
 public:
  // Of two tokens with the same content the first counts.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // Replaces `segments` with the parts of `text`, in order. Special tokens that do not count by the
  // rules are text. Any bytes are accepted. Like the `tokenizers` package, a token that begins within the
  // white space that an rstrip token before it took is found too.
  void find(std::string_view text, const SpecialRules& rules, std::vector<Segment>& segments) const;

 private:
  using Node = std::uint32_t;
  static constexpr Node kNoNode = 0;  // the root is nobody's child

  struct Match {
    std::size_t token = 0;
    std::size_t length_bytes = 0;
  };
  void insert(std::size_t token);
  [[nodiscard]] Node child(Node node, unsigned char byte) const;
  [[nodiscard]] std::optional<Match> longest_at(std::string_view text) const;
  // The same at `at` of a text, but for special tokens that do not count: those make `at` skip them.
  [[nodiscard]] std::optional<Match> counting_at(std::string_view text, const SpecialRules& rules,
                                                 std::size_t& at) const;
  [[nodiscard]] bool touches_word(std::string_view text, TextRange range) const;

  static constexpr std::size_t kNoToken = SIZE_MAX;
  std::vector<AddedToken> tokens_;
  std::array<Node, 256> root_{};
  std::unordered_map<std::uint64_t, Node> edges_;
  std::vector<std::size_t> token_at_;  // by node
  std::optional<Regex> word_;          // where a token asks for single_word
};

}  // namespace metrale::engine
