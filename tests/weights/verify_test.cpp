// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <support/temp_dir.h>
#include <vector>
#include <weights/file_bytes.h>
#include <weights/io_shim.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/weights/safetensors_writer.h>
#include <metrale/weights/verify.h>

namespace metrale::weights {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Verify : testing::Test {
  // Two shards: small tensors beside one that is read in several pieces.
  Verify() {
    large.resize(20 * kMiB);
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * i >> 5);
    const auto tensor = [](std::string name, std::string_view data) {
      return TensorData{std::move(name), DType::kU8, {data.size()}, std::as_bytes(std::span(data))};
    };
    const std::vector<TensorData> one{tensor("a", "aaaa"), tensor("b", large), tensor("c", "cc"),
                                      tensor("d", "")};
    const std::vector<TensorData> two{tensor("e", "eeee"), tensor("f", "ff")};
    write_safetensors(dir.file("1.safetensors"), one);
    write_safetensors(dir.file("2.safetensors"), two);
    write_index(R"("a":"1.safetensors","b":"1.safetensors","c":"1.safetensors","d":"1.safetensors",)"
                R"("e":"2.safetensors","f":"2.safetensors")");
  }

  void write_index(const std::string& map, const std::string& more = "") const {
    dir.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}" + more + "}");
  }
  [[nodiscard]] VerifyReport verify(VerifyOptions options = {}) const {
    return verify_weights(dir.path(), options);
  }
  [[nodiscard]] VerifyReport compare(const WeightManifest& manifest) const {
    return verify({.manifest = &manifest});
  }
  void overwrite(const std::string& file, std::uint64_t offset, const std::string& bytes) const {
    std::fstream out(dir.file(file), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(offset));
    out << bytes;
  }
  [[nodiscard]] std::uint64_t offset_of(const std::string& file, const std::string& tensor) const {
    return SafetensorsFile::open(dir.file(file)).header().find(tensor)->offset_bytes;
  }

  TempDir dir;
  std::string large;
};

TEST_F(Verify, SoundModelHasNoProblemsAndEveryTensorItsHash) {
  const VerifyReport report = verify();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.warnings, IsEmpty());
  ASSERT_THAT(report.found.files, SizeIs(2));
  EXPECT_EQ(report.found.files[0].name, "1.safetensors");
  ASSERT_THAT(report.found.files[0].tensors, SizeIs(4));
  EXPECT_EQ(report.found.files[0].tensors[0].hash,
            hash64(std::as_bytes(std::span(std::string_view("aaaa")))));
  EXPECT_EQ(report.found.files[0].tensors[1].hash, hash64(std::as_bytes(std::span(large))));
  EXPECT_EQ(report.found.files[0].tensors[3].hash, hash64({}));
  EXPECT_EQ(report.read_bytes, report.data_bytes);
  EXPECT_EQ(report.data_bytes, large.size() + 12);
  EXPECT_EQ(report.tensors, 6U);
  EXPECT_THAT(compare(report.found).problems, IsEmpty());
}

TEST_F(Verify, NumberOfThreadsDoesNotChangeTheHashes) {
  EXPECT_EQ(verify({.threads = 1}).found, verify({.threads = 5}).found);
}

TEST_F(Verify, ChangedByteIsNamedDownToTheTensor) {
  const WeightManifest manifest = verify().found;
  const std::uint64_t at = offset_of("1.safetensors", "b");
  overwrite("1.safetensors", at + 17 * kMiB, "!");
  const auto problems = compare(manifest).problems;
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].kind, WeightProblem::Kind::kDifference);
  EXPECT_EQ(problems[0].file, dir.file("1.safetensors"));
  EXPECT_EQ(problems[0].tensor, "b");
  EXPECT_EQ(problems[0].offset_bytes, at);
  EXPECT_THAT(verify({.manifest = &manifest, .read_data = false}).problems, IsEmpty());
}

