// SPDX-License-Identifier: Apache-2.0
// Random files: what is written comes back, and damage is refused or read as what it has become.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <support/temp_dir.h>
#include <vector>
#include <weights/file_bytes.h>

#include <gtest/gtest.h>

#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(engine_);
  }
  bool chance(unsigned percent) { return below(100) < percent; }
  std::string bytes(std::size_t count) {
    std::string text(count, '\0');
    for (char& c : text) c = static_cast<char>(below(256));
    return text;
  }
  // Valid UTF-8 with all that needs escaping.
  std::string text() {
    static const std::vector<std::string> kPieces{
        "a",    ".", "weight", "\"",     "\\", "/", "\n", std::string(1, '\0'),
        "\x1f", "é", "😀",     "\u2028", " ",  "{", "7"};
    std::string result;
    for (std::uint64_t i = below(6); i > 0; --i) result += kPieces[below(kPieces.size())];
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

struct ModelTensor {
  DType dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
// The slow obvious model of a file.
struct ModelFile {
  std::map<std::string, ModelTensor> tensors;
  SafetensorsMetadata metadata;
};

ModelFile random_file(Random& random) {
  ModelFile file;
  for (std::uint64_t i = random.below(8); i > 0; --i) {
    ModelTensor tensor{static_cast<DType>(random.below(detail::kDTypes.size())), {}, ""};
    std::uint64_t bits_wanted = bits(tensor.dtype);
    for (std::uint64_t rank = random.below(4); rank > 0; --rank) {
      tensor.shape.push_back(random.below(5));
      bits_wanted *= tensor.shape.back();
    }
    if (bits_wanted % 8 != 0) {
      tensor.shape.push_back(4);
      bits_wanted *= 4;
    }
    tensor.bytes = random.bytes(bits_wanted / 8);
    const std::string name = random.text();
    if (name != kMetadataKey) file.tensors[name] = std::move(tensor);
  }
  for (std::uint64_t i = random.below(4); i > 0; --i) file.metadata[random.text()] = random.text();
  return file;
}

std::vector<TensorData> shuffled_tensors(const ModelFile& model, Random& random) {
  std::vector<TensorData> tensors;
  for (const auto& [name, tensor] : model.tensors) {
    tensors.push_back({name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.bytes))});
  }
  for (std::size_t i = tensors.size(); i > 1; --i) std::swap(tensors[i - 1], tensors[random.below(i)]);
  return tensors;
}

// The bytes of the file, without a disk.
std::string written(const ModelFile& model, Random& random) {
  const std::vector<TensorData> tensors = shuffled_tensors(model, random);
  const SafetensorsLayout layout = lay_out_safetensors(tensors, model.metadata);
  std::string bytes = layout.prefix;
  for (const std::size_t i : layout.order) {
    bytes.append(reinterpret_cast<const char*>(tensors[i].bytes.data()), tensors[i].bytes.size());
  }
  return bytes;
}

// True of every header that was accepted, whatever the file looked like.
void expect_sound(const SafetensorsHeader& header, const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  std::uint64_t expected = 8 + length;
  for (const TensorInfo& tensor : header.tensors()) {
    EXPECT_EQ(tensor.offset_bytes, expected);
    EXPECT_EQ(tensor.num_elems() * bits(tensor.dtype), tensor.size_bytes * 8);
    EXPECT_EQ(header.find(tensor.name), &tensor);
    expected += tensor.size_bytes;
  }
  EXPECT_EQ(expected, file.size());
  EXPECT_EQ(header.data_bytes(), file.size() - 8 - length);
}

bool same(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  return a.metadata() == b.metadata() &&
         std::equal(a.tensors().begin(), a.tensors().end(), b.tensors().begin(), b.tensors().end(),
                    [](const TensorInfo& x, const TensorInfo& y) {
                      return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape &&
                             x.offset_bytes == y.offset_bytes && x.size_bytes == y.size_bytes;
                    });
}

