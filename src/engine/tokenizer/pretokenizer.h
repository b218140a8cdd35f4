// SPDX-License-Identifier: Apache-2.0
// PreTokenizer: cuts text into the pieces that BPE works on.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/spec.h"

namespace metrale::engine {

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
    std::deque<std::string> prefixed_;  // pieces that got a space before them
  };

  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  // `text` must be valid UTF-8. `continues`: the text goes on after something that is no text (invalid
  // bytes), so its first piece gets no prefix space. Throws InvalidArgument where a pattern exceeds its step
  // limit.
  void cut(std::string_view text, bool continues, Workspace& workspace) const;

 private:
  struct Step {
    bool add_prefix_space = false;
    bool on_digits = false;
    std::optional<Regex> regex;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  static Step make_step(PreTokenizerStep&& spec);
  static void split(const Step& step, std::string_view piece, Workspace& workspace);

  std::vector<Step> steps_;
};

}  // namespace metrale::engine
