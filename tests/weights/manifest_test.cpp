// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>
#include <support/temp_dir.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/weights/manifest.h>

namespace metrale::weights {
namespace {

using testing::HasSubstr;

// The example of docs/formats/weight_manifest.md.
constexpr std::string_view kText =
    R"({"format":"metrale weight manifest","version":1,"hash":"xxh3-64",
"index":{"name":"model.safetensors.index.json","size":190,"xxh3":"00000000000000ff"},
"files":[
{"name":"a.safetensors","size":152,"header_size":128,"header_xxh3":"2d06800538d394c2","tensors":{
"one":{"dtype":"F32","shape":[2,3],"xxh3":"0123456789abcdef"},
"\"none\"\n":{"dtype":"BF16","shape":[0],"xxh3":"2d06800538d394c2"}}},
{"name":"b.safetensors","size":16,"header_size":16,"header_xxh3":"ffffffffffffffff","tensors":{}}]}
)";

WeightManifest example() {
  WeightManifest manifest;
  manifest.index = ManifestIndex{"model.safetensors.index.json", 190, 0xff};
  manifest.files.push_back({"a.safetensors",
                            152,
                            128,
                            0x2d06800538d394c2,
                            {{"one", DType::kF32, {2, 3}, 128, 24, 0x0123456789abcdef},
                             {"\"none\"\n", DType::kBf16, {0}, 152, 0, 0x2d06800538d394c2}}});
  manifest.files.push_back({"b.safetensors", 16, 16, ~std::uint64_t{0}, {}});
  return manifest;
}

std::string changed(std::string_view from, std::string_view to) {
  std::string text(kText);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& text, const std::string& problem) {
  try {
    (void)WeightManifest::parse(text, "m.json");
    ADD_FAILURE() << "accepted, not refused with: " << problem;
  } catch (const FormatError& error) {
    EXPECT_EQ(error.path(), "m.json");
    EXPECT_THAT(error.problem(), HasSubstr(problem));
    EXPECT_LE(error.offset(), text.size());
  }
}

TEST(WeightManifest, TextIsThatOfTheFormatPage) {
  EXPECT_EQ(example().to_json(), kText);
  EXPECT_EQ(WeightManifest::parse(kText, "m.json"), example());
}

TEST(WeightManifest, HashesAreXxh3AsItsOwnProgramPrintsThem) {
  EXPECT_EQ(hash64({}), 0x2d06800538d394c2U);
}

TEST(WeightManifest, HashOfPiecesIsThatOfTheWhole) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 7);
  const auto bytes = std::as_bytes(std::span(text));
  for (const std::size_t piece : {1U, 63U, 256U, 1025U}) {
    Hasher64 hasher;
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      hasher.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(hasher.digest(), hash64(bytes)) << piece;
  }
}

TEST(WeightManifest, OrderOfMembersAndFilesAndUnknownMembersDoNotMatter) {
  const std::string text = R"( {"files": [
    {"tensors": {}, "note": {"x": [1, 2.5]}, "header_xxh3": "ffffffffffffffff", "size": 16, "header_size": 16, "name": "b.safetensors"},
    {"name":"a.safetensors","size":152,"header_size":128,"header_xxh3":"2d06800538d394c2","tensors":{
      "one":{"xxh3":"0123456789abcdef","shape":[2,3],"dtype":"F32","more":null},
      "\u0022none\u0022\n":{"dtype":"BF16","shape":[0],"xxh3":"2d06800538d394c2"}}}],
    "index":{"xxh3":"00000000000000ff","name":"model.safetensors.index.json","size":190},
    "hash":"xxh3-64", "made_by": "x", "version":1, "format":"metrale weight manifest"} )";
  EXPECT_EQ(WeightManifest::parse(text, "m.json"), example());
}

TEST(WeightManifest, WrittenFileComesBack) {
  const TempDir dir;
  example().write(dir.file("m.json"));
  EXPECT_EQ(WeightManifest::read(dir.file("m.json")), example());
  EXPECT_THROW((void)WeightManifest::read(dir.file("absent")), IoError);
  EXPECT_THROW(example().write(dir.file("no/m.json")), IoError);
}

TEST(WeightManifest, AnotherFileIsNoManifest) {
  expect_refused("", "not JSON");
  expect_refused("{}", "format is missing");
  expect_refused("[]", "one object");
  expect_refused(std::string(kText).substr(0, 300), "not JSON");
  expect_refused(std::string(kText) + "{}", "follows the closing");
  expect_refused(changed("metrale weight manifest", "metrale trace"),
                 "no weight manifest: its format is 'metrale trace'");
  expect_refused(R"({"metadata":{},"weight_map":{"a":"b"}})", "format is missing");
}

