// SPDX-License-Identifier: Apache-2.0
// What the formats of a model's KV cache add to its blocks, as the device has it: one run of floats a layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <metrale/engine/kv_calibration.h>
#include <metrale/engine/model_config.h>

namespace metrale::engine {

// Offsets, in floats, within a layer's run.
struct KvConstantsLayout {
  KvConstantsLayout(std::uint32_t num_kv_heads, std::uint32_t head_dim)
      : heads(num_kv_heads), channels(std::size_t{num_kv_heads} * head_dim) {}

  std::size_t heads;
  std::size_t channels;
  std::size_t k_scales = 0;                          // [num_kv_heads]
  std::size_t v_scales = heads;                      // [num_kv_heads]
  std::size_t k_diagonal = 2 * heads;                // [num_kv_heads][head_dim], as the others
  std::size_t q_diagonal = k_diagonal + channels;    // queries meet rotated keys with it
  std::size_t k_mean = q_diagonal + channels;        //
  std::size_t v_diagonal = k_mean + channels;        //
  std::size_t out_diagonal = v_diagonal + channels;  // takes attention's results out of rotated values' basis
  std::size_t layer_floats = out_diagonal + channels;
};

// [layer][layer_floats]. Without a calibration: scales of 1, signs alone, means of 0; `dtypes` are the
// layers' formats, or none where only the size matters.
[[nodiscard]] std::vector<float> kv_constants(const ModelConfig& config,
                                              std::span<const quant::KvDtype> dtypes,
                                              const KvCalibration* calibration);

// Names what a block's bytes mean beside its tokens: geometry, formats, code books, scales, diagonals, means.
// Caches exchange blocks only where it is equal.
[[nodiscard]] std::uint64_t kv_fingerprint(const ModelConfig& config, std::uint32_t block_size,
                                           std::span<const quant::KvDtype> dtypes,
                                           std::span<const float> constants);

}  // namespace metrale::engine
