// SPDX-License-Identifier: Apache-2.0
// A ragged batch for paged attention: logical keys and values of every sequence, laid into a paged pool as a
// test wants it, and a slow obvious model in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <metrale/kernels/attention.h>
#include <metrale/kernels/step.h>
#include <metrale/quant/kv_codec.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {

struct AttentionShape {
  std::uint32_t num_q_heads = 3;
  std::uint32_t num_kv_heads = 1;
  std::uint32_t head_dim = 64;
  quant::ElementType type = quant::ElementType::kF32;
  quant::KvFormat k_format = quant::KvFormat::kBf16;
  quant::KvFormat v_format = quant::KvFormat::kBf16;
  std::uint32_t window = 0;
};

// One sequence of a step: its last `queries` tokens of `context`.
struct SeqShape {
  std::uint32_t context;
  std::uint32_t queries;
};

// How the same numbers are laid out and computed: none of it may show in the result.
struct AttentionRun {
  std::uint32_t block_size = 16;
  unsigned threads = 2;
  bool workspace = false;
  std::uint32_t block_order_seed = 1;
};

// q[token][q_head][dim] for every token of the context, k and v [token][kv_head][dim] as attention reads them
// from their format; k_given and v_given are what was stored.
struct Sequence {
  std::vector<float> q;
  std::vector<float> k_given;
  std::vector<float> v_given;
  std::vector<float> k{};
  std::vector<float> v{};
};

// Scales of the heads, for the formats that have one.
[[nodiscard]] inline float head_scale(std::size_t kv_head) {
  return 0.01F + 0.003F * static_cast<float>(kv_head);
}

// What a stored vector reads as.
[[nodiscard]] inline std::vector<float> as_read(quant::KvFormat format, quant::KvSide side,
                                                std::uint32_t head_dim, std::size_t kv_head,
                                                std::span<const float> given) {
  std::vector<std::byte> bytes(quant::kv_head_stripe_bytes(format, 8, head_dim));
  quant::KvStripe stripe(format, side, 8, head_dim, bytes);
  const quant::KvHeadParams params{.scale = head_scale(kv_head), .diagonal = {}, .mean = {}};
  std::vector<float> read(head_dim);
  stripe.encode(0, params, given);
  stripe.decode(0, params, read);
  return read;
}

[[nodiscard]] inline std::vector<float> as_read(quant::KvFormat format, quant::KvSide side,
                                                const AttentionShape& shape,
                                                const std::vector<float>& given) {
  std::vector<float> read;
  for (std::size_t at = 0; at < given.size(); at += shape.head_dim) {
    const auto vector = as_read(format, side, shape.head_dim, at / shape.head_dim % shape.num_kv_heads,
                                std::span(given).subspan(at, shape.head_dim));
    read.insert(read.end(), vector.begin(), vector.end());
  }
  return read;
}
[[nodiscard]] inline float as_type(quant::ElementType type, float value) {
  if (type == quant::ElementType::kBf16) return quant::bf16_to_float(quant::float_to_bf16(value));
  return type == quant::ElementType::kF16 ? quant::f16_to_float(quant::float_to_f16(value)) : value;
}

// Only the last `queries` tokens have a query; 0: all of them.
[[nodiscard]] inline Sequence random_sequence(std::mt19937& random, const AttentionShape& shape,
                                              std::uint32_t context, std::uint32_t queries = 0) {
  Sequence seq;
  const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
  const std::size_t without = queries == 0 ? 0 : context - queries;
  seq.q.resize(without * width);
  const auto last = random_normal(random, (context - without) * width);
  seq.q.insert(seq.q.end(), last.begin(), last.end());
  seq.k_given = random_normal(random, std::size_t{context} * shape.num_kv_heads * shape.head_dim);
  seq.v_given = random_normal(random, std::size_t{context} * shape.num_kv_heads * shape.head_dim);
  for (float& x : seq.q) x = as_type(shape.type, x);
  seq.k = as_read(shape.k_format, quant::KvSide::kKey, shape, seq.k_given);
  seq.v = as_read(shape.v_format, quant::KvSide::kValue, shape, seq.v_given);
  return seq;
}

[[nodiscard]] inline std::vector<Sequence> random_sequences(std::uint32_t seed, const AttentionShape& shape,
                                                            const std::vector<SeqShape>& seqs) {
  std::mt19937 random(seed);
  std::vector<Sequence> sequences;
  for (const SeqShape& s : seqs) sequences.push_back(random_sequence(random, shape, s.context));
  return sequences;
}

