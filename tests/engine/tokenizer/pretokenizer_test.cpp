// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pretokenizer.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace metrale::engine {
namespace {

using Pieces = std::vector<std::string>;

template <class... Steps>
Pieces cut(std::string_view text, Steps... steps) {
  std::vector<PreTokenizerStep> list;
  (list.emplace_back(std::move(steps)), ...);
  PreTokenizer::Workspace workspace;
  PreTokenizer(std::move(list)).cut(text, TextPlace::kStart, workspace);
  return {workspace.pieces().begin(), workspace.pieces().end()};
}

SplitStep split(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  return {Regex::from_oniguruma(pattern, "test"), behavior, invert};
}

TEST(PreTokenizer, ByteLevelCutsWordsNumbersAndSpace) {
  EXPECT_EQ(cut("Hello  world's 123!?\n\n x", ByteLevelStep{}),
            (Pieces{"Hello", " ", " world", "'s", " 123", "!?", "\n\n", " x"}));
}

TEST(PreTokenizer, ByteLevelWithoutItsPatternCutsNothing) {
  EXPECT_EQ(cut("Hello  world", ByteLevelStep{.use_regex = false}), Pieces{"Hello  world"});
}

TEST(PreTokenizer, PrefixSpaceGoesBeforeTextThatHasNone) {
  EXPECT_EQ(cut("a b", ByteLevelStep{.add_prefix_space = true}), (Pieces{" a", " b"}));
  EXPECT_EQ(cut(" a b", ByteLevelStep{.add_prefix_space = true}), (Pieces{" a", " b"}));
  EXPECT_EQ(cut("", ByteLevelStep{.add_prefix_space = true}), Pieces{});
}

TEST(PreTokenizer, TextThatContinuesGetsNoPrefixSpace) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(ByteLevelStep{.add_prefix_space = true});
  PreTokenizer::Workspace workspace;
  PreTokenizer(std::move(steps)).cut("a", TextPlace::kContinues, workspace);
  EXPECT_EQ(workspace.pieces(), (std::vector<std::string_view>{"a"}));
}

MetaspaceStep metaspace(PrependScheme scheme, bool splits) {
  return {.replacement = "▁", .scheme = scheme, .split = splits};
}

TEST(PreTokenizer, MetaspaceMarksSpacesAndCutsBeforeThem) {
  EXPECT_EQ(cut("a  b", metaspace(PrependScheme::kAlways, true)), (Pieces{"▁a", "▁", "▁b"}));
  EXPECT_EQ(cut("a  b", metaspace(PrependScheme::kAlways, false)), Pieces{"▁a▁▁b"});
  EXPECT_EQ(cut("a\tb", metaspace(PrependScheme::kNever, true)), Pieces{"a\tb"});
  EXPECT_EQ(cut("", metaspace(PrependScheme::kAlways, true)), Pieces{});
}

TEST(PreTokenizer, MetaspacePrefixesWhatHasNoMark) {
  EXPECT_EQ(cut(" a", metaspace(PrependScheme::kAlways, true)), Pieces{"▁a"});
  EXPECT_EQ(cut("▁a", metaspace(PrependScheme::kAlways, true)), Pieces{"▁a"});
  EXPECT_EQ(cut("a", metaspace(PrependScheme::kNever, true)), Pieces{"a"});
}

TEST(PreTokenizer, MetaspacePrefixDependsOnWhereTheTextBegins) {
  const auto cut_at = [](TextPlace place, PrependScheme scheme) {
    std::vector<PreTokenizerStep> steps;
    steps.emplace_back(metaspace(scheme, true));
    PreTokenizer::Workspace workspace;
    PreTokenizer(std::move(steps)).cut("a", place, workspace);
    return std::string(workspace.pieces().front());
  };
  EXPECT_EQ(cut_at(TextPlace::kStart, PrependScheme::kFirst), "▁a");
  EXPECT_EQ(cut_at(TextPlace::kAfterToken, PrependScheme::kFirst), "a");
  EXPECT_EQ(cut_at(TextPlace::kAfterToken, PrependScheme::kAlways), "▁a");
  EXPECT_EQ(cut_at(TextPlace::kContinues, PrependScheme::kFirst), "a");
  EXPECT_EQ(cut_at(TextPlace::kContinues, PrependScheme::kAlways), "a");
}

TEST(PreTokenizer, DigitsAreCutOneByOneOrInRuns) {
  EXPECT_EQ(cut("a12½b", DigitsStep{.individual = true}), (Pieces{"a", "1", "2", "½", "b"}));
  EXPECT_EQ(cut("a12½b", DigitsStep{.individual = false}), (Pieces{"a", "12½", "b"}));
}

TEST(PreTokenizer, SplitBehaviorsPlaceTheMatch) {
  EXPECT_EQ(cut("-a--b-", split("-", SplitBehavior::kIsolated)), (Pieces{"-", "a", "-", "-", "b", "-"}));
  EXPECT_EQ(cut("-a--b-", split("-", SplitBehavior::kRemoved)), (Pieces{"a", "b"}));
  EXPECT_EQ(cut("-a--b-", split("-", SplitBehavior::kContiguous)), (Pieces{"-", "a", "--", "b", "-"}));
  EXPECT_EQ(cut("-a--b-", split("-", SplitBehavior::kMergedWithPrevious)), (Pieces{"-", "a-", "-", "b-"}));
  EXPECT_EQ(cut("-a--b-", split("-", SplitBehavior::kMergedWithNext)), (Pieces{"-a", "-", "-b", "-"}));
}

TEST(PreTokenizer, InvertedPatternDescribesThePieces) {
  EXPECT_EQ(cut("ab, cd", split("[a-z]+", SplitBehavior::kRemoved, true)), (Pieces{"ab", "cd"}));
}

TEST(PreTokenizer, EmptyMatchesCutBetweenCharacters) {
  EXPECT_EQ(cut("é漢", split("", SplitBehavior::kIsolated)), (Pieces{"é", "漢"}));
  EXPECT_EQ(cut("baac", split("a*", SplitBehavior::kIsolated)), (Pieces{"b", "aa", "c"}));
}

TEST(PreTokenizer, LaterStepsSeeOnePieceAtATime) {
  EXPECT_EQ(cut("x12 y", DigitsStep{.individual = true}, ByteLevelStep{}), (Pieces{"x", "1", "2", " y"}));
  EXPECT_EQ(cut("x 1", DigitsStep{.individual = true}, ByteLevelStep{}), (Pieces{"x", " ", "1"}));
}

}  // namespace
}  // namespace metrale::engine
