// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_text.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace metrale::engine {
namespace {

TEST(StopText, WithoutStopsEverythingIsShownAtOnce) {
  StopText text;
  EXPECT_EQ(text.push("abc"), "abc");
  EXPECT_EQ(text.finish(), "");
}

TEST(StopText, HoldsBackWhatMayBecomeAStopAndShowsItWhenItDoesNot) {
  const std::vector<std::string> stops{"END"};
  StopText text(stops);
  EXPECT_EQ(text.push("go E"), "go ");
  EXPECT_EQ(text.push("N"), "");
  EXPECT_EQ(text.push("d"), "ENd");
  EXPECT_EQ(text.push("EN"), "");
  EXPECT_EQ(text.finish(), "EN");
  EXPECT_FALSE(text.found());
}

TEST(StopText, EndsBeforeTheFirstStopAndShowsNothingAfterIt) {
  const std::vector<std::string> stops{"xyz", "\n\n"};
  StopText text(stops);
  EXPECT_EQ(text.push("a\n\nb xyz"), "a");
  EXPECT_TRUE(text.found());
  EXPECT_EQ(text.push("more"), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(StopText, AnyCutGivesWhatTheWholeTextGives) {
  std::mt19937 random(9);
  for (int round = 0; round < 3000; ++round) {
    std::string whole;
    for (int i = 0; i < 24; ++i) whole += static_cast<char>('a' + random() % 2);
    std::vector<std::string> stops;
    for (int s = 0; s < 2; ++s) {
      std::string stop;
      for (std::size_t i = 0; i < 3 + random() % 4; ++i) stop += static_cast<char>('a' + random() % 2);
      stops.push_back(stop);
    }
    // The stop that is complete first ends it, as it does for who reads byte by byte.
    std::size_t end = std::string::npos;
    for (std::size_t length = 1; length <= whole.size() && end == std::string::npos; ++length) {
      for (const std::string& stop : stops) {
        const std::size_t at = whole.substr(0, length).find(stop);
        end = std::min(end, at);
      }
    }
    StopText text(stops);
    std::string shown;
    for (const char c : whole) shown += text.push(std::string(1, c));
    shown += text.finish();
    EXPECT_EQ(shown, whole.substr(0, end)) << whole << " " << stops[0] << " " << stops[1];
    EXPECT_EQ(text.found(), end != std::string::npos);
  }
}

}  // namespace
}  // namespace metrale::engine