std::uint64_t seed() {
  const std::uint64_t value = std::random_device{}();
  std::printf("seed %lu\n", value);
  return value;
}

TEST(SafetensorsProperty, WhatIsWrittenComesBack) {
  Random random(seed());
  for (int round = 0; round < 1'000; ++round) {
    const ModelFile model = random_file(random);
    const std::string file = written(model, random);
    const SafetensorsHeader header = parse_bytes(file);
    expect_sound(header, file);
    EXPECT_EQ(header.metadata(), model.metadata);
    ASSERT_EQ(header.tensors().size(), model.tensors.size());
    for (const auto& [name, tensor] : model.tensors) {
      const TensorInfo* info = header.find(name);
      ASSERT_NE(info, nullptr) << printable_name(name);
      EXPECT_EQ(info->dtype, tensor.dtype);
      EXPECT_EQ(info->shape, tensor.shape);
      EXPECT_EQ(file.substr(info->offset_bytes, info->size_bytes), tensor.bytes);
    }
  }
}

TEST(SafetensorsProperty, TheFileOnDiskIsTheLaidOutBytes) {
  Random random(seed());
  const TempDir dir;
  for (int round = 0; round < 5; ++round) {
    const ModelFile model = random_file(random);
    write_safetensors(dir.file("m"), shuffled_tensors(model, random), model.metadata);
    EXPECT_EQ(read_text_file(dir.file("m"), 1 << 20), written(model, random));
  }
}

TEST(SafetensorsProperty, TheDataMayHoldAnyBytes) {
  Random random(seed());
  for (int round = 0; round < 200; ++round) {
    std::string file = written(random_file(random), random);
    const SafetensorsHeader before = parse_bytes(file);
    const std::size_t data_bytes = before.data_bytes();
    for (std::size_t i = file.size() - data_bytes; i < file.size(); ++i)
      file[i] = static_cast<char>(random.below(256));
    EXPECT_TRUE(same(parse_bytes(file), before));
  }
}

TEST(SafetensorsProperty, AFileOfAnotherLengthIsRefused) {
  Random random(seed());
  for (int round = 0; round < 100; ++round) {
    const std::string file = written(random_file(random), random);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_THROW((void)parse_bytes(file.substr(0, random.below(file.size()))), FormatError);
      EXPECT_THROW((void)parse_bytes(file + random.bytes(1 + random.below(50))), FormatError);
    }
  }
}

std::string damaged(std::string file, Random& random) {
  static const std::string kStructural = "{}[],:\"\\0123456789-.e \n";
  for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const std::size_t at = random.below(file.size());
    const char fresh = random.chance(70) ? kStructural[random.below(kStructural.size())]
                                         : static_cast<char>(random.below(256));
    switch (random.below(4)) {
      case 0:
        file[at] = fresh;
        break;
      case 1:
        file.insert(at, 1, fresh);
        break;
      case 2:
        if (file.size() > 1) file.erase(at, 1 + random.below(3));
        break;
      default:
        file.insert(at, file.substr(random.below(file.size()), random.below(40)));
    }
    if (file.empty()) break;
  }
  // Half the time the length is made to fit again, so that the damage reaches the JSON reader.
  if (file.size() >= 8 && random.chance(50)) {
    const std::size_t end = file.rfind('}');
    if (end != std::string::npos && end >= 8) file.replace(0, 8, length_bytes(end + 1 - 8));
  }
  return file;
}

TEST(SafetensorsProperty, ADamagedFileIsRefusedOrSound) {
  Random random(seed());
  int accepted = 0;
  for (int round = 0; round < 5'000; ++round) {
    const std::string file = damaged(written(random_file(random), random), random);
    try {
      const SafetensorsHeader header = parse_bytes(file);
      expect_sound(header, file);
      ++accepted;
    } catch (const FormatError& error) {
      EXPECT_LE(error.offset(), file.size());
      EXPECT_FALSE(error.problem().empty());
    }
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace metrale::weights
