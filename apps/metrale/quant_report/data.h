// SPDX-License-Identifier: Apache-2.0
// Seeded vectors that are like keys, values and queries of models in one respect each. A vector depends on
// the kind, the head_dim, the seed and its place only.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace metrale::quant_report {

enum class Kind : std::uint32_t {
  kGaussian,
  kLaplace,
  kStudentT3,
  kVLike,
  kOutliers,
  kBias,
  kRopePairs,
  kOneChannel,
  kQwenLike,
};

struct KindInfo {
  Kind kind;
  std::string_view name;
  std::string_view what;
};

inline constexpr std::array kKinds{
    KindInfo{Kind::kGaussian, "gaussian", "independent, normal"},
    KindInfo{Kind::kLaplace, "laplace", "independent, Laplace"},
    KindInfo{Kind::kStudentT3, "student_t3", "independent, Student's t with 3 degrees of freedom"},
    KindInfo{Kind::kVLike, "v_like",
             "normal, each channel with a scale of its own, exp(N(0, 0.5)): like the values of a model"},
    KindInfo{Kind::kOutliers, "outliers_x20", "normal, four channels times 20"},
    KindInfo{Kind::kBias, "bias_20", "normal, four channels with 20 added"},
    KindInfo{Kind::kRopePairs, "rope_pairs",
             "normal, and in two RoPE pairs a constant of length 30, turned by the position"},
    KindInfo{Kind::kOneChannel, "one_channel_100", "normal, one channel with 100 added"},
    KindInfo{
        Kind::kQwenLike, "qwen_like",
        "normal of norm 22, and in two RoPE pairs a constant of length 600, turned by the position: like "
        "keys of Qwen2.5"},
};

[[nodiscard]] constexpr const KindInfo& kind_info(Kind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

// Draws that have nothing in common.
enum class Draw : std::uint32_t { kErrors, kKeys, kValues, kQueries };

// [count][head_dim]. Which channels are large depends on kind, head_dim and seed, not on the draw. head_dim
// is a multiple of 16.
[[nodiscard]] std::vector<float> make_vectors(Kind kind, std::uint32_t head_dim, std::size_t count,
                                              std::uint64_t seed, Draw draw);

// [count][head_dim] normal queries for `keys`, [key][head_dim], so large that the scores <q, k> /
// sqrt(head_dim) of a query have a standard deviation of `logit_std` over the keys, in the root mean square
// over the queries. `whitened`: each channel is divided by the root mean square that the keys have in it, as
// if the model had learnt to make little of its large channels.
[[nodiscard]] std::vector<float> make_queries(std::uint32_t head_dim, std::size_t count, std::uint64_t seed,
                                              const std::vector<float>& keys, bool whitened,
                                              double logit_std);

}  // namespace metrale::quant_report
