// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding as checkpoints ask for it: a base, and one of the scalings that stretch it over
// longer contexts (as Hugging Face transformers defines them).
#pragma once

#include <cstdint>
#include <vector>

namespace metrale::engine {

enum class RopeScalingKind : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  // Positions that the unscaled model was trained for. Dynamic scaling begins there.
  std::uint32_t original_max_position = 0;
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;  // llama3
  double beta_fast = 32;        // yarn: rotations over the original range above which a pair is kept
  double beta_slow = 1;         // yarn: rotations below which a pair is stretched by the whole factor
  bool truncate = true;         // yarn: the bounds of the blend are rounded to whole pairs
  double attention_factor = 1;  // yarn: what cosines and sines are multiplied by
};

struct RopeConfig {
  double theta = 10'000;
  RopeScaling scaling;
};

// float[head_dim / 2]: the rotation per position of each pair, scaling applied. Dynamic scaling leaves them
// as they are within the model's own range; the rope_table kernel computes those beyond it.
[[nodiscard]] std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::uint32_t head_dim);

}  // namespace metrale::engine
