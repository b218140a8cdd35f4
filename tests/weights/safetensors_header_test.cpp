// SPDX-License-Identifier: Apache-2.0
// The length prefix, the JSON text and the metadata.
#include <map>
#include <string>
#include <weights/file_bytes.h>

#include <gtest/gtest.h>

namespace metrale::weights {
namespace {

using testing::HasSubstr;

const std::string kOneByte = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";

TEST(SafetensorsHeader, AFileShorterThanItsLengthPrefixIsRefusedWithItsSize) {
  for (std::size_t size = 0; size < 8; ++size) {
    expect_refused(std::string(size, '\0'),
                   "'m.safetensors': too short for a safetensors file: " + std::to_string(size) + " bytes");
  }
}

TEST(SafetensorsHeader, ALengthUpToTheCapIsAccepted) {
  for (std::uint64_t length = kMaxHeaderBytes - 9; length <= kMaxHeaderBytes; ++length) {
    const std::string prefix = length_bytes(length);
    EXPECT_EQ(SafetensorsHeader::parse_length(std::as_bytes(std::span(prefix)), length + 8, "f"), length);
  }
}

TEST(SafetensorsHeader, ALengthOverTheCapIsRefusedNamingBoth) {
  const std::string prefix = length_bytes(kMaxHeaderBytes + 1);
  try {
    (void)SafetensorsHeader::parse_length(std::as_bytes(std::span(prefix)), kMaxHeaderBytes + 9, "f");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("100000001"));
    EXPECT_THAT(error.what(), HasSubstr("100000000"));
  }
}

TEST(SafetensorsHeader, TheCapIsCheckedBeforeTheSizeOfTheFile) {
  expect_refused(length_bytes(kMaxHeaderBytes + 1), "at most 100000000 are read");
}

TEST(SafetensorsHeader, AHeaderOfExactlyTheCapIsRead) {
  std::string json = kOneByte;
  json.resize(kMaxHeaderBytes, ' ');
  const std::uint64_t size = 8 + kMaxHeaderBytes + 1;
  const auto header = SafetensorsHeader::parse(std::as_bytes(std::span(json)), size, "f");
  EXPECT_EQ(header.find("a")->offset_bytes, size - 1);
}

TEST(SafetensorsHeader, ALengthBeyondTheFileIsTruncation) {
  expect_refused(length_bytes(3) + "{}",
                 "truncated: the header takes 3 bytes after the first 8, the file has 10");
}

TEST(SafetensorsHeader, ALengthThatWrapsAroundIsRefused) {
  for (const std::uint64_t length : {~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{1} << 63}) {
    expect_refused(length_bytes(length) + kOneByte,
                   "the header is " + std::to_string(length) + " bytes long");
  }
}

TEST(SafetensorsHeader, AnEmptyHeaderIsNotJson) {
  expect_refused(length_bytes(0), "not JSON");
}

TEST(SafetensorsHeader, AGitLfsPointerIsRecognised) {
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer");
}

TEST(SafetensorsHeader, BytesThatAreNotUtf8AreRefusedAtTheirPlace) {
  for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const std::string file =
        file_of(R"({"é)" + std::string(bad) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})");
    try {
      (void)parse_bytes(file);
      ADD_FAILURE();
    } catch (const FormatError& error) {
      EXPECT_EQ(error.problem(), "not UTF-8");
      EXPECT_EQ(error.offset(), 8U + 4U);
    }
  }
}

TEST(SafetensorsHeader, WhiteSpaceAroundTheObjectIsAccepted) {
  const auto header = parse_bytes(file_of(" \t\r\n" + kOneByte + " \t\r\n", 1));
  EXPECT_EQ(header.tensors().size(), 1U);
}

TEST(SafetensorsHeader, OtherPaddingIsRefused) {
  expect_refused(file_bytes(kOneByte + std::string(3, '\0'), "x"), "not JSON");
  expect_refused(file_of(kOneByte + "\x0c", 1), "not JSON");
  expect_refused(file_of("\xef\xbb\xbf" + kOneByte, 1), "not JSON");
}

TEST(SafetensorsHeader, TextThatIsNotOneJsonObjectIsRefused) {
  for (const char* json : {" ",
                           "[]",
                           "null",
                           "1",
                           "\"a\"",
                           "{",
                           "}",
                           "{} {}",
                           "{},",
                           "{}}",
                           "{]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a",
                           "{'a':null}",
                           "{,}",
                           "{\"__metadata__\":null,}",
                           "{\"__metadata__\":nul}",
                           "{\"__metadata__\" null}",
                           "{\"__metadata__\":null \"b\":null}"}) {
    SCOPED_TRACE(json);
    expect_refused(file_of(json), "");
  }
}

TEST(SafetensorsHeader, ASyntaxErrorNamesItsByte) {
  const std::string good = kOneByte.substr(0, kOneByte.size() - 1);
  try {
    (void)parse_bytes(file_of(good + "; }", 1));
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not JSON"));
    EXPECT_NEAR(static_cast<double>(error.offset()), static_cast<double>(8 + good.size()), 1.0);
  }
}

