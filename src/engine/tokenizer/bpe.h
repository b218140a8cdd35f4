// SPDX-License-Identifier: Apache-2.0
// Bpe: byte pair encoding of one piece of text, from single bytes or single characters up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/vocabulary.h"

namespace metrale::engine {

// The merge of two tokens, by open addressing.
class MergeTable {
 public:
  struct Entry {
    std::uint32_t rank = 0;
    TokenId result = kNone;
  };
  explicit MergeTable(const std::vector<Merge>& merges);
  // nullptr where the two do not merge.
  [[nodiscard]] const Entry* find(TokenId left, TokenId right) const;

 private:
  static constexpr TokenId kNone = -1;
  struct Slot {
    std::uint64_t pair = 0;
    Entry entry;
  };
  [[nodiscard]] std::size_t first_slot(std::uint64_t pair) const;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

// Immutable; safe to use from many threads.
class Bpe {
 public:
  // The state of one thread's encoding, reused from piece to piece.
  class Workspace {
   private:
    friend class Bpe;
    static constexpr std::uint32_t kEnd = 0xFFFFFFFF;
    struct Symbol {
      TokenId id = 0;
      std::uint32_t previous = 0;  // the end of the list is kEnd
      std::uint32_t next = 0;
      bool merged_away = false;
    };
    // A pair that may merge: rank above, position of its left symbol below, so that the smallest is merged
    // first.
    using Candidate = std::uint64_t;
    void push(TokenId id);
    std::vector<Symbol> symbols_;
    std::vector<Candidate> first_;  // of the units, in order
    std::vector<Candidate> heap_;   // of merged tokens
  };

  // The vocabulary must outlive it.
  Bpe(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  // Appends the tokens of `piece`, which begins as the tokens of its bytes (a vocabulary over bytes) or of
  // its characters; neighbours are then merged in the order of rank, leftmost first. A character without a
  // token is the fallback tokens of its bytes where all of them are there, and what has no token at all is
  // the unknown token, or nothing without one. An invalid byte counts as a character of one byte. Like the
  // `tokenizers` package, an unknown token comes after the fallback tokens that follow it. O(n log n). Throws
  // InvalidArgument for a piece over 2 GiB.
  void encode(std::string_view piece, Workspace& workspace, std::vector<TokenId>& ids) const;

 private:
  static constexpr TokenId kNoToken = -1;
  static constexpr std::uint32_t kEnd = Workspace::kEnd;

  void index_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary);
  // The symbols that a piece begins as.
  void begin_bytes(std::string_view piece, Workspace& workspace) const;
  void begin_characters(std::string_view piece, Workspace& workspace) const;
  [[nodiscard]] bool has_byte_tokens(std::string_view bytes) const;
  [[nodiscard]] std::optional<Workspace::Candidate> candidate_at(std::uint32_t position,
                                                                 const Workspace& workspace) const;
  void merge_all(Workspace& workspace) const;

  bool byte_level_;
  std::array<TokenId, 256> byte_tokens_{};  // over characters: the fallback tokens
  std::unordered_map<char32_t, TokenId> character_tokens_;
  MergeTable merges_;
  std::vector<TokenId> results_;  // by rank
  std::optional<TokenId> unknown_;
  bool fuse_unknown_;
  std::unordered_map<std::string_view, TokenId>
      whole_pieces_;  // with ignore_merges: by the text of the token
};

}  // namespace metrale::engine
