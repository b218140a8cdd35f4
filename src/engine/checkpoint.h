// SPDX-License-Identifier: Apache-2.0
// Checkpoint: the tensors that a WeightPlan asks for, found in a model directory under whatever prefix it has
// them, checked all at once, and where and in which element type each goes. FP8 matrices are multiplied by
// their scales on the way: docs/models.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/model_config.h>
#include <metrale/quant/element_type.h>
#include <metrale/weights/device_sink.h>
#include <metrale/weights/model_directory.h>

#include "engine/weight_plan.h"

namespace metrale::engine {

// How a directory spells "model." and "lm_head.".
struct TensorNaming {
  std::string_view model = "model.";
  std::string_view head = "lm_head.";

  [[nodiscard]] std::string spell(std::string_view name) const;
};

// By the name that the embedding has; the plain one where there is none.
[[nodiscard]] TensorNaming find_naming(const weights::ModelDirectory& directory);

// The type that holds every matrix exactly: the one that all have, else FP32 (FP8 times a scale is that).
[[nodiscard]] quant::ElementType exact_matrix_type(const WeightPlan& plan,
                                                   const weights::ModelDirectory& directory);

class Checkpoint {
 public:
  // Keeps references to all of them. Throws FormatError that lists every tensor that is missing, has another
  // shape or a type that is not read. Tensors that nothing needs are named in one warning.
  Checkpoint(const ModelConfig& config, const weights::ModelDirectory& directory, const WeightPlan& plan);

  // The plan's tensor, whole.
  [[nodiscard]] weights::TensorLoad load(std::size_t tensor) const;
  // Where it goes, as `planned` (of any plan of the same model) has it in the memory at `base`. Refers to
  // this.
  [[nodiscard]] weights::TensorTarget target(std::size_t tensor, const PlannedTensor& planned,
                                             DevicePtr base) const;

 private:
  struct Source {
    const weights::TensorRef* data = nullptr;
    std::vector<float> scales;  // of FP8: [tiles down][tiles across]
    std::uint64_t tile_rows = 1;
    std::uint64_t tile_columns = 1;
    float added = 0;
  };

  void find_all(const ModelConfig& config, std::vector<std::string>& problems);
  [[nodiscard]] std::string find_scales(const ModelConfig& config, const std::string& name, Source& source);
  void warn_unused() const;
  static void widen(const Source& source, std::uint64_t first, std::span<const std::byte> in,
                    std::span<float> out);
  static void convert(const Source& source, quant::ElementType to, std::uint64_t first,
                      std::span<const std::byte> in, std::span<std::byte> out);

  const weights::ModelDirectory* directory_;
  const WeightPlan* plan_;
  TensorNaming naming_;
  std::vector<Source> sources_;                // one for each tensor of the plan
  std::vector<std::string_view> scale_names_;  // of the directory
};

}  // namespace metrale::engine
