// SPDX-License-Identifier: Apache-2.0
// Which files of a directory are the model, and which tensors of them.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <support/no_threads.h>
#include <support/temp_dir.h>
#include <unistd.h>
#include <utility>
#include <vector>
#include <weights/captured_log.h>
#include <weights/file_bytes.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <metrale/weights/model_directory.h>
#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Tensor name -> its bytes, as U8.
using Shard = std::map<std::string, std::string>;

void write_shard(const std::string& path, const Shard& shard) {
  std::vector<TensorData> tensors;
  for (const auto& [name, bytes] : shard) {
    tensors.push_back({name, DType::kU8, {bytes.size()}, std::as_bytes(std::span(bytes))});
  }
  write_safetensors(path, tensors);
}

std::string index_of(const std::map<std::string, std::string>& weight_map,
                     const std::string& metadata = "{}") {
  std::string json = R"({"metadata":)" + metadata + R"(,"weight_map":{)";
  for (const auto& [tensor, file] : weight_map) json += "\"" + tensor + "\":\"" + file + "\",";
  json.back() = '}';
  return json + "}";
}

void write_index(const TempDir& dir, const std::map<std::string, std::string>& weight_map,
                 const std::string& metadata = "{}") {
  dir.write("model.safetensors.index.json", index_of(weight_map, metadata));
}

std::string read(const ModelDirectory& model, std::string_view name) {
  const TensorRef* tensor = model.find(name);
  if (tensor == nullptr) return "(absent)";
  std::string out(tensor->info().size_bytes, ' ');
  model.read(*tensor, std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<std::string> names(const ModelDirectory& model) {
  std::vector<std::string> result;
  for (const TensorRef& tensor : model.tensors()) result.push_back(tensor.info().name);
  return result;
}

// What opening the directory fails with.
template <class ErrorType>
std::string failure(const std::string& path) {
  try {
    (void)ModelDirectory::open(path);
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "(opened)";
}

TEST(ModelDirectory, OneFileIsTheModel) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "AA"}, {"b", "B"}});
  const auto model = ModelDirectory::open(dir.path());
  EXPECT_THAT(names(model), ElementsAre("a", "b"));
  EXPECT_EQ(read(model, "a"), "AA");
  EXPECT_EQ(model.find("c"), nullptr);
  EXPECT_EQ(model.total_bytes(), 3U);
  EXPECT_EQ(model.path(), dir.path());
}

TEST(ModelDirectory, ShardsAreJoinedByTheirIndex) {
  const TempDir dir;
  write_shard(dir.file("x"), {{"a", "1"}, {"c", "3"}});
  write_shard(dir.file("w"), {{"b", "22"}});
  write_index(dir, {{"a", "x"}, {"b", "w"}, {"c", "x"}});
  const auto model = ModelDirectory::open(dir.path());
  EXPECT_THAT(names(model), ElementsAre("b", "a", "c"));
  EXPECT_EQ(read(model, "c"), "3");
  EXPECT_EQ(model.file(*model.find("b")).path(), dir.file("w"));
  EXPECT_EQ(model.total_bytes(), 4U);
}

// Of an index whose entries stand in any order, beside tensors that it leaves out and names that several
// files have.
TEST(ModelDirectory, EveryTensorIsFoundWhereARandomIndexAssignsIt) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    std::map<std::string, std::string> files;  // of every assigned tensor
    std::map<std::string, Shard> shards;
    for (int i = 0; i < 60; ++i) {
      const std::string name = std::to_string(random() % 1'000);
      const std::string file = fmt::format("f{}", random() % 4);
      shards[file][name] = file + " " + name;
      if (random() % 4 != 0) files[name] = file;
    }
    for (const auto& [file, shard] : shards) write_shard(dir.file(file), shard);
    std::vector<std::pair<std::string, std::string>> entries(files.begin(), files.end());
    std::ranges::shuffle(entries, random);
    std::string json = R"({"weight_map":{)";
    for (const auto& [name, file] : entries) json += fmt::format(R"("{}":"{}",)", name, file);
    json.back() = '}';
    dir.write("model.safetensors.index.json", json + "}");
    const bool has_extra = round % 2 == 0;
    if (has_extra) {
      write_shard(dir.file("extra_weights.safetensors"), {{entries[0].first, "extra"}, {"more", "more"}});
      files.erase(entries[0].first);
    }

    const CapturedLog log;
    const auto model = ModelDirectory::open(dir.path());
    for (const auto& [name, file] : files) {
      ASSERT_EQ(read(model, name), file + " " + name);
      ASSERT_EQ(model.file(*model.find(name)).path(), dir.file(file));
    }
    EXPECT_EQ(read(model, entries[0].first) == "extra", has_extra);
    EXPECT_EQ(model.tensors().size(), files.size() + (has_extra ? 2 : 0));
    EXPECT_TRUE(std::ranges::is_sorted(model.tensors(), {}, [](const TensorRef& tensor) {
      return std::pair(tensor.file_index(), tensor.info().offset_bytes);
    }));
  }
}

