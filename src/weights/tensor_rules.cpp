// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>

#include <metrale/weights/tensor_rules.h>

namespace metrale::weights {
namespace {

bool starts_with_any(std::string_view name, const auto& prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

constexpr std::array<std::string_view, 2> kActivationScales{".input_scale", ".activation_scale"};
constexpr std::array<std::string_view, 2> kDraftLayers{"mtp.", "model.mtp."};
constexpr std::array<std::string_view, 6> kVision{"visual.",      "model.visual.", "vision_tower.",
                                                  "model.vision", "vision_model.", "model.vision_tower."};

}  // namespace

std::optional<std::uint32_t> expert_of(std::string_view name) {
  constexpr std::string_view kPart = "experts.";
  for (std::size_t at = name.find(kPart); at != std::string_view::npos; at = name.find(kPart, at + 1)) {
    if (at != 0 && name[at - 1] != '.') continue;
    const std::string_view rest = name.substr(at + kPart.size());
    std::uint32_t expert = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
    if (error == std::errc{} && (end == rest.data() + rest.size() || *end == '.')) return expert;
  }
  return std::nullopt;
}

TensorFate TensorRules::fate(std::string_view name) const {
  if (skip_activation_scales) {
    for (const std::string_view end : kActivationScales) {
      if (name.ends_with(end)) return TensorFate::kSkip;
    }
  }
  if (skip_draft_layers && starts_with_any(name, kDraftLayers)) return TensorFate::kSkip;
  if (skip_vision && starts_with_any(name, kVision)) return TensorFate::kSkip;
  if (experts) {
    const std::optional<std::uint32_t> expert = expert_of(name);
    if (expert && (*expert < experts->first || *expert >= experts->last)) return TensorFate::kSkip;
  }
  for (const std::string& part : defer_containing) {
    if (name.find(part) != std::string_view::npos) return TensorFate::kDefer;
  }
  return TensorFate::kLoad;
}

TensorSelection select_tensors(const ModelDirectory& directory, const TensorRules& rules) {
  TensorSelection selection;
  for (const TensorRef& tensor : directory.tensors()) {
    const TensorInfo& info = tensor.info();
    const bool is_extra = directory.extra_file() == tensor.file_index();
    switch (is_extra ? TensorFate::kLoad : rules.fate(info.name)) {
      case TensorFate::kLoad:
        selection.load.push_back(tensor);
        selection.load_bytes += info.size_bytes;
        break;
      case TensorFate::kDefer:
        selection.deferred.push_back({info, directory.file(tensor).path()});
        break;
      case TensorFate::kSkip:
        ++selection.skipped;
        selection.skipped_bytes += info.size_bytes;
        break;
    }
  }
  return selection;
}

}  // namespace metrale::weights