TEST(SafetensorsHeader, MetadataIsReadAndIsNoTensor) {
  const auto header = parse_bytes(file_of(R"({"__metadata__":{"format":"pt","é\n":""}})"));
  EXPECT_THAT(header.metadata(),
              testing::ElementsAre(testing::Pair("format", "pt"), testing::Pair("é\n", "")));
  EXPECT_TRUE(header.tensors().empty());
  EXPECT_EQ(header.find("__metadata__"), nullptr);
}

TEST(SafetensorsHeader, EmptyAndNullMetadataAreAccepted) {
  EXPECT_TRUE(parse_bytes(file_of(R"({"__metadata__":{}})")).metadata().empty());
  EXPECT_TRUE(parse_bytes(file_of(R"({"__metadata__":null})")).metadata().empty());
}

TEST(SafetensorsHeader, MetadataValuesMustAllBeStrings) {
  const std::map<std::string, std::string> others{
      {"1", "1"}, {"null", "null"}, {"true", "true"}, {"{}", "an object"}, {"[]", "an array"}};
  for (const auto& [value, shown] : others) {
    expect_refused(file_of(R"({"__metadata__":{"a":"b","c":)" + value + "}}"),
                   "metadata 'c' must be a string, got " + shown);
  }
}

TEST(SafetensorsHeader, MetadataMustBeAnObject) {
  for (const char* value : {"1", "\"x\"", "[]", "true"}) {
    expect_refused(file_of(R"({"__metadata__":)" + std::string(value) + "}"),
                   "'__metadata__' must be an object");
  }
}

TEST(SafetensorsHeader, RepeatedMetadataIsRefused) {
  expect_refused(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ stands there twice");
  expect_refused(file_of(R"({"__metadata__":{"k":"a","k":"b"}})"), "metadata 'k' stands there twice");
}

TEST(SafetensorsHeader, AFileWithoutTensorsIsValid) {
  const auto header = parse_bytes(file_of("{}"));
  EXPECT_TRUE(header.tensors().empty());
  EXPECT_EQ(header.data_bytes(), 0U);
}

TEST(SafetensorsHeader, NamesAreComparedAfterUnescaping) {
  const auto header = parse_bytes(
      file_of(R"({"caf\u00e9 \ud83d\ude00\/":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1));
  ASSERT_NE(header.find("café 😀/"), nullptr);
  EXPECT_EQ(header.tensors()[0].name, "café 😀/");
}

TEST(SafetensorsHeader, EmptyNamesAndNamesWithNulAreOrdinary) {
  const auto header = parse_bytes(file_of(
      R"({"":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a\u0000b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
      2));
  ASSERT_NE(header.find(""), nullptr);
  ASSERT_NE(header.find(std::string_view("a\0b", 3)), nullptr);
  EXPECT_EQ(header.find("a"), nullptr);
}

TEST(SafetensorsHeader, ANameIsEscapedWhereItIsPrinted) {
  expect_refused(
      file_of(R"({"a\u0000b\u001b[2J\u009b\\":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1),
      R"(tensor 'a\u0000b\u001b[2J\u009b\\':)");
}

TEST(SafetensorsHeader, ALongNameIsCutWhereItIsPrinted) {
  const std::string text = printable_name(std::string(159, 'x') + "é" + std::string(5000, 'y'));
  EXPECT_EQ(text, std::string(159, 'x') + "… (5161 bytes)");
}

TEST(SafetensorsHeader, BadEscapesAreRefused) {
  for (const char* name :
       {R"(\ud800)", R"(\udc00)", R"(\ud800\u0041)", R"(\x41)", R"(\u12g4)", "\x01", "\n"}) {
    SCOPED_TRACE(name);
    expect_refused(
        file_of("{\"" + std::string(name) + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
        "not JSON");
    expect_refused(file_of(R"({"__metadata__":{"k":")" + std::string(name) + "\"}}"), "not JSON");
  }
}

TEST(SafetensorsHeader, DuplicateTensorNamesAreNamed) {
  // The first hides behind a hole in the data in one file; in the other both have the same bytes.
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const std::string b = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})";
  expect_refused(file_of("{" + a + "," + b + "}", 2), "duplicate tensor name 'a', first used at byte 9");
  expect_refused(file_of("{" + a + "," + a + "}", 1), "duplicate tensor name 'a'");
}

TEST(SafetensorsHeader, ADuplicateThatIsSpeltWithEscapesIsFound) {
  expect_refused(file_of(R"({"é":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                         R"("\u00e9":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                 "duplicate tensor name 'é'");
}

TEST(SafetensorsHeader, ManyTensorsAreAllFound) {
  constexpr std::uint64_t kCount = 20'000;
  std::string json = "{";
  for (std::uint64_t i = 0; i < kCount; ++i) {
    json += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
            std::to_string(i) + "," + std::to_string(i + 1) + "]},";
  }
  json.back() = '}';
  const auto header = parse_bytes(file_of(json, kCount));
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const TensorInfo* found = header.find("t" + std::to_string(i));
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->offset_bytes, 8 + json.size() + i);
  }
  EXPECT_EQ(header.find("t20000"), nullptr);
}

}  // namespace
}  // namespace metrale::weights
