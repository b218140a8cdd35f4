// SPDX-License-Identifier: Apache-2.0
// A ragged batch for latent attention. The latents and the rope keys are each laid out as the keys of an
// attention step with one KV head, over the same block tables; and a slow obvious model in double precision.
#pragma once

#include <gtest/gtest.h>

#include <metrale/kernels/mla_attention.h>

#include "kernels/support/attention_case.h"

namespace metrale::kernels {

struct MlaShape {
  std::uint32_t num_heads = 4;
  std::uint32_t latent_dim = 64;
  std::uint32_t rope_dim = 16;
  quant::ElementType type = quant::ElementType::kF32;
  quant::KvFormat latent_format = quant::KvFormat::kBf16;
  quant::KvFormat rope_format = quant::KvFormat::kBf16;
  std::uint32_t window = 0;
};

// One of the two vectors of a token, as the keys of a step. Its values are not looked at.
[[nodiscard]] inline AttentionShape part_of(const MlaShape& shape, std::uint32_t dim,
                                            quant::KvFormat format) {
  return {.num_q_heads = shape.num_heads,
          .num_kv_heads = 1,
          .head_dim = dim,
          .type = shape.type,
          .k_format = format,
          .v_format = quant::KvFormat::kBf16,
          .window = shape.window};
}
[[nodiscard]] inline AttentionShape latent_part(const MlaShape& shape) {
  return part_of(shape, shape.latent_dim, shape.latent_format);
}
[[nodiscard]] inline AttentionShape rope_part(const MlaShape& shape) {
  return part_of(shape, shape.rope_dim, shape.rope_format);
}

struct MlaSequences {
  std::vector<Sequence> latent;
  std::vector<Sequence> rope;
};

[[nodiscard]] inline MlaSequences random_mla(std::uint32_t seed, const MlaShape& shape,
                                             const std::vector<SeqShape>& seqs) {
  return {random_sequences(seed, latent_part(shape), seqs),
          random_sequences(seed + 50000, rope_part(shape), seqs)};
}

[[nodiscard]] inline float mla_scale(const MlaShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.latent_dim + shape.rope_dim));
}

// One step over sequences[i] with seqs[i], ready to run. `args` may be changed before run().
class MlaStep {
 public:
  MlaStep(const MlaShape& shape, const MlaSequences& sequences, const std::vector<SeqShape>& seqs,
          const AttentionRun& how)
      : latent(latent_part(shape), sequences.latent, seqs, how),
        rope(rope_part(shape), sequences.rope, seqs, how),
        threads_(how.threads) {
    const AttentionArgs& a = latent.args;
    args = {.counts = a.counts,
            .q_latent = a.q,
            .q_rope = rope.args.q,
            .out = a.out,
            .latent_pool = a.k_pool,
            .rope_pool = rope.args.k_pool,
            .block_tables = a.block_tables,
            .query_starts = a.query_starts,
            .context_lens = a.context_lens,
            .table_rows = a.table_rows,
            .workspace = a.workspace,
            .max_tokens = a.max_tokens,
            .max_seqs = a.max_seqs,
            .table_stride = a.table_stride,
            .workspace_rows = a.workspace_rows,
            .num_heads = shape.num_heads,
            .latent_dim = shape.latent_dim,
            .rope_dim = shape.rope_dim,
            .block_size = a.block_size,
            .q_latent_stride = a.q_stride,
            .q_rope_stride = rope.args.q_stride,
            .out_stride = a.out_stride,
            .type = shape.type,
            .latent_format = shape.latent_format,
            .rope_format = shape.rope_format,
            .scale = mla_scale(shape),
            .window = shape.window,
            .latent_scales = a.k_scales,
            .rope_scales = rope.args.k_scales};
  }

  void run() {
    ThreadPool pool(threads_);
    run_kernel(pool, kMlaAttention, args);
  }
  [[nodiscard]] const Elements& out() const { return latent.out; }  // [token][head][latent_dim]

  AttentionStep latent;
  AttentionStep rope;
  MlaAttentionArgs args{};

 private:
  unsigned threads_;
};

// The output row of each query token, in step order.
[[nodiscard]] inline Elements run_mla(const MlaShape& shape, const MlaSequences& sequences,
                                      const std::vector<SeqShape>& seqs, const AttentionRun& how = {}) {
  MlaStep step(shape, sequences, seqs, how);
  step.run();
  return step.out();
}

// sum of a[i] * b[i], and of the products' magnitudes.
struct Dot {
  double value = 0;
  double magnitude = 0;

  void add(const float* a, const float* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const double term = double{a[i]} * double{b[i]};
      value += term;
      magnitude += std::abs(term);
    }
  }
};

// As model_attention: the output of sequence `s` at one query token.
[[nodiscard]] inline ModelRow model_mla(const MlaShape& shape, const MlaSequences& sequences, std::size_t s,
                                        std::uint32_t token) {
  const Sequence& latent = sequences.latent[s];
  const Sequence& rope = sequences.rope[s];
  const std::size_t dims = shape.latent_dim;
  const double scale = mla_scale(shape);
  const std::size_t begin = shape.window != 0 && token >= shape.window ? token - shape.window + 1 : 0;
  const auto vector = [](const std::vector<float>& from, std::size_t index, std::size_t dim) {
    return from.data() + index * dim;
  };
  ModelRow row;
  for (std::size_t head = 0; head < shape.num_heads; ++head) {
    const std::size_t query = std::size_t{token} * shape.num_heads + head;
    std::vector<double> weights;
    double score_error = 0;
    for (std::size_t t = begin; t <= token; ++t) {
      Dot dot;
      dot.add(vector(latent.q, query, dims), vector(latent.k, t, dims), dims);
      dot.add(vector(rope.q, query, shape.rope_dim), vector(rope.k, t, shape.rope_dim), shape.rope_dim);
      weights.push_back(scale * dot.value);
      // A chain of n roundings errs by about sqrt(n) half units of the magnitudes summed.
      const double terms = std::sqrt(static_cast<double>(shape.latent_dim + shape.rope_dim));
      score_error = std::max(score_error, scale * dot.magnitude * 4 * terms * 0x1p-24);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (std::size_t d = 0; d < dims; ++d) {
      double value = 0;
      double magnitude = 0;
      for (std::size_t t = begin; t <= token; ++t) {
        const double term = weights[t - begin] / sum * double{latent.k[t * dims + d]};
        value += term;
        magnitude += std::abs(term);
      }
      row.out.push_back(value);
      row.tolerance.push_back(magnitude * (2 * score_error + 64 * 0x1p-24) +
                              rounding_bound(shape.type, value));
    }
  }
  return row;
}

// Every row of the step against the model.
inline void expect_mla_model(const MlaShape& shape, const MlaSequences& sequences,
                             const std::vector<SeqShape>& seqs, const Elements& out) {
  const std::size_t width = std::size_t{shape.num_heads} * shape.latent_dim;
  std::size_t row = 0;
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    for (std::uint32_t i = 0; i < seqs[s].queries; ++i, ++row) {
      const std::uint32_t token = seqs[s].context - seqs[s].queries + i;
      const ModelRow model = model_mla(shape, sequences, s, token);
      for (std::size_t d = 0; d < width; ++d) {
        ASSERT_NEAR(out.get(row * width + d), model.out[d], model.tolerance[d])
            << "sequence " << s << " token " << token << " element " << d;
      }
    }
  }
}

}  // namespace metrale::kernels
