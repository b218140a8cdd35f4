// SPDX-License-Identifier: Apache-2.0
// What a KV format costs in accuracy: how far vectors that come back from it are from those that went in, and
// how far attention over them is from attention over the originals. By KvStripe and in double precision: for
// tools, not for speed. docs/quantization.md says what the figures mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <metrale/quant/kv_codec.h>

namespace metrale::quant {

// What was lost of some vectors.
struct SquaredError {
  double error = 0;  // sum of |x - x'|^2
  double power = 0;  // sum of |x|^2

  // The normalised mean square error; 0 where nothing was lost.
  [[nodiscard]] double nmse() const { return error == 0 ? 0 : error / power; }
  SquaredError& operator+=(const SquaredError& other) {
    error += other.error;
    power += other.power;
    return *this;
  }
};

// Throws InvalidArgument where the two have different sizes.
[[nodiscard]] SquaredError squared_error(std::span<const float> x, std::span<const float> back);

// The scale of fp8 and nvfp4 that leaves twice the room that x needs: 2 * largest magnitude / largest number
// of the format. 1 of formats without a scale, and where x is zeros.
[[nodiscard]] float frozen_scale(KvFormat format, std::span<const float> x);

// x and back: [count][head_dim]. What comes back, in the basis of x also where the format is rotated. Throws
// InvalidArgument where the format does not take the head_dim, or the sizes are not whole vectors or differ.
void round_trip(KvFormat format, KvSide side, std::uint32_t head_dim, const KvHeadParams& params,
                std::span<const float> x, std::span<float> back);

struct KeyRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;  // one past the last
};

// The attention of one KV head: softmax over the visible keys of score = scale * <q, k>, then the sum of
// values with these weights.
struct AttentionInput {
  std::uint32_t head_dim = 0;
  double scale = 1;
  std::span<const float> queries;     // [query][head_dim]
  std::span<const float> keys;        // [key][head_dim]
  std::span<const float> values;      // [key][head_dim]
  std::span<const KeyRange> visible;  // [query], none of them empty; empty: all keys, to every query
};

// Attention over the originals, which attention over what comes back from a format is compared with.
class AttentionReference {
 public:
  // What `input` points to outlives this. Throws InvalidArgument for sizes that do not belong together.
  explicit AttentionReference(const AttentionInput& input);

  struct Keys {
    double logit_rmse = 0;        // root of the mean of the squared differences, over all scores
    double kl = 0;                // of the weights from the exact ones, mean over the queries, in nats
    std::vector<double> weights;  // [query][key], 0 for those that are not visible
  };
  // With other keys: [key][head_dim].
  [[nodiscard]] Keys with_keys(std::span<const float> keys) const;
  // The output of these weights and of other values, [key][head_dim], against the exact output; nmse() is the
  // relative error.
  [[nodiscard]] SquaredError output_error(std::span<const double> weights,
                                          std::span<const float> values) const;

  [[nodiscard]] std::span<const double> weights() const { return weights_; }

 private:
  // The scores of a query against `keys`, and the logarithm of the sum of their exponentials.
  double score(std::size_t query, std::span<const float> keys, std::span<double> scores) const;
  void output(std::size_t query, std::span<const double> weights, std::span<const float> values,
              std::span<double> sum) const;

  AttentionInput input_;
  std::size_t num_queries_ = 0;
  std::size_t num_keys_ = 0;
  std::vector<KeyRange> visible_;   // [query]
  std::vector<double> scores_;      // [query][key]
  std::vector<double> log_totals_;  // [query]
  std::vector<double> weights_;     // [query][key]
  std::vector<double> outputs_;     // [query][head_dim]
};

}  // namespace metrale::quant
