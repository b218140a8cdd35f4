// SPDX-License-Identifier: Apache-2.0
#include "engine/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/quant/convert_elements.h>
#include <metrale/quant/float_convert.h>

#include "engine/name_patterns.h"

namespace metrale::engine {
namespace {

using quant::ElementType;
using weights::DType;
using weights::TensorRef;

std::optional<ElementType> element_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ElementType::kF32;
    case DType::kF16:
      return ElementType::kF16;
    case DType::kBf16:
      return ElementType::kBf16;
    default:
      return std::nullopt;
  }
}

// A plain decoder; one inside a model with other inputs, as newer and as older versions of transformers save
// it.
constexpr std::array kNamings{
    TensorNaming{}, TensorNaming{.model = "model.language_model.", .head = "lm_head."},
    TensorNaming{.model = "language_model.model.", .head = "language_model.lm_head."}};

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_expected_extra(std::string_view name) {
  // Old checkpoints carry the rotary frequencies, tied ones a copy of the embedding, and FP8 ones the scales
  // of activations and of a quantized cache.
  for (const std::string_view end :
       {"rotary_emb.inv_freq", "lm_head.weight", ".input_scale", ".k_scale", ".v_scale"}) {
    if (name.ends_with(end)) return true;
  }
  // The other inputs of a model whose decoder is read.
  for (const std::string_view part : {"vision_tower.", "multi_modal_projector."}) {
    if (name.starts_with(part) || (name.starts_with("model.") && name.substr(6).starts_with(part)))
      return true;
  }
  return false;
}

}  // namespace

std::string TensorNaming::spell(std::string_view name) const {
  constexpr TensorNaming kPlain;
  if (name.starts_with(kPlain.model)) return fmt::format("{}{}", model, name.substr(kPlain.model.size()));
  if (name.starts_with(kPlain.head)) return fmt::format("{}{}", head, name.substr(kPlain.head.size()));
  return std::string(name);
}

TensorNaming find_naming(const weights::ModelDirectory& directory) {
  for (const TensorNaming& naming : kNamings) {
    if (directory.find(naming.spell(kEmbeddingName)) != nullptr) return naming;
  }
  return {};
}

Checkpoint::Checkpoint(const ModelConfig& config, const weights::ModelDirectory& directory,
                       const WeightPlan& plan)
    : directory_(&directory), plan_(&plan), naming_(find_naming(directory)) {
  std::vector<std::string> problems;
  find_all(config, problems);
  if (!problems.empty()) throw FormatError(directory.path(), 0, list_by_pattern(problems));
  warn_unused();
}

void Checkpoint::find_all(const ModelConfig& config, std::vector<std::string>& problems) {
  for (const PlannedTensor& planned : plan_->tensors) {
    const std::string name = naming_.spell(planned.name);
    Source& source = sources_.emplace_back();
    source.data = directory_->find(name);
    source.added = planned.added;
    if (source.data == nullptr) {
      problems.push_back(fmt::format("{} is missing", name));
      continue;
    }
    const weights::TensorInfo& info = source.data->info();
    if (info.shape != planned.shape) {
      problems.push_back(fmt::format("{} has the shape {}, config.json asks for {}", name,
                                     shape_text(info.shape), shape_text(planned.shape)));
    } else if (info.dtype == DType::kF8E4M3 && planned.shape.size() == 2) {
      std::string problem = find_scales(config, name, source);
      if (!problem.empty()) problems.push_back(std::move(problem));
    } else if (!element_type(info.dtype)) {
      problems.push_back(fmt::format("{} is {}; F32, F16 and BF16 are read, and F8_E4M3 matrices with scales",
                                     name, weights::to_string(info.dtype)));
    }
  }
}

// What is wrong with the scales of an FP8 matrix; empty where they are there.
std::string Checkpoint::find_scales(const ModelConfig& config, const std::string& name, Source& source) {
  const TensorRef* tensor = directory_->find(name + "_scale_inv");
  if (tensor == nullptr) tensor = directory_->find(name + "_scale");
  if (tensor == nullptr) return fmt::format("{} is F8_E4M3 and {}_scale is missing", name, name);
  const weights::TensorInfo& info = tensor->info();
  const auto type = element_type(info.dtype);
  if (!type)
    return fmt::format("{} is {}; F32, F16 and BF16 are read", info.name, weights::to_string(info.dtype));
  const std::uint64_t rows = source.data->info().shape[0];
  const std::uint64_t columns = source.data->info().shape[1];
  const auto& tile = config.fp8_tile;
  const std::vector<std::uint64_t> tiles{ceil_div<std::uint64_t>(rows, tile.rows),
                                         ceil_div<std::uint64_t>(columns, tile.columns)};
  const std::uint64_t count = info.num_elems();
  if (info.shape == tiles) {
    source.tile_rows = tile.rows;
    source.tile_columns = tile.columns;
  } else if (count == 1 || (count == rows && info.shape[0] == rows)) {
    source.tile_rows = count == 1 ? rows : 1;
    source.tile_columns = columns;
  } else {
    return fmt::format("{} has the shape {}; expected [1], [{}, 1] or {}", info.name, shape_text(info.shape),
                       rows, shape_text(tiles));
  }
  std::vector<std::byte> bytes(info.size_bytes);
  directory_->read(*tensor, bytes);
  source.scales.resize(count);
  quant::convert_elements(bytes, *type, std::as_writable_bytes(std::span(source.scales)), ElementType::kF32);
  scale_names_.push_back(info.name);
  return {};
}

