// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/quant/convert_elements.h>
#include <metrale/quant/kv_equaliser.h>

namespace metrale::engine {
namespace {

using quant::ElementType;

constexpr std::uint32_t kRunnerBlockSize = 16;
constexpr std::uint32_t kRunnerStepTokens = 512;
// Of the largest number that was seen: what comes later may be larger.
constexpr float kHeadroom = 2.0F;

gpu::EngineLimits runner_limits(std::uint32_t max_tokens) {
  return {.max_seq_len = max_tokens,
          .max_batch_size = 1,
          .max_batch_tokens = std::min(max_tokens, kRunnerStepTokens),
          .block_size = kRunnerBlockSize};
}

quant::KvDtype plain_dtype(ElementType compute) {
  const auto format = compute == ElementType::kF32 ? quant::KvFormat::kFp32 : quant::KvFormat::kBf16;
  return {format, format};
}

// Sums over tokens, for each channel of each KV head of a layer.
struct LayerSums {
  std::vector<double> k, k_squares, q_squares, v_squares;
  std::vector<float> k_peak, v_peak;  // of each KV head
};

class KvSums final : public AttentionProbe {
 public:
  explicit KvSums(const ModelConfig& config) : config_(&config), layers_(config.num_layers) {
    const std::size_t channels = std::size_t{config.num_kv_heads} * config.head_dim;
    for (LayerSums& layer : layers_) {
      for (auto* sums : {&layer.k, &layer.k_squares, &layer.q_squares, &layer.v_squares})
        sums->resize(channels);
      for (auto* peaks : {&layer.k_peak, &layer.v_peak}) peaks->resize(config.num_kv_heads);
    }
  }

  [[nodiscard]] const LayerSums& layer(std::size_t i) const { return layers_[i]; }

 private:
  void do_take(std::uint32_t layer, std::uint32_t tokens, std::span<const float> qkv) override {
    const std::size_t dims = config_->head_dim;
    const std::size_t q_heads = config_->num_q_heads;
    const std::size_t kv_heads = config_->num_kv_heads;
    const std::size_t width = (q_heads + 2 * kv_heads) * dims;
    LayerSums& sums = layers_[layer];
    for (std::size_t token = 0; token < tokens; ++token) {
      const float* row = qkv.data() + token * width;
      for (std::size_t head = 0; head < q_heads; ++head) {
        const std::size_t at = head / (q_heads / kv_heads) * dims;
        for (std::size_t i = 0; i < dims; ++i) add_square(row[head * dims + i], sums.q_squares[at + i]);
      }
      for (std::size_t c = 0; c < kv_heads * dims; ++c) {
        const float k = row[q_heads * dims + c];
        const float v = row[(q_heads + kv_heads) * dims + c];
        if (!std::isfinite(k) || !std::isfinite(v)) {
          throw DeviceError("calibration", 0,
                            fmt::format("layer {} has keys or values that are not finite; compute in fp32 "
                                        "(--dtype), or check the weights",
                                        layer));
        }
        sums.k[c] += k;
        add_square(k, sums.k_squares[c]);
        add_square(v, sums.v_squares[c]);
        sums.k_peak[c / dims] = std::max(sums.k_peak[c / dims], std::abs(k));
        sums.v_peak[c / dims] = std::max(sums.v_peak[c / dims], std::abs(v));
      }
    }
  }

  static void add_square(float value, double& sum) { sum += double{value} * value; }

