// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include <nlohmann/json.hpp>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/thread_pool.h>
#include <metrale/engine/model_config.h>
#include <metrale/engine/synthetic_model.h>
#include <metrale/weights/atomic_file.h>
#include <metrale/weights/model_output.h>
#include <metrale/weights/safetensors_writer.h>

#include "engine/synthetic_values.h"
#include "engine/weight_plan.h"

namespace metrale::engine {
namespace {

using nlohmann::ordered_json;
using weights::Shard;
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

std::vector<TensorSpec> specs(const WeightPlan& plan, weights::DType dtype) {
  std::vector<TensorSpec> tensors;
  for (const PlannedTensor& planned : plan.tensors) tensors.push_back({planned.name, dtype, planned.shape});
  return tensors;
}

std::uint64_t total_bytes(const std::vector<Shard>& shards) {
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) total = checked_add(total, weights::size_bytes(tensor));
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
    const std::uint64_t elems = weights::size_bytes(tensor) / width;
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
  const auto shards = weights::cut_into_shards(specs(plan, file_dtype(model.dtype)),
                                               std::max<std::uint64_t>(1, options.max_shard_bytes));
  const std::uint64_t total = total_bytes(shards);

  std::vector<std::pair<std::string, std::string>> texts;
  if (shards.size() > 1)
    texts.emplace_back("model.safetensors.index.json", weights::shard_index_json(shards));
  texts.emplace_back("tokenizer.json",
                     synthetic_tokenizer_json(config.vocab_size, model.architecture != "qwen3"));
  texts.emplace_back("tokenizer_config.json", synthetic_tokenizer_config_json());
  texts.emplace_back("generation_config.json", generation_config_json(config));
  // Last: a directory with a config.json is a model.
  texts.emplace_back("config.json", config_text);

  std::uint64_t room = checked_add(total, kRoomToSpare);
  for (const auto& [name, text] : texts) room = checked_add(room, text.size());
  weights::ModelStaging staging(directory);
  staging.require_room(room);
  ShardWriter writer(model, options, total);
  for (const Shard& shard : shards) writer.write(shard, staging.file(shard.file));
  for (const auto& [name, text] : texts) write_text(staging.file(name), text);
  staging.publish();
}

}  // namespace metrale::engine
