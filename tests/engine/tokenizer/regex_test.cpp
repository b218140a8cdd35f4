// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/regex.h"

#include <optional>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "engine/tokenizer/regex_dialect.h"
#include "engine/tokenizer/unicode.h"
#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  const Regex regex = Regex::from_oniguruma(pattern, "test");
  RegexMatcher matcher;
  const std::optional<TextRange> match = matcher.find(regex, text, 0);
  return match && match->begin == 0 && match->end == text.size();
}

// PCRE2's own \s counts U+180E in.
TEST(Regex, SpaceIsTheWhiteSpacePropertyAndNothingElse) {
  const Regex space = Regex::from_oniguruma(R"(\s)", "test");
  const Regex not_space = Regex::from_oniguruma(R"(\S)", "test");
  const Regex in_class = Regex::from_oniguruma(R"([\s!])", "test");
  const Regex not_in_class = Regex::from_oniguruma(R"([\S\n])", "test");
  RegexMatcher matcher;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const bool is_space = is_white_space(c);
    ASSERT_EQ(matcher.find(space, text, 0).has_value(), is_space) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(matcher.find(not_space, text, 0).has_value(), !is_space) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(matcher.find(in_class, text, 0).has_value(), is_space || c == '!')
        << static_cast<std::uint32_t>(c);
    ASSERT_EQ(matcher.find(not_in_class, text, 0).has_value(), !is_space || c == '\n')
        << static_cast<std::uint32_t>(c);
  }
}

TEST(Regex, EscapesHaveOnigurumasMeaning) {
  EXPECT_TRUE(matches(R"(\h+)", "09afAF"));
  EXPECT_FALSE(matches(R"(\h)", " "));
  EXPECT_TRUE(matches(R"(\v)", "\v"));
  EXPECT_FALSE(matches(R"(\v)", "\n"));
  EXPECT_TRUE(matches(R"(\w+)", "a_é1²漢"));
  EXPECT_TRUE(matches(R"(\W+)", " -"));
  EXPECT_TRUE(matches(R"(\d+)", "1٣"));
  EXPECT_TRUE(matches(R"(\u0041\x42\x{1F600})", "AB😀"));
  EXPECT_TRUE(matches(R"(\p{Han}+)", "漢字"));
  EXPECT_TRUE(matches(R"(\p{^L}+\P{L}[\p{Lu}\P{N}])", "1!2A"));
  EXPECT_TRUE(matches(R"(\-\.\é)", "-.é"));
}

TEST(Regex, HyphenAtTheEndOfAClassOrEscapedIsAPlainOne) {
  EXPECT_TRUE(matches(R"([\s-]+)", " -"));
  EXPECT_TRUE(matches(R"([\w\-z]+)", "a-z"));
}

TEST(Regex, DollarAndCaretAreThoseOfLines) {
  EXPECT_TRUE(matches("a$\n^b$", "a\nb"));
  EXPECT_FALSE(matches("a.b", "a\nb"));
}

TEST(Regex, CaseIsIgnoredWhereAsked) {
  EXPECT_TRUE(matches("(?i:'LL)x", "'lLx"));
  EXPECT_TRUE(matches("(?i)abc", "aBC"));
  EXPECT_FALSE(matches("(?i:a)b", "AB"));
}

TEST(Regex, BraceThatMakesNoIntervalIsAPlainOne) {
  EXPECT_TRUE(matches("a{b", "a{b"));
  EXPECT_TRUE(matches("a{2}b{1,2}c{1,}", "aabbc"));
}

TEST(Regex, ConstructWithAnotherMeaningIsRefusedByName) {
  for (const auto& [pattern, named] :
       std::vector<std::pair<std::string, std::string>>{{"[a[bc]]", "a class in a class"},
                                                        {"[[:alpha:]]", "a class in a class"},
                                                        {"[a-z&&[^b]]", "the class operation &&"},
                                                        {"a{1,2}+", "the interval {1,2}+"},
                                                        {"a{,2}", "the interval {,2}"},
                                                        {"a(?i)b", "the group (?i)"},
                                                        {"(?m:a)", "the group (?m:"},
                                                        {"(?<name>a)", "the group (?<n"},
                                                        {R"((a)\1)", "the escape \\1"},
                                                        {R"(\ba)", "the escape \\b"},
                                                        {R"([\W])", "a negated class escape in a class"},
                                                        {R"([!-\s])", "a range to a class escape"},
                                                        {R"([\s-z])", "a range from a class escape"},
                                                        {R"(\pL)", "a property without braces"},
                                                        {R"(\p{L1})", "the property L1"},
                                                        {R"(\x{110000000})", "a broken code point"},
                                                        {R"(\u12)", "a broken code point"},
                                                        {"[abc", "a class without end"},
                                                        {"a\\", "a backslash at the end"}}) {
    try {
      (void)pcre2_from_oniguruma(pattern, "tokenizer 'f', field");
      ADD_FAILURE() << pattern;
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("tokenizer 'f', field does not support " + named))
          << pattern;
      EXPECT_THAT(error.what(), testing::HasSubstr(pattern));
    }
  }
}

TEST(Regex, BrokenPatternIsRefusedWithPcre2sReason) {
  for (const char* pattern : {"(a", "a)", "*a", R"(\p{Nonsense})", R"(\x{FFFFFF})", "[z-a]"}) {
    EXPECT_THROW((void)Regex::from_oniguruma(pattern, "test"), Unsupported) << pattern;
  }
  EXPECT_THROW((void)Regex::from_oniguruma(std::string(20000, 'a'), "test"), Unsupported);
}

TEST(Regex, ExponentialPatternEndsAtTheStepLimit) {
  const Regex regex = Regex::from_oniguruma("(?:a+)+[bc]", "test");
  RegexMatcher matcher;
  EXPECT_THROW((void)matcher.find(regex, std::string(200, 'a') + "d", 0), InvalidArgument);
}

TEST(Regex, LongRunOfAGroupNeedsNoStack) {
  const Regex regex = Regex::from_oniguruma("(?:a|bc)+", "test");
  RegexMatcher matcher;
  const std::string text(std::size_t{1} << 18, 'a');
  EXPECT_EQ(matcher.find(regex, text, 0)->end, text.size());
}

TEST(Regex, LiteralMatchesItsCharactersAsTheyStand) {
  const Regex regex = Regex::from_literal("a.(", "test");
  RegexMatcher matcher;
  EXPECT_EQ(matcher.find(regex, "abca.(", 0)->begin, 3U);
}

}  // namespace
}  // namespace metrale::engine