// One side of the pool. Slots that hold no token are NaN.
class PoolSide {
 public:
  PoolSide(quant::KvFormat format, quant::KvSide side, const AttentionShape& shape, std::uint32_t block_size,
           std::size_t blocks)
      : format_(format),
        side_(side),
        shape_(shape),
        block_size_(block_size),
        bytes_(blocks * quant::kv_side_bytes(format, block_size, shape.num_kv_heads, shape.head_dim),
               std::byte{0xFF}) {}

  void store(std::size_t block, std::uint32_t offset, const float* token) {
    const std::size_t stripe = quant::kv_head_stripe_bytes(format_, block_size_, shape_.head_dim);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      const auto bytes = std::span(bytes_).subspan((block * shape_.num_kv_heads + head) * stripe, stripe);
      quant::KvStripe(format_, side_, block_size_, shape_.head_dim, bytes)
          .encode(offset, {.scale = head_scale(head), .diagonal = {}, .mean = {}},
                  {token + head * shape_.head_dim, shape_.head_dim});
    }
  }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  quant::KvFormat format_;
  quant::KvSide side_;
  AttentionShape shape_;
  std::uint32_t block_size_;
  std::vector<std::byte> bytes_;
};

// One step over sequences[i] with seqs[i], ready to run. `args` may be changed before run().
class AttentionStep {
 public:
  AttentionStep(const AttentionShape& shape, const std::vector<Sequence>& sequences,
                const std::vector<SeqShape>& seqs, const AttentionRun& how)
      : shape_(shape), how_(how), out(shape.type, 0) {
    std::size_t blocks = 0;
    for (const SeqShape& s : seqs) {
      blocks += blocks_of(s);
      args.table_stride = std::max(args.table_stride, blocks_of(s));
      query_starts.push_back(query_starts.back() + s.queries);
      context_lens.push_back(s.context);
    }
    counts = {.num_tokens = query_starts.back(), .num_seqs = static_cast<std::uint32_t>(seqs.size())};
    fill_pools(sequences, seqs, blocks);
    fill_queries(sequences, seqs);
    fill_args();
  }
  AttentionStep(const AttentionStep&) = delete;
  AttentionStep& operator=(const AttentionStep&) = delete;
  ~AttentionStep() = default;

  void run() {
    ThreadPool pool(how_.threads);
    run_kernel(pool, kPagedAttention, args);
  }

  [[nodiscard]] const std::vector<std::byte>& k_pool() const { return k_pool_; }
  [[nodiscard]] const std::vector<std::byte>& v_pool() const { return v_pool_; }
  [[nodiscard]] const Elements& queries() const { return q_; }

 private:
  AttentionShape shape_;
  AttentionRun how_;
  std::vector<std::byte> k_pool_;
  std::vector<std::byte> v_pool_;
  std::vector<float> workspace_;
  Elements q_{quant::ElementType::kF32, 0};
  std::vector<float> scales_;

 public:
  StepCounts counts;
  std::vector<std::uint32_t> query_starts{0};
  std::vector<std::uint32_t> context_lens;
  std::vector<std::uint32_t> tables;
  std::vector<std::uint32_t> table_rows;
  Elements out;  // [token][q_head][dim]
  AttentionArgs args{};

 private:
  [[nodiscard]] std::uint32_t blocks_of(const SeqShape& s) const {
    return (s.context + how_.block_size - 1) / how_.block_size;
  }
  [[nodiscard]] std::size_t q_width() const { return std::size_t{shape_.num_q_heads} * shape_.head_dim; }