  const ModelConfig* config_;
  std::vector<LayerSums> layers_;
};

// Of every head.
std::vector<float> divisors(const std::vector<double>& stored, const std::vector<double>& met,
                            std::size_t head_dim) {
  std::vector<float> result;
  for (std::size_t head = 0; head < stored.size(); head += head_dim) {
    const auto of_head = [&](const std::vector<double>& all) {
      return std::span(all).subspan(head, head_dim);
    };
    const std::vector<float> own = quant::equaliser_divisors(of_head(stored), of_head(met));
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

// Root mean squares, over output features and the query heads of a KV head, of what reads each value channel.
std::vector<double> output_weights(const KvModel& model, const LinearWeights& o) {
  const std::size_t dims = model.config.head_dim;
  const std::size_t group = model.config.num_q_heads / model.config.num_kv_heads;
  const ElementType type = model.weights.matrix_type();
  std::vector<std::byte> stored(std::size_t{o.in_features} * o.out_features * quant::element_bytes(type));
  model.gpu.copy_d2h_blocking(stored, o.weight);
  std::vector<float> weights(std::size_t{o.in_features} * o.out_features);
  quant::convert_elements(stored, type, std::as_writable_bytes(std::span(weights)), ElementType::kF32);
  std::vector<double> sums(std::size_t{model.config.num_kv_heads} * dims);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t in = i % o.in_features;
    sums[in / dims / group * dims + in % dims] += double{weights[i]} * weights[i];
  }
  for (double& sum : sums) sum = std::sqrt(sum / static_cast<double>(std::size_t{o.out_features} * group));
  return sums;
}

std::vector<float> ranges(const std::vector<float>& peaks) {
  std::vector<float> result;
  for (const float peak : peaks) result.push_back(peak > 0 ? kHeadroom * peak : 1.0F);
  return result;
}

void add_equaliser(const KvModel& model, std::size_t index, const LayerSums& sums, double tokens,
                   KvLayerCalibration& layer) {
  const std::size_t channels = sums.k.size();
  const std::size_t group = model.config.num_q_heads / model.config.num_kv_heads;
  std::vector<double> k(channels);
  std::vector<double> q(channels);
  std::vector<double> v(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sums.k[c] / tokens;
    layer.k_mean.push_back(static_cast<float>(mean));
    k[c] = std::sqrt(std::max(0.0, sums.k_squares[c] / tokens - mean * mean));
    q[c] = std::sqrt(sums.q_squares[c] / (tokens * static_cast<double>(group)));
    v[c] = std::sqrt(sums.v_squares[c] / tokens);
  }
  layer.k_equaliser = divisors(k, q, model.config.head_dim);
  layer.v_equaliser =
      divisors(v, output_weights(model, model.weights.layers()[index].o), model.config.head_dim);
}

}  // namespace

TextRunner::TextRunner(const KvModel& model, std::uint32_t max_tokens,
                       const std::vector<quant::KvDtype>& layers, const KvCalibration* calibration)
    : limits_(runner_limits(max_tokens)),
      cache_(kv_config(model.config, limits_.block_size, layers.empty() ? quant::KvDtype{} : layers.front(),
                       layers),
             limits_.blocks_per_seq(), model.gpu),
      decoder_(model.gpu, model.config, model.weights, limits_, cache_,
               {.compute = model.compute, .use_graphs = false, .kv_calibration = calibration}) {
  for (std::uint32_t i = 0; i < limits_.blocks_per_seq(); ++i) blocks_.push_back(cache_.alloc_block());
  decoder_.set_blocks(0, 0, blocks_);
}

TextRunner::~TextRunner() {
  cache_.free_blocks(blocks_);
}

void TextRunner::run(std::span<const std::int32_t> tokens, const TakeLogits& take) {
  const std::size_t most =
      take ? std::min(decoder_.max_logit_rows(), limits_.max_batch_tokens) : limits_.max_batch_tokens;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t length = std::min(tokens.size() - done, most);
    const StepSequence part{.table_row = 0,
                            .start = static_cast<std::uint32_t>(done),
                            .tokens = tokens.subspan(done, length),
                            .logit_rows = take ? static_cast<std::uint32_t>(length) : 0U};
    decoder_.run(std::span(&part, 1));
    if (take) {
      const std::span<const float> logits = decoder_.read_logits();
      const std::size_t vocab = logits.size() / length;
      for (std::size_t i = 0; i < length; ++i) {
        if (!take(done + i, logits.subspan(i * vocab, vocab))) throw Cancelled("the run was cancelled");
      }
    }
    done += length;
  }
  decoder_.wait();
}

KvCalibration calibrate_kv(const KvModel& model, const KvCalibrationRequest& request) {
  if (request.tokens.empty()) throw InvalidArgument("a KV calibration needs a text with a token at least");
  if (request.window == 0) throw InvalidArgument("a KV calibration needs windows of a token at least");
  const auto window =
      static_cast<std::uint32_t>(std::min<std::size_t>(request.window, request.tokens.size()));
  KvSums sums(model.config);
  const std::vector<quant::KvDtype> layers(model.config.num_layers, plain_dtype(model.compute));
  TextRunner runner(model, window, layers, nullptr);
  runner.decoder().set_probe(&sums);
  for (std::size_t at = 0; at < request.tokens.size(); at += window) {
    if (request.progress && !request.progress(at, request.tokens.size())) {
      throw Cancelled("the calibration was cancelled");
    }
    runner.run(request.tokens.subspan(at, std::min<std::size_t>(window, request.tokens.size() - at)), {});
  }
  KvCalibration calibration{.num_kv_heads = model.config.num_kv_heads,
                            .head_dim = model.config.head_dim,
                            .tokens = request.tokens.size(),
                            .layers = std::vector<KvLayerCalibration>(model.config.num_layers)};
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    KvLayerCalibration& layer = calibration.layers[i];
    layer.k_range = ranges(sums.layer(i).k_peak);
    layer.v_range = ranges(sums.layer(i).v_peak);
    if (request.equaliser) {
      add_equaliser(model, i, sums.layer(i), static_cast<double>(request.tokens.size()), layer);
    }
  }
  return calibration;
}

}  // namespace metrale::engine