TEST(ModelDirectory, PartsAndViewsOfTensorsAreRead) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "0123456789"}});
  const auto model = ModelDirectory::open(dir.path());
  std::string out(3, ' ');
  model.read_range(*model.find("a"), 4, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "456");
  EXPECT_EQ(model.map(*model.find("a"))[9], std::byte{'9'});
}

TEST(ModelDirectory, EveryMissingShardIsNamed) {
  const TempDir dir;
  write_shard(dir.file("f2"), {{"b", "b"}});
  write_index(dir, {{"a", "f1"}, {"b", "f2"}, {"c", "f3"}, {"d", "f4"}});
  const std::string text = failure<IoError>(dir.path());
  EXPECT_THAT(text,
              HasSubstr("3 of 4 files named by model.safetensors.index.json are missing: 'f1', 'f3', 'f4'"));
  EXPECT_THAT(text, HasSubstr(dir.path()));
}

TEST(ModelDirectory, AStaleIndexIsNotLoadedInPart) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00001.safetensors"), {{"a", "a"}, {"b", "b"}});
  write_index(dir, {{"a", "model-00001-of-00001.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  EXPECT_THAT(failure<IoError>(dir.path()), HasSubstr("'model-00002-of-00002.safetensors'"));
}

TEST(ModelDirectory, ALinkThatLeadsNowhereIsAMissingShard) {
  const TempDir dir;
  write_index(dir, {{"a", "f1"}});
  std::filesystem::create_symlink("../blobs/gone", dir.file("f1"));
  EXPECT_THAT(failure<IoError>(dir.path()), HasSubstr("missing: 'f1'"));
}

TEST(ModelDirectory, AnIndexOrModelThatIsALinkToNowhereIsNotPassedOver) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "a"}});
  std::filesystem::create_symlink("gone", dir.file("model.safetensors.index.json"));
  EXPECT_THAT(failure<IoError>(dir.path()), HasSubstr("model.safetensors.index.json"));

  const TempDir other;
  write_shard(other.file("model-a.safetensors"), {{"a", "a"}});
  std::filesystem::create_symlink("gone", other.file("model.safetensors"));
  EXPECT_THAT(failure<IoError>(other.path()), HasSubstr("missing: 'model.safetensors'"));
}

TEST(ModelDirectory, TensorsThatTheirShardDoesNotHaveAreNamedWithIt) {
  const TempDir dir;
  write_shard(dir.file("f1"), {{"a", "a"}});
  write_shard(dir.file("f2"), {{"b", "b"}});
  write_index(dir, {{"a", "f2"}, {"b", "f2"}});
  EXPECT_THAT(failure<FormatError>(dir.path()),
              HasSubstr("1 tensors are not in the file that weight_map names: 'a' from 'f2'"));
}

TEST(ModelDirectory, OfManyAbsentTensorsTheFirstEightAreNamedAndTheRestCounted) {
  const TempDir dir;
  write_shard(dir.file("f"), {{"present", "x"}});
  std::map<std::string, std::string> weight_map{{"present", "f"}};
  for (char c = 'a'; c <= 'k'; ++c) weight_map[std::string(1, c)] = "f";
  write_index(dir, weight_map);
  const std::string text = failure<FormatError>(dir.path());
  EXPECT_THAT(text, HasSubstr("11 tensors"));
  EXPECT_THAT(text, HasSubstr("'h' from 'f' and 3 more"));
  EXPECT_THAT(text, Not(HasSubstr("'i'")));
}

