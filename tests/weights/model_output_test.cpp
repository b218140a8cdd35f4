// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <support/temp_dir.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/weights/model_output.h>
#include <metrale/weights/shard_index.h>

namespace metrale::weights {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TensorSpec bytes_named(const char* name, std::uint64_t size) {
  return {name, DType::kU8, {size}};
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

TEST(ModelOutput, ShardsTakeWhatFitsInTheGivenOrder) {
  const std::vector<TensorSpec> tensors{bytes_named("a", 4),  bytes_named("b", 6), bytes_named("c", 1),
                                        bytes_named("d", 25), bytes_named("e", 9), bytes_named("f", 0)};
  const auto shards = cut_into_shards(tensors, 10);
  std::vector<std::string> shown;
  for (const Shard& shard : shards) {
    shown.push_back(shard.file + ":");
    for (const TensorSpec& tensor : shard.tensors) shown.back() += " " + tensor.name;
  }
  EXPECT_THAT(shown,
              ElementsAre("model-00001-of-00004.safetensors: a b", "model-00002-of-00004.safetensors: c",
                          "model-00003-of-00004.safetensors: d", "model-00004-of-00004.safetensors: e f"));
}

TEST(ModelOutput, OneShardHasNoNumber) {
  EXPECT_EQ(cut_into_shards(std::vector<TensorSpec>{bytes_named("a", 4)}, 4)[0].file, "model.safetensors");
  EXPECT_EQ(cut_into_shards({}, 4)[0].file, "model.safetensors");
}

TEST(ModelOutput, ShapeThatFillsNoWholeBytesHasNoSize) {
  EXPECT_EQ(size_bytes({"a", DType::kF4, {4}}), 2U);
  EXPECT_THROW((void)size_bytes({"a", DType::kF4, {3}}), InvalidArgument);
  EXPECT_THROW((void)size_bytes({"a", DType::kU8, {std::numeric_limits<std::uint64_t>::max(), 2}}),
               InvalidArgument);
}

TEST(ModelOutput, IndexIsThatOfPythonsJsonModule) {
  // json.dumps({"metadata": …, "weight_map": …}, indent=2, sort_keys=True) + "\n", Python 3.11
  const std::vector<Shard> shards{
      {"model-00001-of-00002.safetensors", {bytes_named("b", 5), bytes_named("é😀\x7f", 1)}},
      {"model-00002-of-00002.safetensors", {bytes_named("a\"\n\x01", 2)}}};
  EXPECT_EQ(shard_index_json(shards), R"({
  "metadata": {
    "total_size": 8
  },
  "weight_map": {
    "a\"\n\u0001": "model-00002-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors",
    "\u00e9\ud83d\ude00)"
                                      "\x7f"
                                      R"(": "model-00001-of-00002.safetensors"
  }
}
)");
  EXPECT_EQ(ShardIndex::parse(shard_index_json(shards), "i").entries.size(), 3U);
}

struct Staging : testing::Test {
  [[nodiscard]] std::string out() const { return dir.file("out"); }
  static void put(ModelStaging& staging, const std::string& name) {
    std::ofstream(staging.file(name)) << "new";
  }
  TempDir dir;
};

TEST_F(Staging, FilesAppearWhenPublishedAndNotBefore) {
  {
    ModelStaging staging(out());
    put(staging, "model.safetensors");
    EXPECT_FALSE(fs::exists(out() + "/model.safetensors"));
    staging.publish();
  }
  EXPECT_THAT(names_in(out()), ElementsAre("model.safetensors"));
}

TEST_F(Staging, NothingStaysOfWhatIsNotPublished) {
  {
    ModelStaging staging(out());
    put(staging, "model.safetensors");
  }
  EXPECT_FALSE(fs::exists(out()));
  fs::create_directory(out());
  {
    ModelStaging staging(out());
  }
  EXPECT_TRUE(fs::is_empty(out()));
}

TEST_F(Staging, DirectoryWithSomethingInItIsRefusedUnlessItIsReplaced) {
  for (const char* name : {"notes", "model.safetensors.index.json", "model-a.safetensors",
                           "model.safetensors", "metrale.manifest.json", "config.json", "vae.safetensors"})
    dir.write(std::string("out/") + name, "old");
  EXPECT_THROW(ModelStaging staging(out()), InvalidArgument);
  {
    ModelStaging staging(out(), ExistingFiles::kReplace);
    put(staging, "model.safetensors");
    put(staging, "config.json");
  }
  EXPECT_EQ(names_in(out()).size(), 7U);
  ModelStaging staging(out(), ExistingFiles::kReplace);
  put(staging, "model.safetensors");
  put(staging, "config.json");
  staging.publish();
  EXPECT_THAT(names_in(out()), ElementsAre("config.json", "model.safetensors", "notes", "vae.safetensors"));
}

std::map<std::string, std::string> contents_of(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    files[fs::relative(entry.path(), directory).string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

// Whichever file cannot be moved up.
TEST_F(Staging, OldModelIsBackWhereTheNewOneCannotTakeItsPlace) {
  const std::vector<std::string> names{"model.safetensors", "model.safetensors.index.json", "config.json"};
  for (const std::string& lost : names) {
    SCOPED_TRACE(lost);
    for (const char* name : {"model-a.safetensors", "model.safetensors.index.json", "model.safetensors",
                             "metrale.manifest.json", "config.json", "notes"})
      dir.write(std::string("out/") + name, std::string("old ") + name);
    const auto before = contents_of(out());
    {
      ModelStaging staging(out(), ExistingFiles::kReplace);
      for (const std::string& name : names) put(staging, name);
      const fs::path part = fs::path(staging.file("other")).parent_path();
      fs::remove(part / lost);
      put(staging, "last");
      EXPECT_THROW(staging.publish(), IoError);
    }
    EXPECT_EQ(contents_of(out()), before);
  }
}

TEST_F(Staging, AFolderInThePlaceOfAFileIsRefusedBeforeAnythingIsMoved) {
  for (const char* folder : {"config.json", "model-x.safetensors"}) {
    fs::remove_all(out());
    dir.write("out/model.safetensors", "old");
    dir.write(std::string("out/") + folder + "/mine", "mine");
    const auto before = contents_of(out());
    {
      ModelStaging staging(out(), ExistingFiles::kReplace);
      put(staging, "model.safetensors");
      put(staging, "config.json");
      EXPECT_THROW(staging.publish(), IoError) << folder;
    }
    EXPECT_EQ(contents_of(out()), before);
  }
}

TEST_F(Staging, ANameIsGivenOnce) {
  ModelStaging staging(out());
  put(staging, "config.json");
  EXPECT_THROW((void)staging.file("config.json"), InvalidArgument);
}

TEST_F(Staging, WhatCannotBeMadeOrHeldIsAnIoError) {
  EXPECT_THROW(ModelStaging staging(dir.file("no/out")), IoError);
  EXPECT_THROW(ModelStaging staging(dir.write("file", "")), IoError);
  const ModelStaging staging(out());
  EXPECT_NO_THROW(staging.require_room(1));
  EXPECT_THROW(staging.require_room(std::uint64_t{1} << 60), IoError);
}

}  // namespace
}  // namespace metrale::weights