  void fill_pools(const std::vector<Sequence>& sequences, const std::vector<SeqShape>& seqs,
                  std::size_t blocks) {
    std::vector<std::uint32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937(how_.block_order_seed));
    PoolSide k_side(shape_.k_format, quant::KvSide::kKey, shape_, how_.block_size, blocks);
    PoolSide v_side(shape_.v_format, quant::KvSide::kValue, shape_, how_.block_size, blocks);
    tables.assign(std::size_t{args.table_stride} * counts.num_seqs, 0xFFFFFFFFU);
    std::size_t next_block = 0;
    const std::size_t width = std::size_t{shape_.num_kv_heads} * shape_.head_dim;
    for (std::uint32_t s = 0; s < counts.num_seqs; ++s) {
      table_rows.push_back(counts.num_seqs - 1 - s);
      for (std::uint32_t t = 0; t < seqs[s].context; ++t) {
        std::uint32_t& entry = tables[table_rows[s] * args.table_stride + t / how_.block_size];
        if (t % how_.block_size == 0) entry = order[next_block++];
        k_side.store(entry, t % how_.block_size, sequences[s].k_given.data() + t * width);
        v_side.store(entry, t % how_.block_size, sequences[s].v_given.data() + t * width);
      }
    }
    k_pool_ = k_side.take();
    v_pool_ = v_side.take();
  }

  void fill_queries(const std::vector<Sequence>& sequences, const std::vector<SeqShape>& seqs) {
    q_ = Elements(shape_.type, counts.num_tokens * q_width());
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const std::size_t first = std::size_t{seqs[s].context - seqs[s].queries} * q_width();
      for (std::size_t i = 0; i < seqs[s].queries * q_width(); ++i) {
        q_.set(query_starts[s] * q_width() + i, sequences[s].q[first + i]);
      }
    }
    out = Elements(shape_.type, counts.num_tokens * q_width());
  }

  void fill_args() {
    if (how_.workspace) {
      const std::uint32_t splits = attention_max_splits(args.table_stride * how_.block_size);
      workspace_.assign(std::size_t{counts.num_tokens} * shape_.num_q_heads * splits * (shape_.head_dim + 2),
                        std::numeric_limits<float>::quiet_NaN());
      args.workspace = address(workspace_);
      args.workspace_rows = counts.num_tokens;
    }
    args.counts = address(&counts);
    args.q = q_.address();
    args.out = out.address();
    args.k_pool = address(k_pool_);
    args.v_pool = address(v_pool_);
    args.block_tables = address(tables);
    args.query_starts = address(query_starts);
    args.context_lens = address(context_lens);
    args.table_rows = address(table_rows);
    args.max_tokens = counts.num_tokens;
    args.max_seqs = counts.num_seqs;
    args.num_q_heads = shape_.num_q_heads;
    args.num_kv_heads = shape_.num_kv_heads;
    args.head_dim = shape_.head_dim;
    args.block_size = how_.block_size;
    args.q_stride = static_cast<std::uint32_t>(q_width());
    args.out_stride = static_cast<std::uint32_t>(q_width());
    args.type = shape_.type;
    args.k_format = shape_.k_format;
    args.v_format = shape_.v_format;
    args.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window = shape_.window;
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) scales_.push_back(head_scale(head));
    args.k_scales = args.v_scales = address(scales_);
  }
};

// The output row of each query token, in step order.
[[nodiscard]] inline Elements run_attention(const AttentionShape& shape,
                                            const std::vector<Sequence>& sequences,
                                            const std::vector<SeqShape>& seqs, const AttentionRun& how = {}) {
  AttentionStep step(shape, sequences, seqs, how);
  step.run();
  return step.out;
}

// The formats whose keys are multiplied as integers.
[[nodiscard]] inline bool rounds_queries(quant::KvFormat k_format) {
  return quant::kv_format_info(k_format).header == quant::KvHeader::kTurboRows ||
         k_format == quant::KvFormat::kTurbo8i;
}

// How many steps the largest weight of a tile has where values are added as integers; 0 where they are not.
[[nodiscard]] inline double weight_steps_of(quant::KvFormat v_format) {
  switch (v_format) {
    case quant::KvFormat::kTurbo4:
    case quant::KvFormat::kTurbo2:
      return 29127;
    case quant::KvFormat::kTurbo3:
      return 10922;
    case quant::KvFormat::kTurbo8i:
      return 32767;
    default:
      return 0;
  }
}

// What a record's step is about proportional to: the root mean square of its values, or the largest.
[[nodiscard]] inline double record_size(quant::KvFormat format, const float* values, std::size_t count) {
  double squares = 0;
  double peak = 0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += double{values[i]} * double{values[i]};
    peak = std::max(peak, std::abs(double{values[i]}));
  }
  return format == quant::KvFormat::kTurbo8i ? peak : std::sqrt(squares / static_cast<double>(count));
}