TEST(ModelDirectory, TensorsThatTheIndexLeavesOutAreNotLoadedAndCountedOnce) {
  const TempDir dir;
  write_shard(dir.file("f1"), {{"a", "a"}, {"stale1", "x"}, {"stale2", "x"}});
  write_shard(dir.file("f2"), {{"b", "b"}, {"stale3", "x"}});
  write_index(dir, {{"a", "f1"}, {"b", "f2"}});
  CapturedLog log;
  const auto model = ModelDirectory::open(dir.path());
  EXPECT_THAT(names(model), ElementsAre("a", "b"));
  EXPECT_EQ(model.find("stale1"), nullptr);
  EXPECT_EQ(model.total_bytes(), 2U);
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("3 of the 5 tensors")));
}

TEST(ModelDirectory, OfATensorInTwoShardsTheIndexChoosesOne) {
  for (const char* chosen : {"f1", "f2"}) {
    const TempDir dir;
    write_shard(dir.file("f1"), {{"a", "f1"}, {"x", "x"}});
    write_shard(dir.file("f2"), {{"a", "f2"}, {"y", "y"}});
    write_index(dir, {{"a", chosen}, {"x", "f1"}, {"y", "f2"}});
    CapturedLog log;
    const auto model = ModelDirectory::open(dir.path());
    EXPECT_EQ(read(model, "a"), chosen);
    EXPECT_EQ(model.tensors().size(), 3U);
    EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("1 of the 4 tensors")));
  }
}

TEST(ModelDirectory, WithoutAnIndexATensorInTwoFilesIsAnError) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00002.safetensors"), {{"a", "1"}});
  write_shard(dir.file("model-00002-of-00002.safetensors"), {{"a", "2"}});
  const std::string text = failure<FormatError>(dir.path());
  EXPECT_THAT(text, HasSubstr("tensor 'a' is in"));
  EXPECT_THAT(text, HasSubstr("model-00001-of-00002.safetensors"));
  EXPECT_THAT(text, HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(ModelDirectory, FilesThatTheIndexDoesNotNameAreNotOpened) {
  const TempDir dir;
  write_shard(dir.file("f1"), {{"a", "a"}});
  write_index(dir, {{"a", "f1"}});
  for (const char* other : {"consolidated.safetensors", "model.safetensors",
                            "model-00001-of-00002.safetensors", "consolidated.safetensors.index.json"}) {
    dir.write(other, "garbage");
  }
  CapturedLog log;
  EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("a"));
  EXPECT_TRUE(log.lines().empty());
}

TEST(ModelDirectory, TheConsolidatedIndexIsUsedWhereThereIsNoOther) {
  const TempDir dir;
  write_shard(dir.file("consolidated-1"), {{"a", "a"}});
  write_shard(dir.file("model.safetensors"), {{"b", "b"}});
  dir.write("consolidated.safetensors.index.json", index_of({{"a", "consolidated-1"}}));
  EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("a"));
}

TEST(ModelDirectory, OneFileIsPreferredToASplit) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "a"}});
  write_shard(dir.file("model-00001-of-00001.safetensors"), {{"b", "b"}});
  EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("a"));
}

TEST(ModelDirectory, WithoutAnIndexAllPartsOfASplitAreTheModel) {
  for (const char* prefix : {"model", "model.safetensors", "consolidated"}) {
    const TempDir dir;
    write_shard(dir.file(std::string(prefix) + "-00001-of-00002.safetensors"), {{"b", "1"}});
    write_shard(dir.file(std::string(prefix) + "-00002-of-00002.safetensors"), {{"a", "2"}});
    dir.write(std::string(prefix) + "-00003-of-00002.safetensors.part", "garbage");
    dir.write("adapter_model.safetensors", "garbage");
    EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("b", "a")) << prefix;
  }
}

TEST(ModelDirectory, TwoFamiliesOfPartsAreNotMixed) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00001.safetensors"), {{"a", "a"}});
  write_shard(dir.file("consolidated-00001-of-00001.safetensors"), {{"b", "b"}});
  EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("a"));
}