TEST(WeightManifest, OtherVersionAndHashAreUnsupportedAndNamed) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      (void)WeightManifest::parse(text, "m.json");
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message(changed("\"version\":1", "\"version\":2")), HasSubstr("version 2"));
  EXPECT_THAT(message(changed("xxh3-64", "sha256")), HasSubstr("sha256"));
}

TEST(WeightManifest, BadMembersAreNamed) {
  expect_refused(changed("0123456789abcdef", "0123456789ABCDEF"), "tensor 'one': xxh3 must be 16 digits");
  expect_refused(changed("0123456789abcdef", "123456789abcdef"), "16 digits");
  expect_refused(changed("\"0123456789abcdef\"", "17"), "must be a string");
  expect_refused(changed("\"F32\"", "\"F33\""), "unknown dtype 'F33'");
  expect_refused(changed("[2,3]", "[2,-3]"), "unsigned");
  expect_refused(changed("[2,3]", "[4294967296,4294967296,4]"), "no whole number of bytes");
  expect_refused(changed("\"F32\",\"shape\":[2,3]", "\"F4\",\"shape\":[3]"), "no whole number of bytes");
  expect_refused(changed(",\"xxh3\":\"0123456789abcdef\"", ""), "tensor 'one': xxh3 is missing");
  expect_refused(changed("\"size\":152,", ""), "size is missing");
  expect_refused(changed("\"size\":152,", "\"size\":152,\"size\":152,"), "twice");
  expect_refused(changed("a.safetensors", "../a.safetensors"), "is not the name of a file");
  expect_refused(changed("model.safetensors.index.json", "/etc/passwd"), "is not the name of a file");
}

TEST(WeightManifest, NamesThatStandThereTwiceAreRefused) {
  expect_refused(changed("b.safetensors", "a.safetensors"), "file 'a.safetensors' stands there twice");
  expect_refused(changed("\\\"none\\\"\\n", "one"), "tensor 'one' stands there twice");
}

TEST(WeightManifest, SizesThatDoNotAddUpAreRefused) {
  expect_refused(changed("\"size\":152", "\"size\":153"), "size is 153");
  expect_refused(changed("\"header_size\":128", "\"header_size\":129"), "header and tensors 153");
  expect_refused(changed("\"size\":16,\"header_size\":16", "\"size\":7,\"header_size\":7"), "size is 7");
  expect_refused(changed("\"header_size\":128", "\"header_size\":18446744073709551615"), "more than 64 bits");
}

struct Change {
  const char* name;
  std::function<void(ManifestFile&)> change;
  std::optional<std::string> tensor;
  std::optional<std::uint64_t> offset;
  std::string problem;
};

TEST(WeightManifest, EveryDifferenceIsNamed) {
  const ManifestFile expected = example().files[0];
  EXPECT_TRUE(compare_files(expected, expected, "a").empty());
  const Change changes[] = {
      {"data", [](auto& f) { f.tensors[0].hash ^= 1; }, "one", 128, "its 24 bytes differ"},
      {"header", [](auto& f) { f.header_hash ^= 1; }, std::nullopt, 0, "the header"},
      {"size", [](auto& f) { ++f.size_bytes; }, std::nullopt, std::nullopt,
       "153 bytes, the manifest says 152"},
      {"shape", [](auto& f) { f.tensors[0].shape = {3, 2}; }, "one", 128,
       "F32 [3, 2], the manifest says F32 [2, 3]"},
      {"dtype", [](auto& f) { f.tensors[0].dtype = DType::kI32; }, "one", 128, "I32 [2, 3]"},
      {"place", [](auto& f) { f.tensors[0].offset_bytes = 136; }, "one", 136,
       "the manifest has it at byte 128"},
      {"gone", [](auto& f) { f.tensors.erase(f.tensors.begin()); }, "one", std::nullopt, "not in the file"},
      {"new", [](auto& f) { f.tensors.push_back({"two", DType::kU8, {1}, 152, 1, 0}); }, "two", 152,
       "not in the manifest"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    ManifestFile actual = expected;
    change.change(actual);
    const auto problems = compare_files(expected, actual, "dir/a");
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].kind, WeightProblem::Kind::kDifference);
    EXPECT_EQ(problems[0].file, "dir/a");
    EXPECT_EQ(problems[0].tensor, change.tensor);
    EXPECT_EQ(problems[0].offset_bytes, change.offset);
    EXPECT_THAT(problems[0].text, HasSubstr(change.problem));
  }
  ManifestFile unread = expected;
  unread.tensors[0].hash = 0;
  EXPECT_TRUE(compare_files(expected, unread, "a", false).empty());
}

}  // namespace
}  // namespace metrale::weights