// How far the rounding of a tile's weights may move each element of the weighted sum of `dim` dimensions.
// Weights times steps err by up to half a step of the largest, independently; this is seven deviations, times
// two because a step is only about proportional to what is known of it here.
[[nodiscard]] inline std::vector<double> weight_errors(quant::KvFormat v_format, std::size_t dim,
                                                       const std::vector<const float*>& values,
                                                       const std::vector<double>& weights,
                                                       std::size_t first_position) {
  std::vector<double> squares(dim);
  const double steps = weight_steps_of(v_format);
  if (steps == 0) return squares;
  for (std::size_t first = 0; first < dim; first += quant::kKvRecordDims) {
    const std::size_t end = std::min<std::size_t>(dim, first + quant::kKvRecordDims);
    for (std::size_t begin = 0; begin < values.size();) {
      const std::size_t next =
          std::min(values.size(), (first_position + begin) / 64 * 64 + 64 - first_position);
      double largest = 0;
      for (std::size_t j = begin; j < next; ++j) {
        largest = std::max(largest, weights[j] * record_size(v_format, values[j] + first, end - first));
      }
      for (std::size_t j = begin; j < next; ++j) {
        const double size = record_size(v_format, values[j] + first, end - first);
        if (size == 0) continue;
        for (std::size_t d = first; d < end; ++d) {
          const double error = 2 * 2 / steps * largest * std::abs(double{values[j][d]}) / size;
          squares[d] += error * error;
        }
      }
      begin = next;
    }
  }
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

// The output of one query token in double precision, and how large an FP32 result may differ: each element's
// bound is in `tolerance`. `spread` is sqrt(sum (weight * (value - out))^2): what independent errors of the
// weights, relative to them, are multiplied by.
struct ModelRow {
  std::vector<double> out;
  std::vector<double> tolerance;
  std::vector<double> spread;
};

[[nodiscard]] inline ModelRow model_attention(const AttentionShape& shape, const Sequence& seq,
                                              std::uint32_t token) {
  const std::size_t dim = shape.head_dim;
  const std::size_t group = shape.num_q_heads / shape.num_kv_heads;
  const double scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const std::size_t begin = shape.window != 0 && token >= shape.window ? token - shape.window + 1 : 0;
  ModelRow row;
  for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
    const float* q = seq.q.data() + (std::size_t{token} * shape.num_q_heads + head) * dim;
    const auto at = [&](const std::vector<float>& side, std::size_t t) {
      return side.data() + (t * shape.num_kv_heads + head / group) * dim;
    };
    std::vector<double> scores;
    double score_error = 0;
    for (std::size_t t = begin; t <= token; ++t) {
      double dot = 0;
      double magnitude = 0;
      double squares = 0;  // of the key
      double peak = 0;     // of the query
      for (std::size_t d = 0; d < dim; ++d) {
        const double term = double{q[d]} * double{at(seq.k, t)[d]};
        dot += term;
        magnitude += std::abs(term);
        squares += double{at(seq.k, t)[d]} * double{at(seq.k, t)[d]};
        peak = std::max(peak, std::abs(double{q[d]}));
      }
      scores.push_back(scale * dot);
      // A chain of n roundings errs by about sqrt(n) half units of the magnitudes summed.
      double error = scale * magnitude * 4 * std::sqrt(static_cast<double>(dim)) * 0x1p-24;
      // A query in 16 bits errs by up to half a step an element, independently: this is seven deviations.
      if (rounds_queries(shape.k_format)) error += scale * 2 * peak / 32512 * std::sqrt(squares);
      score_error = std::max(score_error, error);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    std::vector<const float*> values;
    for (std::size_t t = begin; t <= token; ++t) values.push_back(at(seq.v, t));
    const std::vector<double> weight_error = weight_errors(shape.v_format, dim, values, scores, begin);
    for (std::size_t d = 0; d < dim; ++d) {
      double value = 0;
      double magnitude = 0;
      for (std::size_t t = begin; t <= token; ++t) {
        value += scores[t - begin] / sum * at(seq.v, t)[d];
        magnitude += scores[t - begin] / sum * std::abs(at(seq.v, t)[d]);
      }
      row.out.push_back(value);
      row.tolerance.push_back(magnitude * (2 * score_error + 64 * 0x1p-24) + weight_error[d] / sum +
                              rounding_bound(shape.type, value));
      double squares = 0;
      for (std::size_t t = begin; t <= token; ++t) {
        const double moved = scores[t - begin] / sum * (at(seq.v, t)[d] - value);
        squares += moved * moved;
      }
      row.spread.push_back(std::sqrt(squares));
    }
  }
  return row;
}

}  // namespace metrale::kernels