TEST(ModelDirectory, PartsThatASplitLacksAreNamed) {
  const TempDir dir;
  write_shard(dir.file("model-00002-of-00004.safetensors"), {{"a", "a"}});
  write_shard(dir.file("model-00003-of-00004.safetensors"), {{"b", "b"}});
  EXPECT_THAT(failure<IoError>(dir.path()),
              HasSubstr("2 of 4 files of the split are missing: 'model-00001-of-00004.safetensors', "
                        "'model-00004-of-00004.safetensors'"));
}

TEST(ModelDirectory, PartsMayCountFromZero) {
  const TempDir dir;
  write_shard(dir.file("model-0-of-2.safetensors"), {{"a", "a"}});
  EXPECT_THAT(failure<IoError>(dir.path()),
              HasSubstr("1 of 2 files of the split are missing: 'model-1-of-2.safetensors'"));
  write_shard(dir.file("model-1-of-2.safetensors"), {{"b", "b"}});
  EXPECT_THAT(names(ModelDirectory::open(dir.path())), ElementsAre("a", "b"));
}

TEST(ModelDirectory, TwoSplitsSideBySideNeedAnIndex) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00001.safetensors"), {{"a", "a"}});
  write_shard(dir.file("model-00001-of-00002.safetensors"), {{"b", "b"}});
  EXPECT_THAT(failure<FormatError>(dir.path()), HasSubstr("belong to different splits"));
}

TEST(ModelDirectory, PartsWithoutNumbersAreTakenAsTheyAre) {
  const TempDir dir;
  for (const char* name : {"model-a", "model-x-of-y", "model-1-of-00002", "model-0001-of-999999", "model-"}) {
    write_shard(dir.file(std::string(name) + ".safetensors"), {{name, "x"}});
  }
  EXPECT_EQ(ModelDirectory::open(dir.path()).tensors().size(), 5U);
}

TEST(ModelDirectory, ADirectoryWithoutAModelSaysWhatWasLookedFor) {
  const TempDir dir;
  dir.write("pytorch_model.bin", "x");
  const std::string text = failure<IoError>(dir.path());
  EXPECT_THAT(text, HasSubstr("no model.safetensors.index.json"));
  EXPECT_THAT(text, HasSubstr("only safetensors files are read"));
}

TEST(ModelDirectory, AMissingDirectoryIsAnIoError) {
  EXPECT_THAT(failure<IoError>("/nonexistent/model"), HasSubstr("'/nonexistent/model'"));
}

TEST(ModelDirectory, ATruncatedShardIsNamedWhenTheDirectoryIsOpened) {
  const TempDir dir;
  write_shard(dir.file("f1"), {{"a", "a"}});
  write_shard(dir.file("f2"), {{"b", std::string(100, 'b')}});
  write_index(dir, {{"a", "f1"}, {"b", "f2"}});
  std::filesystem::resize_file(dir.file("f2"), std::filesystem::file_size(dir.file("f2")) - 25);
  const std::string text = failure<FormatError>(dir.path());
  EXPECT_THAT(text, HasSubstr(dir.file("f2")));
  EXPECT_THAT(text, HasSubstr("truncated: 100 bytes of data needed, 75 there"));
}

TEST(ModelDirectory, IsOpenedWhereNoThreadCanBeMade) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00002.safetensors"), {{"b", "1"}});
  write_shard(dir.file("model-00002-of-00002.safetensors"), {{"a", "2"}});
  using std::filesystem::perms;
  std::filesystem::permissions(dir.path(), perms::owner_all | perms::group_read | perms::group_exec |
                                               perms::others_read | perms::others_exec);
  const auto is_opened = [&] { return names(ModelDirectory::open(dir.path())).size() == 2; };
  EXPECT_EXIT(::_exit(run_without_threads(is_opened)), testing::ExitedWithCode(0), "");
}

TEST(ModelDirectory, TensorsThatSumToMoreThanCanBeCountedAreRefused) {
  // A memory file system takes sparse files of any size.
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const std::string where = "/dev/shm/metrale-test-" + std::to_string(::getpid());
  std::filesystem::create_directory(where);
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 60;
  for (char name = 'a'; name < 'a' + 16; ++name) {
    const std::string path = where + "/model-" + name + ".safetensors";
    const std::string size = std::to_string(kBytes);
    std::string header = "{\"t" + std::string(1, name) + R"(":{"dtype":"U8","shape":[)" + size +
                         R"(],"data_offsets":[0,)" + size + "]}}";
    const std::uint64_t length = header.size();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(&length), sizeof length)
        .write(header.data(), static_cast<std::streamsize>(length));
    std::filesystem::resize_file(path, 8 + length + kBytes);
  }
  EXPECT_THAT(failure<FormatError>(where), HasSubstr("more bytes in all than 64 bits can count"));
  std::filesystem::remove_all(where);
}