TEST_F(Verify, HeaderIndexAndSetOfFilesAreComparedToo) {
  const WeightManifest manifest = verify().found;
  // The shape of f, of one length.
  std::string file(offset_of("2.safetensors", "e"), '\0');
  std::ifstream(dir.file("2.safetensors"), std::ios::binary)
      .read(file.data(), static_cast<std::streamsize>(file.size()));
  overwrite("2.safetensors", file.find(R"("shape":[2])"), R"("shape": 2 )");
  EXPECT_THAT(compare(manifest).problems, SizeIs(1));  // not an array
  overwrite("2.safetensors", file.find(R"("shape":[2])"), R"("shape":[2])");
  EXPECT_THAT(compare(manifest).problems, IsEmpty());

  write_index(R"("a":"1.safetensors","b":"1.safetensors","c":"1.safetensors","d":"1.safetensors")");
  const auto problems = compare(manifest).problems;
  ASSERT_THAT(problems, SizeIs(2));
  EXPECT_THAT(problems[0].text, HasSubstr("the index is not the manifest's"));
  EXPECT_EQ(problems[1].file, dir.file("2.safetensors"));
  EXPECT_THAT(problems[1].text, HasSubstr("not one of the model's files"));

  WeightManifest shorter = manifest;
  shorter.files.pop_back();
  write_index(R"("a":"1.safetensors","e":"2.safetensors")");
  const auto more = compare(shorter).problems;
  ASSERT_THAT(more, SizeIs(2));
  EXPECT_THAT(more[1].text, HasSubstr("not in the manifest"));
}

TEST_F(Verify, EveryProblemOfTheFormatIsListedNotOnlyTheFirst) {
  std::filesystem::resize_file(dir.file("1.safetensors"), 1000);
  std::ofstream(dir.file("2.safetensors"), std::ios::app) << "trailing";
  write_index(R"("a":"1.safetensors","e":"2.safetensors","g":"3.safetensors")");
  const auto problems = verify().problems;
  ASSERT_THAT(problems, SizeIs(3));
  EXPECT_EQ(problems[0].file, dir.file("3.safetensors"));
  EXPECT_THAT(problems[0].text, HasSubstr("missing"));
  EXPECT_THAT(problems[1].text, HasSubstr("truncated"));
  EXPECT_THAT(problems[2].text, HasSubstr("8 bytes follow the last tensor"));
}

TEST_F(Verify, OfVeryManyMissingShardsTheFirstHundredAreNamedAndTheRestCounted) {
  const TempDir split;
  split.write("model-00001-of-99999.safetensors", "");
  const auto problems = verify_weights(split.path(), {}).problems;
  ASSERT_THAT(problems, SizeIs(102));
  EXPECT_THAT(problems[100].text, HasSubstr("99898 more files are missing"));
}

TEST_F(Verify, IndexThatNamesWhatIsNotThereIsAProblem) {
  write_index(R"("a":"2.safetensors","e":"2.safetensors")");
  const auto problems = verify().problems;
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].tensor, "a");
  EXPECT_EQ(problems[0].file, dir.file("2.safetensors"));
  dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"../x"}})");
  EXPECT_THAT(verify().problems, SizeIs(1));
}

TEST_F(Verify, WhatLoadingWarnsOfIsAWarning) {
  write_index(R"("a":"1.safetensors","e":"2.safetensors")", R"(,"metadata":{"total_size":5})");
  const VerifyReport report = verify();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.warnings,
              testing::ElementsAre(HasSubstr("4 of the 6 tensors"), HasSubstr("total_size is 5")));
}

TEST_F(Verify, WithoutAnIndexANameInTwoFilesIsAProblem) {
  std::filesystem::remove(dir.file("model.safetensors.index.json"));
  std::filesystem::rename(dir.file("1.safetensors"), dir.file("model-a.safetensors"));
  std::filesystem::copy(dir.file("model-a.safetensors"), dir.file("model-b.safetensors"));
  const auto problems = verify().problems;
  ASSERT_THAT(problems, SizeIs(4));
  EXPECT_EQ(problems[0].tensor, "a");
  EXPECT_THAT(problems[0].text, HasSubstr("model-a.safetensors"));
}

