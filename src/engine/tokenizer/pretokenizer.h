// SPDX-License-Identifier: Apache-2.0
// PreTokenizer: cuts text into the pieces that BPE works on.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/spec.h"

namespace metrale::engine {

// Where a stretch of text begins.
enum class TextPlace : std::uint8_t {
  kStart,       // the whole text
  kAfterToken,  // behind an added token
  kContinues,   // behind invalid bytes: the text goes on, so nothing is put before it
};

class PreTokenizer {
 public:
  // The state of one thread's cutting, reused from text to text.
  class Workspace {
   public:
    // The pieces of the last cut, in order, none empty. Valid until the next cut, as long as its text lives.
    [[nodiscard]] const std::vector<std::string_view>& pieces() const { return pieces_; }

   private:
    friend class PreTokenizer;
    struct Span {
      TextRange range;
      bool is_match = false;
    };
    RegexMatcher matcher_;
    std::vector<std::string_view> pieces_;
    std::vector<std::string_view> next_;
    std::vector<Span> spans_;
    std::deque<std::string> changed_;  // pieces that are not parts of the text any more
  };

  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  // `text` must be valid UTF-8. Throws InvalidArgument where a pattern exceeds its step limit.
  void cut(std::string_view text, TextPlace place, Workspace& workspace) const;

 private:
  struct Step {
    std::string prefix;
    PrependScheme scheme = PrependScheme::kNever;
    std::optional<Regex> space;  // what becomes the prefix's character
    bool on_digits = false;
    std::optional<Regex> regex;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  static Step make_step(PreTokenizerStep&& spec);
  static bool prepends(const Step& step, std::string_view piece, bool begins_text, TextPlace place);
  static void split(const Step& step, std::string_view piece, Workspace& workspace);

  std::vector<Step> steps_;
};

}  // namespace metrale::engine
