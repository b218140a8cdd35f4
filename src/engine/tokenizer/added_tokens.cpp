// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

constexpr std::string_view kWordCharacter = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])";

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_at_(1, kNoToken) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) insert(i);
  if (std::any_of(tokens_.begin(), tokens_.end(),
                  [](const AddedToken& token) { return token.single_word; })) {
    word_ = Regex::from_pcre2(kWordCharacter);
  }
}

AddedTokenFinder::Node AddedTokenFinder::child(Node node, unsigned char byte) const {
  if (node == 0) return root_[byte];
  const auto edge = edges_.find(std::uint64_t{node} << 8 | byte);
  return edge == edges_.end() ? kNoNode : edge->second;
}

void AddedTokenFinder::insert(std::size_t token) {
  Node node = 0;
  for (const char c : tokens_[token].content) {
    const auto byte = static_cast<unsigned char>(c);
    Node next = child(node, byte);
    if (next == kNoNode) {
      next = static_cast<Node>(token_at_.size());
      token_at_.push_back(kNoToken);
      if (node == 0) {
        root_[byte] = next;
      } else {
        edges_.emplace(std::uint64_t{node} << 8 | byte, next);
      }
    }
    node = next;
  }
  if (node != 0 && token_at_[node] == kNoToken) token_at_[node] = token;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text) const {
  std::optional<Match> longest;
  Node node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == kNoNode) break;
    if (token_at_[node] != kNoToken) longest = Match{token_at_[node], i + 1};
  }
  return longest;
}

bool AddedTokenFinder::touches_word(std::string_view text, TextRange range) const {
  RegexMatcher matcher;
  const auto is_word = [&](std::string_view around, const Utf8Unit& unit, bool at_front) {
    if (unit.kind != Utf8Kind::kCharacter) return false;
    const std::string_view character =
        at_front ? around.substr(0, unit.length_bytes) : around.substr(around.size() - unit.length_bytes);
    return matcher.find(*word_, character, 0).has_value();
  };
  const std::string_view before = text.substr(0, range.begin);
  const std::string_view after = text.substr(range.end);
  return (!before.empty() && is_word(before, last_utf8_unit(before), false)) ||
         (!after.empty() && is_word(after, first_utf8_unit(after), true));
}

std::optional<TextRange> SpecialRules::plain_behind(std::size_t begin) const {
  const auto range = std::partition_point(plain.begin(), plain.end(),
                                          [&](const TextRange& each) { return each.end <= offset + begin; });
  if (range == plain.end()) return std::nullopt;
  return TextRange{std::max(range->begin, offset) - offset, range->end - offset};
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::counting_at(std::string_view text,
                                                                     const SpecialRules& rules,
                                                                     std::size_t& at) const {
  std::optional<Match> match = longest_at(text.substr(at));
  if (!match) {
    ++at;
    return std::nullopt;
  }
  const std::size_t end = at + match->length_bytes;
  if (!tokens_[match->token].special) return match;
  if (!rules.parse) {
    at = end;
    return std::nullopt;
  }
  const std::optional<TextRange> plain = rules.plain_behind(at);
  if (!plain || plain->begin >= end) return match;
  if (plain->begin <= at) {
    at = std::min(end, plain->end);
    return std::nullopt;
  }
  // It reaches into plain text: a shorter one may lie before that.
  match = longest_at(text.substr(at, plain->begin - at));
  if (!match) ++at;
  return match;
}

void AddedTokenFinder::find(std::string_view text, const SpecialRules& rules,
                            std::vector<Segment>& segments) const {
  segments.clear();
  std::size_t done = 0;   // where the last found token ended
  TextRange known_space;  // the last white space measured: rstrip tokens in it share it
  std::size_t at = 0;
  while (at < text.size()) {
    if (root_[static_cast<unsigned char>(text[at])] == kNoNode) {
      ++at;
      continue;
    }
    const std::optional<Match> match = counting_at(text, rules, at);
    if (!match) continue;
    const AddedToken& token = tokens_[match->token];
    TextRange range{at, at + match->length_bytes};
    at = range.end;
    if (token.single_word && touches_word(text, range)) continue;
    if (token.lstrip)
      range.begin = std::max(white_space_before(text, range.begin, std::min(done, range.begin)), done);
    if (token.rstrip) {
      if (range.end < known_space.begin || range.end >= known_space.end) {
        known_space = {range.end, white_space_after(text, range.end)};
      }
      range.end = std::max(range.end, known_space.end);
    }
    if (done < range.begin) segments.push_back({text.substr(done, range.begin - done), std::nullopt});
    if (range.begin < range.end)
      segments.push_back({text.substr(range.begin, range.end - range.begin), token.id});
    done = range.end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), std::nullopt});
}

}  // namespace metrale::engine
