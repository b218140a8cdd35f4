// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, for Hugging Face tokenizer.json files with a byte-level BPE model.
// Ids equal those of the `tokenizers` package, for the parts of the format listed at load().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace metrale::engine {

using TokenId = std::int32_t;

struct TokenizerParts;

struct EncodeOptions {
  // Adds what the file's post-processor adds around a text: BOS, EOS.
  bool add_special_tokens = true;
  // Special tokens spelled out in the text become their id. Off for text that must not forge them: they are
  // then read as plain text. Added tokens that are not special are found in either case.
  bool parse_special = true;
};

// Immutable after load: every call may be made from many threads at once. Move-only.
class Tokenizer {
 public:
  // Reads a tokenizer.json of at most 512 MiB. Supported:
  //   model          BPE: vocab, merges ("a b" and ["a", "b"]), unk_token, fuse_unk, ignore_merges
  //   pre_tokenizer  ByteLevel, or a Sequence of Split and Digits that ends with ByteLevel
  //   normalizer     null, NFC, NFKC, Sequence of them
  //   post_processor null, ByteLevel, TemplateProcessing (one sequence), Sequence of them
  //   decoder        ByteLevel
  //   added_tokens   special, lstrip, rstrip, single_word, normalized
  // Ids are 0 … n-1 without gaps. Truncation and padding are ignored: the engine has its own limits.
  // Split patterns mean what they mean to Oniguruma; \s is Unicode's White_Space.
  // Letters, digits and normal forms follow the Unicode versions of this machine's PCRE2 and utf8proc, so
  // characters younger than one of two implementations may be treated differently.
  //
  // Throws IoError, FormatError (what is wrong and where), Unsupported (field and value).
  [[nodiscard]] static Tokenizer load(const std::string& path);
  // The same from memory; `origin` stands for the path in messages.
  [[nodiscard]] static Tokenizer parse(std::string_view json, const std::string& origin);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // Any bytes are accepted, at most 1 GiB. Text around invalid UTF-8 is cut as if the text ended there, and
  // every invalid byte becomes the token of that byte. A byte without a token becomes unk_token, or nothing
  // where the file names none. Time is O(n log n) in the length of the longest piece.
  //
  // Throws InvalidArgument where the text is too long or a Split pattern exceeds its step limit on it.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The tokens' bytes joined, as valid UTF-8: each maximal invalid part becomes one U+FFFD. Special tokens
  // are left out where `skip_special`. Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The bytes that a token stands for, often a part of a UTF-8 sequence. Lives as long as the tokenizer.
  // Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // The id of a token by its spelling in the file ("Ġthe", "<|im_end|>"); nullopt where there is none.
  [[nodiscard]] std::optional<TokenId> token_id(std::string_view spelling) const;
  // Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] bool is_special(TokenId id) const;
  // Model and added tokens together.
  [[nodiscard]] std::size_t vocab_size() const noexcept;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts) noexcept;
  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace metrale::engine
