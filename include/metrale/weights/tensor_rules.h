// SPDX-License-Identifier: Apache-2.0
// TensorRules: which tensors of a model are loaded, which are left where they lie for somebody who reads them
// later, and which nobody wants. One function decides, for the check of memory before a load and for the
// load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/weights/model_directory.h>

namespace metrale::weights {

enum class TensorFate : std::uint8_t { kLoad, kDefer, kSkip };

// Experts [first, last) of every layer.
struct ExpertRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

struct TensorRules {
  bool skip_activation_scales = false;  // names that end in .input_scale or .activation_scale
  bool skip_draft_layers = false;       // multi-token prediction: mtp.*, model.mtp.*
  bool skip_vision = false;  // model.visual.*, model.vision*, visual.*, vision_tower.*, also under "model."
  // Of tensors that belong to an expert (a part of the name is "experts", the next one a number), those of
  // others are skipped.
  std::optional<ExpertRange> experts = std::nullopt;
  // Names that contain one of these are deferred.
  std::vector<std::string> defer_containing = {};

  [[nodiscard]] TensorFate fate(std::string_view name) const;
};

// The expert that the tensor belongs to; nullopt for a tensor of all.
[[nodiscard]] std::optional<std::uint32_t> expert_of(std::string_view name);

// Where a deferred tensor lies.
struct DeferredTensor {
  TensorInfo info;  // offset_bytes from the start of the file
  std::string path;
};

struct TensorSelection {
  std::vector<TensorRef> load;  // in the order of the directory
  std::vector<DeferredTensor> deferred;
  std::uint64_t load_bytes = 0;
  std::uint64_t skipped = 0;  // tensors
  std::uint64_t skipped_bytes = 0;
};
// Extra weights are loaded whatever the rules say. Refers to `directory`.
[[nodiscard]] TensorSelection select_tensors(const ModelDirectory& directory, const TensorRules& rules);

}  // namespace metrale::weights
