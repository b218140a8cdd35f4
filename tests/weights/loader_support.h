// SPDX-License-Identifier: Apache-2.0
// Models of random bytes and what a load of them gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <support/temp_dir.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <metrale/io/fault.h>
#include <metrale/weights/loader.h>
#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Two shards and an index; sizes from nothing to several chunks of 16 KiB, types of one to eight bytes, so
// that offsets are odd and elements straddle every border.
class RandomModel {
 public:
  explicit RandomModel(std::uint64_t seed, const std::string& where = "") {
    std::mt19937_64 random(seed);
    path_ = where.empty() ? dir_.path() : where;
    std::string weight_map;
    for (int shard = 1; shard <= 2; ++shard) {
      const std::string file = fmt::format("model-{:05}-of-00002.safetensors", shard);
      std::vector<TensorData> tensors;
      for (int i = 0; i < 12; ++i) add(random, fmt::format("s{}.t{}", shard, i), tensors);
      write_safetensors(path_ + "/" + file, tensors);
      for (const TensorData& tensor : tensors) {
        weight_map += fmt::format("{}\"{}\":\"{}\"", weight_map.empty() ? "" : ",", tensor.name, file);
      }
    }
    std::ofstream(path_ + "/model.safetensors.index.json") << "{\"weight_map\":{" << weight_map << "}}";
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Bytes& bytes(const std::string& name) const { return bytes_.at(name); }

 private:
  void add(std::mt19937_64& random, const std::string& name, std::vector<TensorData>& tensors) {
    constexpr DType kTypes[] = {DType::kU8, DType::kBf16, DType::kF32, DType::kI64, DType::kF8E4M3};
    constexpr std::size_t kMost[] = {0, 7, 300, 5'000, 40'000, 120'000};
    const DType dtype = kTypes[random() % std::size(kTypes)];
    const std::size_t width = bits(dtype) / 8;
    const std::size_t most = kMost[random() % std::size(kMost)];
    const std::size_t count = most == 0 ? 0 : random() % most / width;
    const Bytes& data = bytes_[name] = random_bytes(random, count * width);
    tensors.push_back({name, dtype, {count}, data});
  }

  TempDir dir_;
  std::string path_;
  std::map<std::string, Bytes> bytes_;
};

inline std::vector<TensorLoad> load_all(const ModelDirectory& directory) {
  std::vector<TensorLoad> loads;
  for (const TensorRef& tensor : directory.tensors()) loads.push_back(TensorLoad::whole(tensor));
  return loads;
}

// Small enough that a RandomModel takes many chunks and reuses every slot.
inline LoadOptions small_chunks(LoadPath path = LoadPath::kAuto,
                                io::IoEngineKind engine = io::IoEngineKind::kAuto) {
  LoadOptions options;
  options.path = path;
  options.engine = engine;
  options.chunk_bytes = std::uint64_t{16} << 10;
  options.staging_bytes = std::uint64_t{160} << 10;
  return options;
}

// An engine with random faults; only with every fourth seed are there some that end a load.
inline auto faulty_engine(std::uint64_t seed) {
  return [seed](const io::IoOptions& options) {
    const io::IoFaultRates rates{.seed = seed,
                                 .shortened = 60,
                                 .interrupted = 30,
                                 .again = 30,
                                 .failed = seed % 4 == 0 ? 20U : 0U,
                                 .stale = 30,
                                 .duplicate = 30,
                                 .late = 60,
                                 .refused = 30};
    return std::make_unique<io::FaultEngine>(io::make_io_engine(options), rates);
  };
}

// Keeps what comes; checks that pieces are whole elements within their load.
class CollectingSink final : public PieceSink {
 public:
  explicit CollectingSink(const std::vector<TensorLoad>& loads, bool wants_order = true)
      : loads_(loads),
        wants_order_(wants_order),
        bytes_(loads.size()),
        got_(loads.size()),
        seen_(loads.size()) {
    for (std::size_t i = 0; i < loads.size(); ++i) bytes_[i].resize(loads[i].size_bytes);
  }
  [[nodiscard]] const Bytes& bytes(std::size_t load) const { return bytes_[load]; }
  // Every byte came once.
  [[nodiscard]] bool is_complete() const {
    for (std::size_t i = 0; i < loads_.size(); ++i) {
      if (got_[i] != loads_[i].size_bytes || !seen_[i]) return false;
    }
    return true;
  }
  [[nodiscard]] bool is_finished() const { return finished_; }

 private:
  [[nodiscard]] bool do_wants_order() const override { return wants_order_; }
  void do_take(const Piece& piece) override {
    const TensorLoad& load = loads_[piece.load];
    const std::size_t width = std::max(1U, bits(load.tensor.info().dtype) / 8);
    EXPECT_EQ(piece.offset_bytes % width, 0U);
    EXPECT_EQ(piece.bytes.size() % width, 0U);
    ASSERT_LE(piece.offset_bytes + piece.bytes.size(), load.size_bytes);
    if (wants_order_ && !piece.bytes.empty()) {
      const auto at = std::pair(load.tensor.file_index(),
                                load.tensor.info().offset_bytes + load.begin_bytes + piece.offset_bytes);
      EXPECT_GE(at, last_) << "out of order";
      last_ = at;
    }
    std::copy(piece.bytes.begin(), piece.bytes.end(),
              bytes_[piece.load].begin() + static_cast<std::ptrdiff_t>(piece.offset_bytes));
    got_[piece.load] += piece.bytes.size();
    seen_[piece.load] = true;
  }
  void do_finish() override { finished_ = true; }

  const std::vector<TensorLoad>& loads_;
  bool wants_order_;
  std::vector<Bytes> bytes_;
  std::vector<std::uint64_t> got_;
  std::vector<bool> seen_;
  std::pair<std::uint32_t, std::uint64_t> last_;
  bool finished_ = false;
};

}  // namespace metrale::weights
