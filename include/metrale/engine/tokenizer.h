// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, for Hugging Face tokenizer.json files with a BPE model: byte-level
// (GPT-2, Llama 3, Qwen) or over characters with byte fallback (SentencePiece's: Llama 2, Mistral, Gemma).
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

// A part of a text, in bytes.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct TokenizerParts;
class Detokenizer;

struct EncodeOptions {
  // Adds what the file's post-processor adds around a text: BOS, EOS.
  bool add_special_tokens = true;
  // Special tokens spelled out in the text become their id. Off for text that must not forge them: they are
  // then read as plain text. Added tokens that are not special are found in either case.
  bool parse_special = true;
  // With parse_special: parts of the text, in order and apart, in which special tokens are read as plain text
  // nevertheless. A special token that only reaches into one is no token either.
  std::span<const TextRange> plain = {};
};

// Immutable after load: every call may be made from many threads at once. Move-only.
class Tokenizer {
 public:
  // Reads a tokenizer.json of at most 512 MiB. Where a tokenizer_config.json lies beside it whose
  // tokenizer_class makes transformers frame texts itself (Llama, Gemma, GPT-NeoX, Cohere), its add_bos_token
  // and add_eos_token count instead of the post_processor. Supported:
  //   model          BPE: vocab, merges ("a b" and ["a", "b"]), unk_token, fuse_unk, ignore_merges,
  //   byte_fallback normalizer     null, NFC, NFKC, NFD, NFKD, Prepend, Replace, Lowercase, StripAccents,
  //   Strip, Sequence pre_tokenizer  null, Split, Digits, Metaspace, ByteLevel (only at the end), Sequence
  //   post_processor null, ByteLevel, TemplateProcessing (one sequence), Sequence of them
  //   decoder        ByteLevel where the pre_tokenizer ends with it; else Metaspace, or a Sequence of
  //   Replace,
  //                  ByteFallback, Fuse and Strip (at the start), in this order
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

  // Any bytes are accepted, at most 1 GiB. Text around invalid UTF-8 is cut as if the text ended there,
  // without a prefix (Prepend, Metaspace, add_prefix_space) behind it, and every invalid byte becomes the
  // token of that byte. A byte or character without a token becomes unk_token, or nothing where the file
  // names none. Time is O(n log n) in the length of the longest piece.
  //
  // Throws InvalidArgument where the text is too long or a Split pattern exceeds its step limit on it.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The tokens' bytes joined, as valid UTF-8: each maximal invalid part becomes one U+FFFD (the package's
  // ByteFallback gives one for every byte of a run of byte tokens that is not valid as a whole). What the
  // decoder takes off the start of a text is taken off. Special tokens are left out where `skip_special`.
  // Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The bytes that a token stands for inside a text, often a part of a UTF-8 sequence. Lives as long as the
  // tokenizer. Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // The token as the file spells it. Lives as long as the tokenizer. Throws as token_bytes does.
  [[nodiscard]] std::string_view token_spelling(TokenId id) const;
  // The id of a token by its spelling in the file ("Ġthe", "<|im_end|>"); nullopt where there is none.
  [[nodiscard]] std::optional<TokenId> token_id(std::string_view spelling) const;
  // Throws InvalidArgument for an id outside [0, vocab_size()).
  [[nodiscard]] bool is_special(TokenId id) const;
  // Model and added tokens together.
  [[nodiscard]] std::size_t vocab_size() const noexcept;

 private:
  friend class Detokenizer;
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts) noexcept;
  // The bytes of a token that begins a text.
  [[nodiscard]] std::string first_token_bytes(TokenId id) const;
  // How many characters the decoder may take off the start of a text.
  [[nodiscard]] std::size_t strip_count() const noexcept;
  // Takes at most `count` of them off `text`, the next part of a text of which nothing else is left so far;
  // returns how many the part after it may lose.
  [[nodiscard]] std::size_t strip_start(std::string& text, std::size_t count) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace metrale::engine
