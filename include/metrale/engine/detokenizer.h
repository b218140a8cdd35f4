// SPDX-License-Identifier: Apache-2.0
// Detokenizer: token ids to text, one id at a time, for streaming.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <metrale/engine/tokenizer.h>

namespace metrale::engine {

// How many bytes the valid UTF-8 character at the start of `bytes` has; 0 where none is.
[[nodiscard]] std::size_t whole_character_bytes(std::string_view bytes);

// One per output stream; not thread-safe. Holds at most 3 bytes. All pushes and the finish, joined, equal
// Tokenizer::decode of all the ids. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true);

  // The text that is complete with this token: valid UTF-8, perhaps empty. A sequence that may still be
  // completed by the next tokens is held back; bytes that cannot become valid any more come out as U+FFFD.
  // Throws InvalidArgument for an id outside the vocabulary; the state is then unchanged.
  [[nodiscard]] std::string push(TokenId id);

  // What is held back, as U+FFFD since nothing completes it; empty where nothing is. Ready for new text after
  // it.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_ = true;        // no token has given text
  std::size_t strips_left_;  // how many characters the decoder may still take off the start
  std::string held_;
};

}  // namespace metrale::engine
