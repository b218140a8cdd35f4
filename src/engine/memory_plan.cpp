// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/engine/decoder.h>
#include <metrale/engine/memory_plan.h>
#include <metrale/kv/paged_cache.h>

#include "engine/checkpoint.h"
#include "engine/weight_plan.h"

namespace metrale::engine {
namespace {

using quant::ElementType;

// Sizes for changing limits, with what does not depend on them computed once.
class Sizer {
 public:
  Sizer(const ModelConfig& config, const MemoryPlan& types, const MemoryPlanRequest& request)
      : arena_model_(arena_model(config, types.compute, request.linear_workspace_bytes)),
        memory_bytes_(request.memory_bytes),
        weight_bytes_(plan_weights(config, types.matrix_type).total_bytes),
        on_cpu_(request.on_cpu),
        constant_bytes_(decoder_constant_bytes(config)) {}

  [[nodiscard]] std::uint64_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] bool on_cpu() const { return on_cpu_; }
  [[nodiscard]] std::uint64_t constant_bytes() const { return constant_bytes_; }
  [[nodiscard]] gpu::ArenaSizes arena(const gpu::EngineLimits& limits) const {
    return gpu::arena_sizes(arena_model_, limits, largest_step(limits).total_bytes);
  }
  [[nodiscard]] std::uint64_t fixed_bytes(const gpu::EngineLimits& limits) const {
    return checked_add(weight_bytes_, arena(limits).total_bytes(), constant_bytes_);
  }
  [[nodiscard]] std::uint64_t left_for_kv(const gpu::EngineLimits& limits) const {
    const std::uint64_t fixed = fixed_bytes(limits);
    return memory_bytes_ - std::min(memory_bytes_, fixed);
  }
  // Whether `sequences` of full length fit beside everything else.
  [[nodiscard]] bool fits(const gpu::EngineLimits& limits, std::uint64_t block_bytes,
                          std::uint64_t sequences) const {
    const std::uint64_t kv = checked_mul(block_bytes, limits.blocks_per_seq(), sequences);
    return checked_add(fixed_bytes(limits), kv) <= memory_bytes_;
  }

 private:
  gpu::ArenaModel arena_model_;
  std::uint64_t memory_bytes_;
  std::uint64_t weight_bytes_;
  bool on_cpu_;
  std::uint64_t constant_bytes_;
};

// The largest value in [least, most) for which `holds`, which only turns from true to false.
template <class Predicate>
std::optional<std::uint32_t> largest(std::uint32_t least, std::uint32_t most, const Predicate& holds) {
  if (least >= most || !holds(least)) return std::nullopt;
  std::uint32_t good = least;
  for (std::uint32_t bad = most; bad - good > 1;) {
    const std::uint32_t middle = good + (bad - good) / 2;
    (holds(middle) ? good : bad) = middle;
  }
  return good;
}

PlanAdvice advise(const Sizer& sizer, const gpu::EngineLimits& asked, std::uint64_t block_bytes) {
  const auto with = [&](std::uint32_t gpu::EngineLimits::* limit, std::uint32_t value) {
    gpu::EngineLimits limits = asked;
    limits.*limit = value;
    return limits;
  };
  PlanAdvice advice;
  advice.max_seq_len = largest(1, asked.max_seq_len, [&](std::uint32_t value) {
    return sizer.fits(with(&gpu::EngineLimits::max_seq_len, value), block_bytes, asked.max_batch_size);
  });
  advice.max_batch_size = largest(1, asked.max_batch_size, [&](std::uint32_t value) {
    return sizer.fits(with(&gpu::EngineLimits::max_batch_size, value), block_bytes, value);
  });
  advice.max_batch_tokens = largest(asked.max_batch_size, asked.max_batch_tokens, [&](std::uint32_t value) {
    return sizer.fits(with(&gpu::EngineLimits::max_batch_tokens, value), block_bytes, asked.max_batch_size);
  });
  advice.longest_sequence = largest(1, asked.max_seq_len + 1, [&](std::uint32_t value) {
    return sizer.fits(with(&gpu::EngineLimits::max_seq_len, value), block_bytes, 1);
  });
  return advice;
}

KvPlan plan_kv(const Sizer& sizer, const ModelConfig& config, const gpu::EngineLimits& limits,
               quant::KvDtype dtype) {
  const kv::KvCacheConfig cache = kv_config(config, limits.block_size, dtype);
  cache.validate();
  const std::uint64_t block_bytes = cache.block_bytes_kv_all_layers();
  KvPlan plan{.dtype = dtype,
              .has_kernels = why_no_kv_format(dtype.k, config.head_dim, sizer.on_cpu()).empty() &&
                             why_no_kv_format(dtype.v, config.head_dim, sizer.on_cpu()).empty(),
              .bytes_per_token = cache.bytes_per_token(),
              .bytes_per_sequence = checked_mul(block_bytes, limits.blocks_per_seq()),
              .advice = std::nullopt};
  plan.bytes = checked_mul(plan.bytes_per_sequence, limits.max_batch_size);
  plan.total_bytes = checked_add(sizer.fixed_bytes(limits), plan.bytes);
  plan.blocks_that_fit = kv::PagedKvCache::compute_num_blocks(cache, sizer.left_for_kv(limits));
  plan.sequences_that_fit = plan.blocks_that_fit / limits.blocks_per_seq();
  plan.fits = sizer.fits(limits, block_bytes, limits.max_batch_size);
  if (!plan.fits) plan.advice = advise(sizer, limits, block_bytes);
  return plan;
}

ElementType resolve_compute(const ModelConfig& config, const weights::ModelDirectory* directory,
                            std::optional<ElementType> asked) {
  if (asked) return *asked;
  if (directory != nullptr) return default_compute(config, *directory);
  const bool is_bf16 = config.dtype.value_or(ElementType::kBf16) == ElementType::kBf16;
  return is_bf16 ? ElementType::kBf16 : ElementType::kF32;
}

ElementType resolve_matrix_type(const ModelConfig& config, const weights::ModelDirectory* directory,
                                ElementType compute) {
  if (compute == ElementType::kBf16) return ElementType::kBf16;
  if (directory == nullptr) return config.dtype.value_or(ElementType::kBf16);
  return exact_matrix_type(plan_weights(config, ElementType::kBf16), *directory);
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const weights::ModelDirectory* directory,
                       const MemoryPlanRequest& request, std::span<const quant::KvDtype> kv_dtypes) {
  MemoryPlan plan;
  plan.limits = request.limits;
  plan.limits.max_seq_len = config.resolve_max_seq_len(plan.limits.max_seq_len);
  plan.limits.validate();
  plan.compute = resolve_compute(config, directory, request.compute);
  plan.matrix_type = resolve_matrix_type(config, directory, plan.compute);
  const Sizer sizer(config, plan, request);
  plan.weight_bytes = sizer.weight_bytes();
  plan.arena = sizer.arena(plan.limits);
  plan.constant_bytes = sizer.constant_bytes();
  plan.fixed_bytes = sizer.fixed_bytes(plan.limits);
  // The decoder's staging: the step, and what comes back from one.
  plan.pinned_bytes = checked_add(plan.arena.step, plan.arena.sampled_tokens, plan.arena.logits);
  for (const quant::KvDtype dtype : kv_dtypes) plan.kv.push_back(plan_kv(sizer, config, plan.limits, dtype));
  return plan;
}

}  // namespace metrale::engine