void Checkpoint::warn_unused() const {
  std::unordered_set<std::string_view> used(scale_names_.begin(), scale_names_.end());
  for (const Source& source : sources_) used.insert(source.data->info().name);
  std::vector<std::string> unused;
  for (const TensorRef& tensor : directory_->tensors()) {
    const std::string& name = tensor.info().name;
    if (!used.contains(name) && !is_expected_extra(name)) unused.push_back(name);
  }
  if (!unused.empty()) {
    log().warn("'{}': {} tensors are not used: {}", directory_->path(), unused.size(),
               list_by_pattern(unused));
  }
}

weights::TensorLoad Checkpoint::load(std::size_t tensor) const {
  return weights::TensorLoad::whole(*sources_[tensor].data);
}

weights::TensorTarget Checkpoint::target(std::size_t tensor, const PlannedTensor& planned,
                                         DevicePtr base) const {
  const Source& source = sources_[tensor];
  const DType dtype = source.data->info().dtype;
  weights::TensorTarget target{.address = base.offset(planned.offset_bytes), .convert = {}};
  if (element_type(dtype) == planned.stored && source.added == 0) return target;
  target.in_element_bytes = weights::bits(dtype) / 8;
  target.out_element_bytes = static_cast<std::uint32_t>(quant::element_bytes(planned.stored));
  target.convert = [&source, to = planned.stored](std::uint64_t first, std::span<const std::byte> in,
                                                  std::span<std::byte> out) {
    convert(source, to, first, in, out);
  };
  return target;
}

// Elements from `first` on as the model has them.
void Checkpoint::widen(const Source& source, std::uint64_t first, std::span<const std::byte> in,
                       std::span<float> out) {
  const weights::TensorInfo& info = source.data->info();
  if (source.scales.empty()) {
    const auto type = element_type(info.dtype);
    if (!type) throw InvalidArgument(fmt::format("tensor {} was not checked", info.name));
    quant::convert_elements(in, *type, std::as_writable_bytes(out), ElementType::kF32);
    for (float& value : out) value += source.added;
    return;
  }
  const std::uint64_t columns = info.shape[1];
  const std::uint64_t tiles_across = ceil_div(columns, source.tile_columns);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t row = (first + i) / columns;
    const std::uint64_t column = (first + i) % columns;
    const float scale = source.scales[row / source.tile_rows * tiles_across + column / source.tile_columns];
    out[i] = quant::e4m3_to_float(static_cast<std::uint8_t>(in[i])) * scale;
  }
}

void Checkpoint::convert(const Source& source, ElementType to, std::uint64_t first,
                         std::span<const std::byte> in, std::span<std::byte> out) {
  std::array<float, 1024> wide;
  const std::size_t in_bytes = weights::bits(source.data->info().dtype) / 8;
  const std::size_t out_bytes = quant::element_bytes(to);
  const std::size_t count = in.size() / in_bytes;
  for (std::size_t done = 0; done < count; done += wide.size()) {
    const std::size_t now = std::min(wide.size(), count - done);
    const std::span<float> values = std::span(wide).first(now);
    widen(source, first + done, in.subspan(done * in_bytes, now * in_bytes), values);
    quant::convert_elements(std::as_bytes(values), ElementType::kF32,
                            out.subspan(done * out_bytes, now * out_bytes), to);
  }
}

ElementType exact_matrix_type(const WeightPlan& plan, const weights::ModelDirectory& directory) {
  const TensorNaming naming = find_naming(directory);
  std::optional<ElementType> common;
  for (const PlannedTensor& planned : plan.tensors) {
    const TensorRef* tensor =
        planned.shape.size() == 2 ? directory.find(naming.spell(planned.name)) : nullptr;
    if (tensor == nullptr) continue;
    const ElementType type = element_type(tensor->info().dtype).value_or(ElementType::kF32);
    if (common && *common != type) return ElementType::kF32;
    common = type;
  }
  return common.value_or(ElementType::kBf16);
}

ElementType default_compute(const ModelConfig& config, const weights::ModelDirectory& directory) {
  const TensorRef* embedding = directory.find(find_naming(directory).spell(kEmbeddingName));
  const auto type = embedding == nullptr ? config.dtype : element_type(embedding->info().dtype);
  return type == ElementType::kF32 || type == ElementType::kF16 ? ElementType::kF32 : ElementType::kBf16;
}

}  // namespace metrale::engine
