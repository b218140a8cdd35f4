// SPDX-License-Identifier: Apache-2.0
// Regex: a compiled PCRE2 pattern, shared by threads; RegexMatcher: the state of one thread's matching.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {

class Regex {
 public:
  // A pattern in Oniguruma's syntax, or a text that is matched as it stands. JIT-compiled where the machine
  // allows. Throws Unsupported in the name of `where` for a pattern that does not compile or has no PCRE2
  // form.
  [[nodiscard]] static Regex from_oniguruma(std::string_view pattern, std::string_view where);
  [[nodiscard]] static Regex from_literal(std::string_view text, std::string_view where);
  // A pattern in PCRE2's own syntax, for our own patterns.
  [[nodiscard]] static Regex from_pcre2(std::string_view pattern);

  [[nodiscard]] const std::string& pattern() const { return pattern_; }

 private:
  friend class RegexMatcher;
  struct FreeCode {
    void operator()(void* code) const noexcept;
  };
  Regex(std::string_view shown, std::string_view pattern, unsigned extra_options, std::string_view where);

  std::string pattern_;  // as the file has it
  std::unique_ptr<void, FreeCode> code_;
};

class RegexMatcher {
 public:
  RegexMatcher();

  // The first match at or after byte `from`. `text` must be valid UTF-8 and `from` a character's first byte.
  // Throws InvalidArgument where the search takes more steps than a search linear in the text could need.
  [[nodiscard]] std::optional<TextRange> find(const Regex& regex, std::string_view text, std::size_t from);

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  struct FreeContext {
    void operator()(void* context) const noexcept;
  };
  struct FreeStack {
    void operator()(void* stack) const noexcept;
  };
  void give_larger_stack();

  std::unique_ptr<void, Free> match_;
  std::unique_ptr<void, FreeContext> context_;
  std::unique_ptr<void, FreeStack> stack_;  // where a match has needed more than the JIT's own
};

// Calls found(begin, end) for each match in `text`, in order; `found` may not change the text. An empty match
// right behind a match is passed over.
template <class Found>
void for_each_match(const Regex& regex, RegexMatcher& matcher, std::string_view text, Found found) {
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const std::optional<TextRange> match = matcher.find(regex, text, from);
    if (!match) return;
    if (match->begin == match->end && match->end == last_end) {
      if (from == text.size()) return;
      from += first_utf8_unit(text.substr(from)).length_bytes;
      continue;
    }
    found(match->begin, match->end);
    from = match->end;
    last_end = match->end;
  }
}

// `text` with every match replaced by `content`. Throws as RegexMatcher::find does.
[[nodiscard]] std::string replace_matches(const Regex& regex, std::string_view text,
                                          std::string_view content);

}  // namespace metrale::engine
