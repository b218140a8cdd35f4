// SPDX-License-Identifier: Apache-2.0
// Calibration of a model's KV cache: runs a text, looks at queries, keys and values, and says what the
// cache's formats should know; and tries which formats a budget buys the least error with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <metrale/base/ids.h>
#include <metrale/engine/decoder.h>
#include <metrale/engine/kv_calibration.h>

namespace metrale::engine {

// What a text is run by. All of it outlives what is made from it.
struct KvModel {
  gpu::GpuBackend& gpu;
  const ModelConfig& config;
  const ModelWeights& weights;
  quant::ElementType compute = quant::ElementType::kBf16;
};

// A decoder and a cache of its own over a model's weights, for texts that are run one at a time. Blocking;
// one caller.
class TextRunner {
 public:
  // Texts of at most `max_tokens`. Throws what Decoder and PagedKvCache throw.
  TextRunner(const KvModel& model, std::uint32_t max_tokens, const std::vector<quant::KvDtype>& layers,
             const KvCalibration* calibration);
  ~TextRunner();
  TextRunner(const TextRunner&) = delete;
  TextRunner& operator=(const TextRunner&) = delete;

  // Called with position and logits, in order; a false return stops with Cancelled.
  using TakeLogits = std::function<bool(std::size_t position, std::span<const float> logits)>;
  // Runs all tokens. Without `take` no logits are computed.
  void run(std::span<const std::int32_t> tokens, const TakeLogits& take);
  [[nodiscard]] Decoder& decoder() { return decoder_; }

 private:
  gpu::EngineLimits limits_;
  kv::PagedKvCache cache_;
  Decoder decoder_;
  std::vector<BlockId> blocks_;
};

// A false return stops with Cancelled; called with the work done and in all.
using KvProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

struct KvCalibrationRequest {
  std::span<const std::int32_t> tokens;  // at least one
  std::uint32_t window = 2048;           // tokens that are run together
  bool equaliser = true;                 // of keys and values, and the mean of keys
  KvProgress progress;
};

// Blocking. Needs device memory for a window's cache and activations. The result depends on the tokens, the
// model and the device's arithmetic alone. Throws InvalidArgument without tokens, DeviceError where a key or
// a value is not finite.
[[nodiscard]] KvCalibration calibrate_kv(const KvModel& model, const KvCalibrationRequest& request);

struct KvBudgetRequest {
  std::span<const std::int32_t> tokens;  // that the divergence is measured on, run together; at least two
  double mean_bits = 4.0;                // of an element, headers included
  std::vector<quant::KvFormat> formats;  // to choose from; empty: turbo2, turbo3, turbo4 and turbo8i
  KvProgress progress;
};

// What was measured, and what was chosen by it.
struct KvBudget {
  // [layer][side][format of the request]: mean KL divergence, in nats, of the model with this one side in
  // this format, all others in BF16, from the model with a BF16 cache.
  std::vector<std::vector<std::vector<double>>> divergences;
  std::vector<quant::KvFormat> formats;
  double mean_bits = 0;   // of the choice
  double divergence = 0;  // of the choice, measured
};

// Throws InvalidArgument for a budget that choose_kv_formats would refuse.
void check_kv_budget(const gpu::GpuBackend& gpu, const ModelConfig& config, const KvBudgetRequest& request);

// Blocking. Gives every side of every layer of `calibration` a format, so that the sum of what each costs by
// itself is small within the budget, and marks as high-precision the layers that cost the most. Throws
// InvalidArgument where no format fits into the budget, or what fits leaves no finite logits.
[[nodiscard]] KvBudget choose_kv_formats(const KvModel& model, const KvBudgetRequest& request,
                                         KvCalibration& calibration);

}  // namespace metrale::engine
