// SPDX-License-Identifier: Apache-2.0
// What `metrale quant-report` finds out, and the forms of it. docs/quantization.md has the keys of the JSON
// and what the figures mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data.h"
#include "measure.h"
#include "variant.h"

namespace metrale::quant_report {

// Where attention over made vectors is measured. Values are v_like.
struct Scene {
  std::string_view name;
  Kind keys;
  bool whitened;  // queries make little of the channels in which keys are large
};

inline constexpr std::array kScenes{
    Scene{"gaussian", Kind::kGaussian, false},
    Scene{"laplace", Kind::kLaplace, false},
    Scene{"student_t3", Kind::kStudentT3, false},
    Scene{"v_like", Kind::kVLike, false},
    Scene{"outliers_x20", Kind::kOutliers, false},
    Scene{"outliers_x20_white", Kind::kOutliers, true},
    Scene{"bias_20", Kind::kBias, false},
    Scene{"rope_pairs_white", Kind::kRopePairs, true},
    Scene{"one_channel_100", Kind::kOneChannel, false},
    Scene{"qwen_like_white", Kind::kQwenLike, true},
};

inline constexpr double kLogitStd = 2;  // of the scores over made keys

struct SyntheticOptions {
  std::uint32_t head_dim = 128;
  std::uint32_t vectors = 4096;  // for the errors of reconstruction
  std::uint32_t keys = 1024;     // of a scene
  std::uint32_t queries = 128;
  std::uint64_t seed = 0;
};

struct SyntheticErrors {
  SyntheticOptions options;
  std::vector<std::vector<Nmse>> nmse;                 // [kind][format]
  std::vector<std::vector<AttentionError>> attention;  // [scene][variant]
};

struct ModelErrors {
  std::string model{};  // as it was named
  std::string text{};
  std::string device{};
  std::string compute{};
  std::string architecture{};
  std::uint32_t num_layers = 0;
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t tokens = 0;
  std::uint32_t queries = 0;         // positions of each query head
  std::vector<HeadErrors> layers{};  // means over the KV heads
  HeadErrors mean{};                 // over the layers
};

struct Report {
  std::string version;  // of the program
  SyntheticErrors synthetic;
  std::optional<ModelErrors> model;
};

// Measures all kinds and scenes. `progress` is called with how many of how many are done.
[[nodiscard]] SyntheticErrors measure_synthetic(
    const SyntheticOptions& options, const Measurer& measurer,
    const std::function<void(std::size_t done, std::size_t total)>& progress);

// Pretty-printed; every figure. Figures that are not finite are null.
[[nodiscard]] std::string to_json(const Report& report);
// The table of to_text.
[[nodiscard]] std::string summary_json(const Report& report);
[[nodiscard]] std::string to_text(const Report& report);
// One page that needs nothing else.
[[nodiscard]] std::string to_html(const Report& report);

// Whether a file's text is what to_json or to_html made.
[[nodiscard]] bool is_report(std::string_view text);

// How many times smaller the error of turbo4 is than that of nvfp4; none where the head_dim has no turbo4.
struct Ratio {
  double keys = 0;
  double values = 0;
};
[[nodiscard]] std::optional<Ratio> nvfp4_over_turbo4(const std::vector<Nmse>& errors,
                                                     quant::KvFormat nvfp4 = quant::KvFormat::kNvfp4);

}  // namespace metrale::quant_report
