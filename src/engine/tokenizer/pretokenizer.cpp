// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pretokenizer.h"

#include <algorithm>
#include <cstddef>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

// GPT-2's cut: contractions, words, numbers and other runs with the space before them, white space.
constexpr std::string_view kByteLevelPattern =
    R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

template <class Found>
void for_each_digit(std::string_view text, Found found) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = first_utf8_unit(text.substr(at));
    const std::size_t end = at + unit.length_bytes;
    if (is_numeric(unit.code_point)) found(at, end);
    at = end;
  }
}

// Joins neighbours of `spans` (which cover a text) as the behaviour asks.
template <class Span>
void merge_spans(std::vector<Span>& spans, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kRemoved || behavior == SplitBehavior::kIsolated) return;
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> merged;
  bool previous_is_match = false;
  for (const Span& span : spans) {
    const bool joins = behavior == SplitBehavior::kContiguous ? span.is_match == previous_is_match
                                                              : span.is_match && !previous_is_match;
    previous_is_match = span.is_match;
    if (!joins || merged.empty()) {
      merged.push_back(span);
    } else if (backwards) {
      merged.back().range.begin = span.range.begin;
    } else {
      merged.back().range.end = span.range.end;
    }
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  spans = std::move(merged);
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) {
  steps_.reserve(steps.size());
  for (PreTokenizerStep& step : steps) steps_.push_back(make_step(std::move(step)));
}

PreTokenizer::Step PreTokenizer::make_step(PreTokenizerStep&& spec) {
  Step step;
  std::visit(Overloaded{[&](SplitStep& split) {
                          step.regex = std::move(split.pattern);
                          step.behavior = split.behavior;
                          step.invert = split.invert;
                        },
                        [&](const DigitsStep& digits) {
                          step.on_digits = true;
                          step.behavior =
                              digits.individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
                        },
                        [&](MetaspaceStep& metaspace) {
                          step.prefix = metaspace.replacement;
                          step.scheme = metaspace.scheme;
                          step.space = Regex::from_literal(" ", "Metaspace");
                          step.behavior = SplitBehavior::kMergedWithNext;
                          if (metaspace.split) step.regex = Regex::from_literal(step.prefix, "Metaspace");
                        },
                        [&](const ByteLevelStep& byte_level) {
                          step.prefix = " ";
                          if (byte_level.add_prefix_space) step.scheme = PrependScheme::kAlways;
                          if (byte_level.use_regex)
                            step.regex = Regex::from_oniguruma(kByteLevelPattern, "ByteLevel");
                        }},
             spec);
  return step;
}

void PreTokenizer::split(const Step& step, std::string_view piece, Workspace& workspace) {
  auto& spans = workspace.spans_;
  spans.clear();
  std::size_t done = 0;
  const auto found = [&](std::size_t begin, std::size_t end) {
    if (done != begin) spans.push_back({{done, begin}, step.invert});
    spans.push_back({{begin, end}, !step.invert});
    done = end;
  };
  if (step.on_digits) {
    for_each_digit(piece, found);
  } else if (step.regex) {
    for_each_match(*step.regex, workspace.matcher_, piece, found);
  }
  if (done != piece.size()) spans.push_back({{done, piece.size()}, step.invert});
  merge_spans(spans, step.behavior);
  for (const auto& [range, is_match] : spans) {
    const bool dropped = range.begin == range.end || (is_match && step.behavior == SplitBehavior::kRemoved);
    if (!dropped) workspace.next_.push_back(piece.substr(range.begin, range.end - range.begin));
  }
}

bool PreTokenizer::prepends(const Step& step, std::string_view piece, bool begins_text, TextPlace place) {
  if (step.scheme == PrependScheme::kNever || piece.starts_with(step.prefix)) return false;
  if (step.scheme == PrependScheme::kFirst) return begins_text && place == TextPlace::kStart;
  return !(begins_text && place == TextPlace::kContinues);
}

void PreTokenizer::cut(std::string_view text, TextPlace place, Workspace& workspace) const {
  auto& pieces = workspace.pieces_;
  workspace.changed_.clear();
  pieces.clear();
  if (!text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    workspace.next_.clear();
    for (std::string_view piece : pieces) {
      const bool begins_text = piece.data() == text.data();
      if (step.space && piece.find(' ') != std::string_view::npos) {
        piece = workspace.changed_.emplace_back(replace_matches(*step.space, piece, step.prefix));
      }
      if (prepends(step, piece, begins_text, place)) {
        piece = workspace.changed_.emplace_back(step.prefix + std::string(piece));
      }
      if (step.on_digits || step.regex) {
        split(step, piece, workspace);
      } else {
        workspace.next_.push_back(piece);
      }
    }
    pieces.swap(workspace.next_);
  }
}

}  // namespace metrale::engine