TEST_F(Verify, OneFileIsVerifiedByItself) {
  const VerifyReport report = verify_weights(dir.file("2.safetensors"));
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.found.files, SizeIs(1));
  EXPECT_FALSE(report.found.index);
  EXPECT_EQ(default_manifest_path(dir.file("2.safetensors")), dir.file("2.safetensors.manifest.json"));
  EXPECT_EQ(default_manifest_path(dir.path()), dir.file("metrale.manifest.json"));
  EXPECT_THROW((void)verify_weights(dir.file("model.safetensors.index.json")), InvalidArgument);
  EXPECT_THROW((void)verify_weights(dir.file("absent")), IoError);
}

TEST_F(Verify, UnreadablePartNamesItsTensorAndTheRestIsVerified) {
  const WeightManifest manifest = verify().found;
  const auto bad = static_cast<off_t>(offset_of("2.safetensors", "f"));
  const io_shim::Hook hook =
      io_shim::on_pread([&](int fd, void* out, std::size_t count, off_t offset) -> ssize_t {
        const bool reads_data = offset >= bad - 4 && count <= 6;
        if (reads_data && offset <= bad && offset + static_cast<off_t>(count) > bad) {
          errno = EIO;
          return -1;
        }
        return io_shim::real_pread(fd, out, count, offset);
      });
  const auto problems = verify({.manifest = &manifest, .threads = 1}).problems;
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].kind, WeightProblem::Kind::kIo);
  EXPECT_EQ(problems[0].tensor, "f");
}

TEST_F(Verify, FileThatChangesMeanwhileIsAProblem) {
  bool changed = false;
  const VerifyReport report = verify({.progress = [&](std::uint64_t, std::uint64_t) {
    if (!std::exchange(changed, true)) std::ofstream(dir.file("1.safetensors"), std::ios::app) << "x";
    return true;
  }});
  ASSERT_THAT(report.problems, SizeIs(1));
  EXPECT_EQ(report.problems[0].kind, WeightProblem::Kind::kIo);
  EXPECT_THAT(report.problems[0].text, HasSubstr("when it was opened"));
}

TEST_F(Verify, ProgressEndsAtTheTotalAndCanStop) {
  std::uint64_t last = 0;
  const VerifyReport report = verify({.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, large.size() + 12);
    EXPECT_GT(done, last);
    last = done;
    return true;
  }});
  EXPECT_EQ(last, report.data_bytes);
  EXPECT_THROW((void)verify({.progress = [](std::uint64_t, std::uint64_t) { return false; }}), Cancelled);
}

TEST(VerifyExtra, WeightsAreHashedAndMayRepeatNames) {
  const TempDir dir;
  const std::string old_bytes = "old";
  const std::string new_bytes = "new";
  write_safetensors(dir.file("model.safetensors"),
                    std::vector<TensorData>{{"a", DType::kU8, {3}, std::as_bytes(std::span(old_bytes))}});
  write_safetensors(dir.file("extra_weights.safetensors"),
                    std::vector<TensorData>{{"a", DType::kU8, {3}, std::as_bytes(std::span(new_bytes))}});
  const VerifyReport report = verify_weights(dir.path(), {});
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.found.files.size(), 2U);
  EXPECT_EQ(report.data_bytes, 6U);
  EXPECT_TRUE(verify_weights(dir.path(), {.manifest = &report.found}).problems.empty());
}

TEST(VerifyExtra, OneThatIsGoneOrNewIsADifference) {
  const TempDir dir;
  const std::string bytes = "abc";
  const std::vector<TensorData> a{{"a", DType::kU8, {3}, std::as_bytes(std::span(bytes))}};
  const std::vector<TensorData> b{{"b", DType::kU8, {3}, std::as_bytes(std::span(bytes))}};
  write_safetensors(dir.file("model.safetensors"), a);
  const WeightManifest without = verify_weights(dir.path(), {}).found;
  write_safetensors(dir.file("extra_weights.safetensors"), b);
  const WeightManifest with = verify_weights(dir.path(), {}).found;
  EXPECT_EQ(verify_weights(dir.path(), {.manifest = &without}).problems.size(), 1U);
  std::filesystem::remove(dir.file("extra_weights.safetensors"));
  EXPECT_EQ(verify_weights(dir.path(), {.manifest = &with}).problems.size(), 1U);
}

}  // namespace
}  // namespace metrale::weights
