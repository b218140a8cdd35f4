// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/shard_index.h>

#include "support/temp_dir.h"

namespace metrale::weights {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ShardIndex parse(std::string_view json) {
  return ShardIndex::parse(json, "index.json");
}

void expect_refused(std::string_view json, std::string_view problem) {
  try {
    (void)parse(json);
    ADD_FAILURE() << "accepted, not refused with: " << problem;
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), "index.json");
    EXPECT_THAT(error.what(), HasSubstr(std::string(problem)));
    EXPECT_LE(error.offset(), json.size());
  }
}

std::string map_of(std::string_view file) {
  return R"({"weight_map":{"a":)" + std::string(file) + "}}";
}

TEST(ShardIndex, EntriesKeepTheirOrderAndFilesAreSorted) {
  const ShardIndex index = parse(R"({"metadata":{"total_size":12},"weight_map":{"c":"2","a":"1","b":"2"}})");
  EXPECT_THAT(index.files, ElementsAre("1", "2"));
  ASSERT_EQ(index.entries.size(), 3U);
  EXPECT_EQ(index.entries[0].tensor, "c");
  EXPECT_EQ(index.entries[0].file, 1U);
  EXPECT_EQ(index.entries[1].tensor, "a");
  EXPECT_EQ(index.entries[1].file, 0U);
  EXPECT_EQ(index.entries[2].file, 1U);
  EXPECT_EQ(index.total_size_bytes, 12U);
}

TEST(ShardIndex, NamesAreUnescapedAndStayWhereTheIndexIsMoved) {
  ShardIndex index = parse(
      R"({"weight_map":{"plain":"1","a\"b":"1","\u00fc\\":"\u0031","":"1","\\\"":"2","\ud83d\ude00":"2"}})");
  const ShardIndex moved = std::move(index);
  std::vector<std::string> names;
  for (const ShardIndex::Entry& entry : moved.entries) names.emplace_back(entry.tensor);
  EXPECT_THAT(names, ElementsAre("plain", "a\"b", "ü\\", "", "\\\"", "😀"));
  EXPECT_THAT(moved.files, ElementsAre("1", "2"));
  const auto name_at = [&](std::uint32_t i) { return moved.entries[i].tensor; };
  for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(moved.by_name.find(names[i], name_at), i);
}

TEST(ShardIndex, OfAFileIsThatOfItsText) {
  const TempDir dir;
  const std::string path = dir.file("index.json");
  std::ofstream(path) << R"({"weight_map":{"c":"2","a":"1"}})";
  EXPECT_THAT(ShardIndex::open(path).files, ElementsAre("1", "2"));
  std::ofstream(path) << R"({"weight_map":{"c":"2","a":"/"}})";
  EXPECT_THROW((void)ShardIndex::open(path), FormatError);
  std::filesystem::resize_file(path, kMaxHeaderBytes + 1);
  EXPECT_THROW((void)ShardIndex::open(path), FormatError);
  EXPECT_THROW((void)ShardIndex::open(dir.file("none")), IoError);
  EXPECT_THROW((void)ShardIndex::open(dir.path()), Error);
}

TEST(ShardIndex, AnyPlainFileNameIsAllowed) {
  for (const char* name :
       {"model-00001-of-00002.safetensors", "weights.bin", "..a", "a..b", "ü", " ", "~", "-"}) {
    EXPECT_THAT(parse(map_of("\"" + std::string(name) + "\"")).files, ElementsAre(name));
  }
}

TEST(ShardIndex, FileNamesThatLeaveTheDirectoryAreRefused) {
  for (const char* name :
       {"", ".", "..", "/etc/passwd", "a/b", "../x", "a/", "./a", "a\\\\b", "a\\u0000b", "\\u002fx"}) {
    expect_refused(map_of("\"" + std::string(name) + "\""), "is not the name of a file beside the index");
  }
}

TEST(ShardIndex, FileNamesMustBeStrings) {
  for (const char* value : {"1", "null", "true", "[]", "{}"}) {
    expect_refused(map_of(value), "weight_map entry 'a' must be a string");
  }
}

TEST(ShardIndex, WeightMapMustBeThereOnceAndHoldSomething) {
  expect_refused("{}", "weight_map is missing");
  expect_refused(R"({"metadata":{"total_size":0}})", "weight_map is missing");
  expect_refused(R"({"weight_map":{}})", "weight_map is empty");
  expect_refused(R"({"weight_map":null})", "'weight_map' must be an object, got null");
  expect_refused(R"({"weight_map":["a"]})", "'weight_map' must be an object");
  expect_refused(R"({"weight_map":{"a":"f"},"weight_map":{"b":"f"}})", "weight_map stands there twice");
}

TEST(ShardIndex, ATensorThatIsListedTwiceIsRefused) {
  expect_refused(R"({"weight_map":{"a":"1","a":"2"}})", "duplicate tensor name 'a', first used at byte 15");
  expect_refused(R"({"weight_map":{"a":"1","\u0061":"1"}})", "duplicate tensor name 'a'");
}

TEST(ShardIndex, MetadataIsAdvisoryWhateverItHolds) {
  for (const char* value :
       {"null", "{}", "\"x\"", "[1,{}]", R"({"total_size":1.5e9})", R"({"total_size":"12"})",
        R"({"total_size":-1})", R"({"total_size":null,"x":[{}]})", R"({"total_size":{"a":1}})"}) {
    const ShardIndex index = parse(R"({"metadata":)" + std::string(value) + R"(,"weight_map":{"a":"f"}})");
    EXPECT_FALSE(index.total_size_bytes) << value;
    EXPECT_EQ(index.entries.size(), 1U);
  }
  EXPECT_EQ(parse(R"({"metadata":{"x":1,"total_size":7,"y":2},"weight_map":{"a":"f"}})").total_size_bytes,
            7U);
  expect_refused(R"({"metadata":{},"metadata":{},"weight_map":{"a":"f"}})", "metadata stands there twice");
}

TEST(ShardIndex, UnknownMembersAreIgnoredButMustBeJson) {
  EXPECT_EQ(parse(R"({"x":[{"y":[1,2.5,"s",null]}],"weight_map":{"a":"f"}})").entries.size(), 1U);
  expect_refused(R"({"x":[01],"weight_map":{"a":"f"}})", "");
  expect_refused(R"({"x":tru,"weight_map":{"a":"f"}})", "");
}

TEST(ShardIndex, TextThatIsNotOneJsonObjectIsRefused) {
  for (const char* json :
       {"", " ", "[]", "1", "{", "{} x", "{\"weight_map\":{\"a\":\"f\"}", "{\"weight_map\":{\"a\":\"f\"}}}",
        "{\"weight_map\":{\"a\":\"f\",}}", "{\"weight_map\":{\"\xff\":\"f\"}}"}) {
    SCOPED_TRACE(json);
    expect_refused(json, "");
  }
}

TEST(ShardIndex, NestingIsLimited) {
  const auto nested = [](std::size_t depth) {
    return R"({"x":)" + std::string(depth, '[') + std::string(depth, ']') + R"(,"weight_map":{"a":"f"}})";
  };
  EXPECT_EQ(parse(nested(126)).entries.size(), 1U);
  expect_refused(nested(127), "nested more than 127 deep");
}

TEST(ShardIndex, TextOverTheCapIsRefused) {
  std::string json = map_of("\"f\"");
  json.resize(kMaxHeaderBytes, ' ');
  EXPECT_EQ(parse(json).entries.size(), 1U);
  json += ' ';
  expect_refused(json, "100000001 bytes long, at most 100000000 are read");
}

}  // namespace
}  // namespace metrale::weights