TEST(ModelDirectory, OfVeryManyMissingShardsTheFirstHundredAreNamed) {
  const TempDir dir;
  dir.write("model-00001-of-99999.safetensors", "");
  const std::string text = failure<IoError>(dir.path());
  EXPECT_THAT(text, HasSubstr("99998 of 99999 files"));
  EXPECT_THAT(text, HasSubstr("'model-00101-of-99999.safetensors' and 99898 more"));
}

// Shards are opened side by side.
TEST(ModelDirectory, OfSeveralBrokenShardsTheFirstIsNamed) {
  const TempDir dir;
  std::map<std::string, std::string> weight_map;
  for (char name = 'a'; name < 'i'; ++name) {
    const std::string file = std::string("f") + name;
    write_shard(dir.file(file), {{std::string(1, name), "1234"}});
    weight_map[std::string(1, name)] = file;
  }
  write_index(dir, weight_map);
  for (const char* file : {"fc", "fd", "fg", "fh"}) std::filesystem::resize_file(dir.file(file), 4);
  for (int i = 0; i < 50; ++i) ASSERT_THAT(failure<FormatError>(dir.path()), HasSubstr("/fc'"));
}

TEST(ModelDirectory, AWrongTotalSizeIsOnlyAWarning) {
  const TempDir dir;
  write_shard(dir.file("f1"), {{"a", "12345"}});
  write_index(dir, {{"a", "f1"}}, R"({"total_size":10})");
  CapturedLog log;
  EXPECT_EQ(ModelDirectory::open(dir.path()).total_bytes(), 5U);
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("total_size is 10, the tensors take 5 bytes")));
}

TEST(ModelDirectory, ARightOrAbsentTotalSizeIsNotSpokenOf) {
  for (const char* metadata : {R"({"total_size":5})", "{}"}) {
    const TempDir dir;
    write_shard(dir.file("f1"), {{"a", "12345"}});
    write_index(dir, {{"a", "f1"}}, metadata);
    CapturedLog log;
    (void)ModelDirectory::open(dir.path());
    EXPECT_TRUE(log.lines().empty());
  }
}

TEST(ModelDirectory, AnIndexThatLeavesTheDirectoryIsRefusedEvenIfTheFileIsThere) {
  const TempDir dir;
  write_shard(dir.file("outside"), {{"a", "a"}});
  dir.write("model/model.safetensors.index.json", index_of({{"a", "../outside"}}));
  EXPECT_THAT(failure<FormatError>(dir.file("model")),
              HasSubstr("is not the name of a file beside the index"));
}

TEST(ModelDirectory, AnIndexOverTheCapIsRefusedUnread) {
  const TempDir dir;
  std::filesystem::resize_file(dir.write("model.safetensors.index.json", "{}"), kMaxHeaderBytes + 1);
  EXPECT_THAT(failure<FormatError>(dir.path()), HasSubstr("at most 100000000 are read"));
}

TEST(ModelDirectory, AShardWithoutTensorsIsFine) {
  const TempDir dir;
  write_shard(dir.file("model-00001-of-00002.safetensors"), {});
  write_shard(dir.file("model-00002-of-00002.safetensors"), {{"a", "a"}});
  EXPECT_EQ(ModelDirectory::open(dir.path()).tensors().size(), 1U);
}

// A download cache: files are links to blobs whose names have no suffix and no siblings.
struct SnapshotCache {
  SnapshotCache() {
    std::filesystem::create_directories(dir.file("blobs"));
    std::filesystem::create_directories(dir.file("snapshots/r1"));
    write_shard(dir.file("blobs/0a"), {{"a", "a"}});
    write_shard(dir.file("blobs/0b"), {{"b", "b"}});
    dir.write("blobs/0c", index_of({{"a", "m1.safetensors"}, {"b", "m2.safetensors"}}));
    dir.write("blobs/0d", "{}");
    link("m1.safetensors", "0a");
    link("m2.safetensors", "0b");
    link("config.json", "0d");
  }
  void link(const std::string& name, const std::string& blob) const {
    std::filesystem::create_symlink("../../blobs/" + blob, dir.file("snapshots/r1/" + name));
  }
  TempDir dir;
  std::string snapshot = dir.file("snapshots/r1");
};

