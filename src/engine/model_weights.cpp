// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/engine/model_weights.h>

#include "engine/convert_elements.h"
#include "engine/weight_plan.h"

namespace metrale::engine {
namespace {

using quant::ElementType;
using weights::TensorRef;

constexpr std::size_t kChunkBytes = std::size_t{16} << 20;
constexpr std::size_t kNamesShown = 8;

std::optional<ElementType> element_type(weights::DType dtype) {
  switch (dtype) {
    case weights::DType::kF32:
      return ElementType::kF32;
    case weights::DType::kF16:
      return ElementType::kF16;
    case weights::DType::kBf16:
      return ElementType::kBf16;
    default:
      return std::nullopt;
  }
}

// Of a tensor that check_tensors has seen.
ElementType checked_type(const TensorRef& tensor) {
  const auto type = element_type(tensor.info().dtype);
  if (!type) throw InvalidArgument(fmt::format("tensor {} was not checked", tensor.info().name));
  return *type;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string list_some(const std::vector<std::string>& entries) {
  std::string text = fmt::format(
      "{}",
      fmt::join(entries.begin(),
                entries.begin() + static_cast<std::ptrdiff_t>(std::min(entries.size(), kNamesShown)), "; "));
  if (entries.size() > kNamesShown) text += fmt::format("; and {} more", entries.size() - kNamesShown);
  return text;
}

// The type that the checkpoint's matrices have in common, or FP32, which holds all of them exactly.
ElementType common_matrix_type(const WeightPlan& plan, const weights::ModelDirectory& directory) {
  std::optional<ElementType> common;
  for (const PlannedTensor& planned : plan.tensors) {
    const TensorRef* tensor = planned.shape.size() == 2 ? directory.find(planned.name) : nullptr;
    const auto type = tensor == nullptr ? std::nullopt : element_type(tensor->info().dtype);
    if (!type) continue;
    if (common && *common != *type) return ElementType::kF32;
    common = type;
  }
  return common.value_or(ElementType::kBf16);
}

void check_tensors(const WeightPlan& plan, const weights::ModelDirectory& directory) {
  std::vector<std::string> problems;
  for (const PlannedTensor& planned : plan.tensors) {
    const TensorRef* tensor = directory.find(planned.name);
    if (tensor == nullptr) {
      problems.push_back(fmt::format("{} is missing", planned.name));
    } else if (tensor->info().shape != planned.shape) {
      problems.push_back(fmt::format("{} has the shape {}, config.json asks for {}", planned.name,
                                     shape_text(tensor->info().shape), shape_text(planned.shape)));
    } else if (!element_type(tensor->info().dtype)) {
      problems.push_back(fmt::format("{} is {}; F32, F16 and BF16 are read", planned.name,
                                     weights::to_string(tensor->info().dtype)));
    }
  }
  if (!problems.empty()) throw FormatError(directory.path(), 0, list_some(problems));
}

void warn_unexpected(const WeightPlan& plan, const weights::ModelDirectory& directory) {
  std::unordered_set<std::string_view> planned;
  for (const PlannedTensor& tensor : plan.tensors) planned.insert(tensor.name);
  std::vector<std::string> unexpected;
  for (const TensorRef& tensor : directory.tensors()) {
    const std::string& name = tensor.info().name;
    // Old checkpoints carry the rotary frequencies, and tied ones a copy of the embedding.
    if (planned.contains(name) || name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight") continue;
    unexpected.push_back(name);
  }
  if (!unexpected.empty()) {
    log().warn("'{}': {} tensors are not used: {}", directory.path(), unexpected.size(),
               list_some(unexpected));
  }
}

// Streams one tensor to the device in chunks, converting on the way.
class Uploader {
 public:
  Uploader(gpu::GpuBackend& gpu, const weights::ModelDirectory& directory, DevicePtr base)
      : gpu_(&gpu), directory_(&directory), base_(base), staging_(gpu, kChunkBytes) {}

  // `tick` is called with the bytes read so far of this tensor.
  template <class Tick>
  void upload(const PlannedTensor& planned, const Tick& tick) {
    const TensorRef& tensor = *directory_->find(planned.name);
    const ElementType from = checked_type(tensor);
    const std::size_t elems = kChunkBytes / quant::element_bytes(ElementType::kF32);
    const std::uint64_t total = planned.num_elems();
    for (std::uint64_t done = 0; done < total;) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(elems, total - done));
      const std::span<std::byte> read = staging_.span().first(count * quant::element_bytes(from));
      directory_->read_range(tensor, done * quant::element_bytes(from), read);
      const std::span<const std::byte> bytes = convert(read, from, planned.stored, count);
      gpu_->copy_h2d_blocking(
          base_.offset(planned.offset_bytes + done * quant::element_bytes(planned.stored)), bytes);
      done += count;
      tick(done * quant::element_bytes(from));
    }
  }

 private:
  std::span<const std::byte> convert(std::span<const std::byte> read, ElementType from, ElementType to,
                                     std::size_t count) {
    if (from == to) return read;
    converted_.resize(count * quant::element_bytes(to));
    convert_elements(read, from, converted_, to);
    return converted_;
  }

  gpu::GpuBackend* gpu_;
  const weights::ModelDirectory* directory_;
  DevicePtr base_;
  gpu::PinnedBuffer staging_;
  std::vector<std::byte> converted_;
};

}  // namespace

ModelWeights::ModelWeights(gpu::GpuBackend& gpu, const ModelConfig& config,
                           const weights::ModelDirectory& directory, ElementType compute,
                           const Progress& progress) {
  const WeightPlan names = plan_weights(config, ElementType::kBf16);
  check_tensors(names, directory);
  warn_unexpected(names, directory);
  // A BF16 computation would round every weight anyway; FP32 keeps them as they are.
  matrix_type_ = compute == ElementType::kBf16 ? ElementType::kBf16 : common_matrix_type(names, directory);
  const WeightPlan plan = plan_weights(config, matrix_type_);
  if (plan.total_bytes > gpu.free_memory_bytes()) {
    throw OutOfMemory("device", plan.total_bytes, gpu.free_memory_bytes(), "the model's weights do not fit");
  }
  slab_ = gpu::DeviceBuffer(gpu, plan.total_bytes);

  std::uint64_t total = 0;
  for (const PlannedTensor& tensor : plan.tensors) total += directory.find(tensor.name)->info().size_bytes;
  Uploader uploader(gpu, directory, slab_.ptr());
  std::uint64_t before = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    uploader.upload(tensor, [&](std::uint64_t done) {
      if (progress && !progress(before + done, total)) throw Cancelled("the load was cancelled");
    });
    before += directory.find(tensor.name)->info().size_bytes;
  }
  directory.check_unchanged();

  const auto at = [&](std::uint64_t offset) {
    return offset == kAbsent ? DevicePtr{} : slab_.ptr().offset(offset);
  };
  const auto linear = [&](const PlannedLinear& p) {
    return LinearWeights{at(p.weight), at(p.bias), p.in_features, p.out_features};
  };
  embedding_ = at(plan.embedding);
  final_norm_ = at(plan.final_norm);
  lm_head_ = linear(plan.lm_head);
  for (const PlannedLayer& p : plan.layers) {
    layers_.push_back({at(p.input_norm), at(p.post_attn_norm), linear(p.qkv), linear(p.o), linear(p.gate),
                       linear(p.up), linear(p.down)});
  }
}

void ModelWeights::do_release(gpu::GpuBackend&) {
  layers_.clear();
  slab_.release();
}

ElementType default_compute(const ModelConfig& config, const weights::ModelDirectory& directory) {
  const TensorRef* embedding = directory.find("model.embed_tokens.weight");
  const auto type = embedding == nullptr ? config.dtype : element_type(embedding->info().dtype);
  return type == ElementType::kF32 || type == ElementType::kF16 ? ElementType::kF32 : ElementType::kBf16;
}

}  // namespace metrale::engine
