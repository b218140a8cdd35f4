// SPDX-License-Identifier: Apache-2.0
// A step of paged attention in a device's memory, and what its result is compared with.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/gpu/stream.h>

#include "cuda/support/device_run.h"
#include "kernels/support/attention_case.h"

namespace metrale::kernels {

// The arguments of `step` as it is now, with its arrays in the memory of `memory` and a result of NaN.
[[nodiscard]] inline AttentionArgs put_step(DeviceRun& memory, const AttentionStep& step) {
  AttentionArgs args = step.args;
  args.counts = memory.put(std::span(&step.counts, 1));
  args.query_starts = memory.put(step.query_starts);
  args.context_lens = memory.put(step.context_lens);
  args.table_rows = memory.put(step.table_rows);
  args.block_tables = memory.put(step.tables);
  args.q = memory.put(step.queries());
  args.k_pool = memory.put(step.k_pool());
  args.v_pool = memory.put(step.v_pool());
  args.out = memory.room(step.out.bytes().size());
  if (args.workspace != 0) {
    const std::size_t splits = attention_max_splits(args.table_stride * args.block_size);
    args.workspace = memory.room(std::size_t{args.workspace_rows} * args.num_q_heads * splits *
                                 (args.head_dim + 2U) * sizeof(float));
  }
  return args;
}

// A step of its own on a device. `args` may be changed before a run.
class DeviceStep {
 public:
  DeviceStep(gpu::GpuBackend& gpu, const AttentionStep& step)
      : memory(gpu),
        args(put_step(memory, step)),
        gpu_(gpu),
        type_(step.args.type),
        elements_(step.out.size()) {}

  // Blocking.
  Elements run() {
    memory.run(kPagedAttention, args);
    return out();
  }
  [[nodiscard]] Elements out() { return memory.get(type_, args.out, elements_); }

  // The lengths of another step of the same numbers of tokens and sequences at most, and of the same tables.
  void set_lengths(const StepCounts& counts, const std::vector<std::uint32_t>& query_starts,
                   const std::vector<std::uint32_t>& context_lens) {
    write(args.counts, std::as_bytes(std::span(&counts, 1)));
    write(args.query_starts, std::as_bytes(std::span(query_starts)));
    write(args.context_lens, std::as_bytes(std::span(context_lens)));
  }
  void set_queries(const Elements& queries) { write(args.q, queries.bytes()); }

  DeviceRun memory;
  AttentionArgs args;

 private:
  void write(std::uint64_t to, std::span<const std::byte> bytes) {
    gpu_.copy_h2d_blocking(DevicePtr(to), bytes);
  }

  gpu::GpuBackend& gpu_;
  quant::ElementType type_;
  std::size_t elements_;
};

[[nodiscard]] inline Elements device_attention(const AttentionShape& shape,
                                               const std::vector<Sequence>& sequences,
                                               const std::vector<SeqShape>& seqs,
                                               const AttentionRun& how = {}) {
  const AttentionStep step(shape, sequences, seqs, how);
  return DeviceStep(cuda_backend(), step).run();
}

// Are the weights two BF16 numbers, as tensor cores take them?
[[nodiscard]] inline bool has_bf16_weights(const AttentionShape& shape) {
  return shape.type == quant::ElementType::kBf16 && shape.k_format == quant::KvFormat::kBf16 &&
         shape.v_format == quant::KvFormat::kBf16 && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

// Such a weight errs by at most 2^-17 of itself. Four times 2^-16 of the spread bounds what that does to a
// result of any number of keys.
[[nodiscard]] inline double device_tolerance(const AttentionShape& shape, const ModelRow& model,
                                             std::size_t element) {
  const double weights = has_bf16_weights(shape) ? 4 * 0x1p-16 * model.spread[element] : 0.0;
  return model.tolerance[element] + 1.01 * weights;
}

inline std::string describe(const AttentionShape& shape, const AttentionRun& how) {
  return "head_dim " + std::to_string(shape.head_dim) + " heads " + std::to_string(shape.num_q_heads) + "/" +
         std::to_string(shape.num_kv_heads) + " window " + std::to_string(shape.window) + " type " +
         std::string(quant::to_string(shape.type)) + " formats " +
         std::string(quant::to_string(shape.k_format)) + "/" + std::string(quant::to_string(shape.v_format)) +
         " block_size " + std::to_string(how.block_size) + (how.workspace ? " with workspace" : "");
}

inline void expect_device_model(const AttentionShape& shape, const std::vector<SeqShape>& seqs,
                                const AttentionRun& how, std::uint32_t seed) {
  const auto sequences = random_sequences(seed, shape, seqs);
  const auto out = device_attention(shape, sequences, seqs, how).floats();
  const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
  std::size_t row = 0;
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    for (std::uint32_t i = 0; i < seqs[s].queries; ++i, ++row) {
      const std::uint32_t token = seqs[s].context - seqs[s].queries + i;
      const ModelRow model = model_attention(shape, sequences[s], token);
      for (std::size_t d = 0; d < width; ++d) {
        ASSERT_NEAR(out[row * width + d], model.out[d], device_tolerance(shape, model, d))
            << "seed " << seed << " sequence " << s << " token " << token << " element " << d << " "
            << describe(shape, how);
      }
    }
  }
}

// The bytes of `count` query rows.
[[nodiscard]] inline std::vector<std::byte> bytes_of_rows(const AttentionShape& shape, const Elements& out,
                                                          std::size_t first, std::size_t count) {
  const std::size_t row_bytes =
      std::size_t{shape.num_q_heads} * shape.head_dim * quant::element_bytes(shape.type);
  const auto begin = out.bytes().begin() + static_cast<std::ptrdiff_t>(first * row_bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * row_bytes)};
}

}  // namespace metrale::kernels
