// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: what an engine will allocate on a device for given limits, and what fits, before there is a
// device. It is computed by the functions that the engine itself sizes its allocations with, so an engine
// takes exactly these bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <metrale/engine/model_config.h>
#include <metrale/gpu/arena.h>
#include <metrale/gpu/limits.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_dtype.h>
#include <metrale/weights/model_directory.h>

namespace metrale::engine {

struct MemoryPlanRequest {
  std::uint64_t memory_bytes = 0;             // what the device has to give
  gpu::EngineLimits limits;                   // max_seq_len 0: the model's max_position_embeddings
  std::optional<quant::ElementType> compute;  // none: as an engine chooses
  std::uint64_t linear_workspace_bytes = 0;   // as the device's capabilities say
  bool on_cpu = true;                         // whose kernels serve more KV formats
};

// Single changes that make room; absent where no value would. Each leaves the other limits as asked.
struct PlanAdvice {
  std::optional<std::uint32_t> max_seq_len;       // longest with which max_batch_size sequences fit
  std::optional<std::uint32_t> max_batch_size;    // most sequences that fit at full length
  std::optional<std::uint32_t> max_batch_tokens;  // most with which everything asked for fits
  std::optional<std::uint32_t> longest_sequence;  // largest max_seq_len with which one sequence fits
};

// The KV cache in one format.
struct KvPlan {
  quant::KvDtype dtype;
  bool has_kernels = false;              // the engine takes it on this device
  std::uint64_t bytes_per_token = 0;     // K and V, all layers
  std::uint64_t bytes_per_sequence = 0;  // of max_seq_len tokens, in whole blocks
  std::uint64_t bytes = 0;               // of max_batch_size such sequences
  std::uint64_t total_bytes = 0;         // with everything else
  std::uint64_t blocks_that_fit = 0;     // in what the rest leaves; for --kv-blocks
  std::uint64_t sequences_that_fit = 0;  // at full length, also beyond max_batch_size
  bool fits = false;                     // all max_batch_size of them
  std::optional<PlanAdvice> advice;      // where they do not
};

struct MemoryPlan {
  gpu::EngineLimits limits;  // as resolved
  quant::ElementType compute = quant::ElementType::kBf16;
  quant::ElementType matrix_type = quant::ElementType::kBf16;  // of the weights in device memory
  std::uint64_t weight_bytes = 0;
  gpu::ArenaSizes arena;
  std::uint64_t constant_bytes = 0;  // tables beside the arena: rotary frequencies, signs
  std::uint64_t fixed_bytes = 0;     // all of the above
  std::uint64_t pinned_bytes = 0;    // host memory for staging, not part of the device's
  std::vector<KvPlan> kv;            // in the order of the request
};

// Reads the directory's headers, no data. `directory` may be null where the tensors are not there: what
// config.json declares stands for their types. Throws InvalidArgument for limits that an engine would refuse.
[[nodiscard]] MemoryPlan plan_memory(const ModelConfig& config, const weights::ModelDirectory* directory,
                                     const MemoryPlanRequest& request,
                                     std::span<const quant::KvDtype> kv_dtypes);

}  // namespace metrale::engine
