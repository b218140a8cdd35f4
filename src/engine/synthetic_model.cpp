// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/thread_pool.h>
#include <metrale/engine/model_config.h>
#include <metrale/engine/synthetic_model.h>
#include <metrale/weights/atomic_file.h>
#include <metrale/weights/safetensors_writer.h>

#include "engine/synthetic_values.h"
#include "engine/weight_plan.h"

namespace metrale::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using weights::TensorSpec;

constexpr std::size_t kPartBytes = std::size_t{16} << 20;        // made together, then written
constexpr std::size_t kGrainElems = std::size_t{1} << 16;        // made by one thread at a time
constexpr std::uint64_t kRoomToSpare = std::uint64_t{64} << 10;  // headers, and what the file system adds

weights::DType file_dtype(quant::ElementType dtype) {
  switch (dtype) {
    case quant::ElementType::kF32:
      return weights::DType::kF32;
    case quant::ElementType::kBf16:
      return weights::DType::kBf16;
    case quant::ElementType::kF16:
      return weights::DType::kF16;
  }
  throw InvalidArgument("no such element type");
}

std::uint64_t size_bytes(const TensorSpec& tensor) {
  std::uint64_t bytes = weights::bits(tensor.dtype) / 8;
  for (const std::uint64_t dim : tensor.shape) bytes = checked_mul(bytes, dim);
  return bytes;
}

// The directory that a model grows in: nothing of it stays unless publish() was reached.
class Staging {
 public:
  explicit Staging(const std::string& directory) : target_(directory) {
    const auto failed = [&](const char* what, const std::error_code& error) {
      return IoError(what, directory, error.value());
    };
    std::error_code error;
    made_target_ = fs::create_directory(target_, error);
    if (error && !fs::exists(target_)) throw failed("cannot create", error);
    if (!fs::is_directory(target_)) throw IoError("cannot write into", directory, ENOTDIR);
    const bool is_empty = made_target_ || fs::is_empty(target_, error);
    if (error) throw failed("cannot list", error);
    if (!is_empty) {
      throw InvalidArgument(
          fmt::format("'{}' is not empty (it holds '{}'): a model is written into a new directory", directory,
                      fs::directory_iterator(target_)->path().filename().string()));
    }
    path_ = target_ / fmt::format(".{}.part", ::getpid());
    fs::create_directory(path_, error);
    if (error) {
      remove_all();
      throw failed("cannot write into", error);
    }
  }
  ~Staging() {
    if (!published_) remove_all();
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  [[nodiscard]] std::string file(const std::string& name) {
    names_.push_back(name);
    return (path_ / name).string();
  }
  // Throws before anything is written where the disk cannot hold it.
  void require_room(std::uint64_t bytes) const {
    std::error_code error;
    const fs::space_info space = fs::space(path_, error);
    if (error || space.available >= bytes) return;
    throw IoError("cannot write a model into", target_.string(), ENOSPC, 0,
                  fmt::format("it takes {} bytes, {} are free", bytes, space.available));
  }
  // Moves every file up, in the order in which they were named.
  void publish() {
    for (; moved_ < names_.size(); ++moved_) {
      std::error_code error;
      fs::rename(path_ / names_[moved_], target_ / names_[moved_], error);
      if (error) throw IoError("cannot create", (target_ / names_[moved_]).string(), error.value());
    }
    std::error_code left;
    fs::remove(path_, left);
    published_ = true;
  }

 private:
  void remove_all() noexcept {
    std::error_code ignored;
    for (std::size_t i = 0; i < moved_; ++i) fs::remove(target_ / names_[i], ignored);
    if (!path_.empty()) fs::remove_all(path_, ignored);
    if (made_target_) fs::remove(target_, ignored);
  }

  fs::path target_;
  fs::path path_;
  bool made_target_ = false;
  bool published_ = false;
  std::vector<std::string> names_;
  std::size_t moved_ = 0;
};

struct Shard {
  std::string file;
  std::vector<TensorSpec> tensors;
};

std::vector<Shard> cut_into_shards(const WeightPlan& plan, weights::DType dtype, std::uint64_t max_bytes) {
  std::vector<Shard> shards(1);
  std::uint64_t in_shard = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    const TensorSpec tensor{planned.name, dtype, planned.shape};
    const std::uint64_t bytes = size_bytes(tensor);
    if (!shards.back().tensors.empty() && checked_add(in_shard, bytes) > max_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().tensors.push_back(tensor);
    in_shard = checked_add(in_shard, bytes);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

std::uint64_t total_bytes(const std::vector<Shard>& shards) {
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) total = checked_add(total, size_bytes(tensor));
  }
  return total;
}

class ShardWriter {
 public:
  ShardWriter(const SyntheticModel& model, const SynthesisOptions& options, std::uint64_t total)
      : dtype_(model.dtype),
        progress_(&options.progress),
        total_(total),
        values_(model.seed),
        pool_(options.threads) {}

