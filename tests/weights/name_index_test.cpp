// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/weights/name_index.h>

namespace metrale::weights {
namespace {

// Names and their index, beside the slow answers.
class IndexedNames {
  [[nodiscard]] auto name_at() const {
    return [this](std::uint32_t i) -> std::string_view { return names_[i]; };
  }

 public:
  explicit IndexedNames(std::vector<std::string> names)
      : names_(std::move(names)), index_(static_cast<std::uint32_t>(names_.size()), name_at()) {}

  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const {
    return index_.find(name, name_at());
  }
  [[nodiscard]] std::optional<std::uint32_t> find_slowly(std::string_view name) const {
    const auto at = std::ranges::find(names_, name);
    if (at == names_.end()) return std::nullopt;
    return static_cast<std::uint32_t>(at - names_.begin());
  }
  [[nodiscard]] auto duplicate() const { return index_.duplicate(name_at()); }
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint32_t>> duplicate_slowly() const {
    for (std::uint32_t i = 0; i < names_.size(); ++i) {
      const std::uint32_t first = *find_slowly(names_[i]);
      if (first != i) return std::pair(first, i);
    }
    return std::nullopt;
  }
  void reorder(const std::vector<std::uint32_t>& to) {
    std::vector<std::string> moved(names_.size());
    for (std::size_t i = 0; i < to.size(); ++i) moved[to[i]] = std::move(names_[i]);
    names_ = std::move(moved);
    index_.reorder(to);
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  NameIndex index_;
};

// Up to `most` names out of `vocabulary`.
std::vector<std::string> random_names(std::mt19937_64& random, std::size_t most, std::size_t vocabulary) {
  std::vector<std::string> names(random() % (most + 1));
  for (std::string& name : names) {
    const std::size_t word = random() % vocabulary;
    name = word == 0 ? "" : std::string(word % 40, 'x') + std::to_string(word);
  }
  return names;
}

TEST(NameIndex, FindsTheLowestPositionAndTheEarliestRepeat) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    constexpr std::size_t kMostNames = 200;
    const std::size_t vocabulary = std::array<std::size_t, 3>{3, 100, 100'000}.at(round % 3);
    const IndexedNames indexed(random_names(random, kMostNames, vocabulary));
    ASSERT_EQ(indexed.duplicate(), indexed.duplicate_slowly()) << "round " << round;
    for (const std::string& name : indexed.names()) ASSERT_EQ(indexed.find(name), indexed.find_slowly(name));
    for (const std::string& name : random_names(random, 20, vocabulary))
      ASSERT_EQ(indexed.find(name), indexed.find_slowly(name));
  }
}

TEST(NameIndex, FindsEachOfManyNames) {
  constexpr std::uint32_t kNames = 50'000;
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < kNames; ++i) names.push_back("model.layers.expert." + std::to_string(i));
  const IndexedNames indexed(std::move(names));
  EXPECT_EQ(indexed.duplicate(), std::nullopt);
  for (std::uint32_t i = 0; i < kNames; ++i) ASSERT_EQ(indexed.find(indexed.names()[i]), i);
  EXPECT_EQ(indexed.find("model.layers.expert."), std::nullopt);
  EXPECT_EQ(indexed.find("model.layers.expert.50000"), std::nullopt);
}

TEST(NameIndex, FollowsItsListIntoAnotherOrder) {
  std::mt19937_64 random(6);
  std::vector<std::string> names;
  for (int i = 0; i < 1'000; ++i) names.push_back(std::to_string(i));
  IndexedNames indexed(std::move(names));
  std::vector<std::uint32_t> to(indexed.names().size());
  std::iota(to.begin(), to.end(), 0U);
  for (int round = 0; round < 3; ++round) {
    std::ranges::shuffle(to, random);
    indexed.reorder(to);
    for (const std::string& name : indexed.names()) ASSERT_EQ(indexed.find(name), indexed.find_slowly(name));
  }
}

TEST(NameIndex, OfNothingHasNothing) {
  const IndexedNames none({});
  EXPECT_EQ(none.find(""), std::nullopt);
  EXPECT_EQ(none.duplicate(), std::nullopt);
  EXPECT_EQ(NameIndex().find("", [](std::uint32_t) { return std::string_view(); }), std::nullopt);
}

}  // namespace
}  // namespace metrale::weights