TEST(ModelDirectory, LinkedShardsAndSiblingsAreFoundByTheirOwnNames) {
  const SnapshotCache cache;
  cache.link("model.safetensors.index.json", "0c");
  const auto model = ModelDirectory::open(cache.snapshot);
  EXPECT_THAT(names(model), ElementsAre("a", "b"));
  EXPECT_EQ(model.files()[0].path(), cache.snapshot + "/m1.safetensors");
  EXPECT_EQ(model.config_path(), cache.snapshot + "/config.json");
}

TEST(ModelDirectory, OneLinkedFileKeepsItsSiblings) {
  const SnapshotCache cache;
  const auto model = ModelDirectory::open(cache.snapshot + "/m2.safetensors");
  EXPECT_EQ(read(model, "b"), "b");
  EXPECT_EQ(model.path(), cache.snapshot);
  EXPECT_EQ(model.config_path(), cache.snapshot + "/config.json");
}

TEST(ModelDirectory, OneFileIsOpenedWithoutItsIndex) {
  const TempDir dir;
  write_shard(dir.file("part.safetensors"), {{"a", "a"}, {"b", "b"}});
  write_index(dir, {{"a", "part.safetensors"}, {"c", "absent.safetensors"}});
  EXPECT_EQ(ModelDirectory::open(dir.file("part.safetensors")).tensors().size(), 2U);
}

TEST(ModelDirectory, AFileOfAnotherSuffixIsRefused) {
  const TempDir dir;
  write_shard(dir.file("blob"), {{"a", "a"}});
  EXPECT_THAT(failure<InvalidArgument>(dir.file("blob")),
              HasSubstr("neither a directory nor a .safetensors file"));
}

TEST(ModelDirectory, PathOfGivesOnlyFilesThatAreThere) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "a"}});
  dir.write("tokenizer.json", "{}");
  std::filesystem::create_symlink("gone", dir.file("vocab.json"));
  const auto model = ModelDirectory::open(dir.path());
  EXPECT_EQ(model.path_of("tokenizer.json"), dir.file("tokenizer.json"));
  EXPECT_EQ(model.path_of("merges.txt"), std::nullopt);
  EXPECT_EQ(model.path_of("vocab.json"), std::nullopt);
  EXPECT_THROW((void)model.config_path(), IoError);
}

TEST(ModelDirectory, PathOfDoesNotLeaveTheDirectory) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "a"}});
  const auto model = ModelDirectory::open(dir.path());
  for (const char* name : {"", ".", "..", "../x", "/etc/passwd", "a/b"}) {
    EXPECT_THROW((void)model.path_of(name), InvalidArgument) << name;
  }
}

TEST(ModelDirectory, AnyChangedShardIsFound) {
  const TempDir dir;
  write_shard(dir.file("model-1-of-2.safetensors"), {{"a", "a"}});
  write_shard(dir.file("model-2-of-2.safetensors"), {{"b", "b"}});
  const auto model = ModelDirectory::open(dir.path());
  EXPECT_NO_THROW(model.check_unchanged());
  std::filesystem::resize_file(dir.file("model-2-of-2.safetensors"), 1000);
  EXPECT_THROW(model.check_unchanged(), IoError);
}

TEST(ModelDirectory, TrailingBytesAreIgnoredOnRequest) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "a"}});
  std::filesystem::resize_file(dir.file("model.safetensors"), 1000);
  EXPECT_THROW((void)ModelDirectory::open(dir.path()), FormatError);
  EXPECT_EQ(read(ModelDirectory::open(dir.path(), TrailingBytes::kIgnore), "a"), "a");
}

TEST(ModelDirectory, AMovedDirectoryGoesOnReading) {
  const TempDir dir;
  write_shard(dir.file("model.safetensors"), {{"a", "A"}, {"b", "B"}});
  auto first = ModelDirectory::open(dir.path());
  const ModelDirectory second = std::move(first);
  EXPECT_EQ(read(second, "b"), "B");
}

}  // namespace
}  // namespace metrale::weights