  void write(const Shard& shard, const std::string& path) {
    const weights::SafetensorsLayout layout =
        weights::lay_out_tensor_specs(shard.tensors, {{"format", "pt"}});
    weights::AtomicFile file(path);
    file.write(std::as_bytes(std::span(layout.prefix)));
    for (const std::size_t i : layout.order) write_tensor(shard.tensors[i], file);
    file.commit();
  }

 private:
  void write_tensor(const TensorSpec& tensor, weights::AtomicFile& file) {
    const auto distribution = values_.distribution(tensor.name, tensor.shape);
    const std::uint64_t width = quant::element_bytes(dtype_);
    const std::uint64_t elems = size_bytes(tensor) / width;
    for (std::uint64_t done = 0; done < elems;) {
      const std::uint64_t count = std::min<std::uint64_t>(kPartBytes / width, elems - done);
      part_.resize(count * width);
      pool_.parallel_for(count, kGrainElems, [&](std::size_t begin, std::size_t end) {
        values_.fill(distribution, done + begin, dtype_,
                     std::span(part_).subspan(begin * width, (end - begin) * width));
      });
      file.write(part_);
      done += count;
      written_ += count * width;
      if (*progress_ && !(*progress_)(written_, total_)) throw Cancelled("writing the model was cancelled");
    }
  }

  quant::ElementType dtype_;
  const std::function<bool(std::uint64_t, std::uint64_t)>* progress_;
  std::uint64_t total_;
  std::uint64_t written_ = 0;
  SyntheticValues values_;
  ThreadPool pool_;
  std::vector<std::byte> part_;
};

void write_text(const std::string& path, const std::string& text) {
  weights::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string index_json(const std::vector<Shard>& shards) {
  nlohmann::json map = nlohmann::json::object();
  for (const Shard& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) map[tensor.name] = shard.file;
  }
  const ordered_json index{{"metadata", {{"total_size", total_bytes(shards)}}},
                           {"weight_map", std::move(map)}};
  return index.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  const ordered_json json{{"_from_model_config", true},
                          {"bos_token_id", config.bos_id.value_or(0)},
                          {"eos_token_id", config.eos_ids.front()}};
  return json.dump(2) + "\n";
}

}  // namespace

void write_synthetic_model(const std::string& directory, const SyntheticModel& model,
                           const SynthesisOptions& options) {
  const std::string config_text = synthetic_config_json(model);
  const ModelConfig config = parse_model_config(config_text, "config.json");
  const WeightPlan plan = plan_weights(config, model.dtype);
  const auto shards =
      cut_into_shards(plan, file_dtype(model.dtype), std::max<std::uint64_t>(1, options.max_shard_bytes));
  const std::uint64_t total = total_bytes(shards);

  std::vector<std::pair<std::string, std::string>> texts;
  if (shards.size() > 1) texts.emplace_back("model.safetensors.index.json", index_json(shards));
  texts.emplace_back("tokenizer.json",
                     synthetic_tokenizer_json(config.vocab_size, model.architecture != "qwen3"));
  texts.emplace_back("tokenizer_config.json", synthetic_tokenizer_config_json());
  texts.emplace_back("generation_config.json", generation_config_json(config));
  // Last: a directory with a config.json is a model.
  texts.emplace_back("config.json", config_text);

  std::uint64_t room = checked_add(total, kRoomToSpare);
  for (const auto& [name, text] : texts) room = checked_add(room, text.size());
  Staging staging(directory);
  staging.require_room(room);
  ShardWriter writer(model, options, total);
  for (const Shard& shard : shards) writer.write(shard, staging.file(shard.file));
  for (const auto& [name, text] : texts) write_text(staging.file(name), text);
  staging.publish();
}

}  // namespace metrale::engine
