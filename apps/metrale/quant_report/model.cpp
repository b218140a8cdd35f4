// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>

#include <metrale/base/error.h>
#include <metrale/engine/attention_probe.h>

namespace metrale::quant_report {
namespace {

// What one KV head and its query heads have, in the order of AttentionInput.
struct Head {
  std::vector<float> queries;  // [query head of the group][position][head_dim]
  std::vector<float> keys;     // [token][head_dim]
  std::vector<float> values;
};

std::vector<std::uint32_t> even_positions(std::uint32_t tokens, std::uint32_t queries) {
  std::vector<std::uint32_t> positions;
  for (std::uint64_t i = 1; i <= queries; ++i)
    positions.push_back(static_cast<std::uint32_t>(i * tokens / queries - 1));
  return positions;
}

// Keeps the keys and values of every token, and the queries of some.
class Capture final : public engine::AttentionProbe {
 public:
  Capture(const engine::ModelConfig& config, std::uint32_t tokens, std::vector<std::uint32_t> positions)
      : config_(&config), positions_(std::move(positions)), seen_(config.num_layers) {
    const std::size_t group = config.num_q_heads / config.num_kv_heads;
    const std::size_t dims = config.head_dim;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
      layers_.emplace_back(config.num_kv_heads,
                           Head{std::vector<float>(group * positions_.size() * dims),
                                std::vector<float>(tokens * dims), std::vector<float>(tokens * dims)});
    }
  }

  [[nodiscard]] std::vector<Head>& heads(std::size_t layer) { return layers_[layer]; }

 private:
  void do_take(std::uint32_t layer, std::uint32_t tokens, std::span<const float> qkv) override {
    const std::size_t dims = config_->head_dim;
    const std::size_t width = (config_->num_q_heads + std::size_t{2} * config_->num_kv_heads) * dims;
    for (std::uint32_t i = 0; i < tokens; ++i)
      take_token(layer, seen_[layer] + i, qkv.subspan(i * width, width));
    seen_[layer] += tokens;
  }

  void take_token(std::uint32_t layer, std::uint32_t token, std::span<const float> row) {
    const std::size_t dims = config_->head_dim;
    const std::size_t group = config_->num_q_heads / config_->num_kv_heads;
    const auto copy = [&](std::size_t head, std::vector<float>& to, std::size_t place) {
      std::ranges::copy(row.subspan(head * dims, dims),
                        to.begin() + static_cast<std::ptrdiff_t>(place * dims));
    };
    const auto position = std::ranges::lower_bound(positions_, token);
    const bool is_asked = position != positions_.end() && *position == token;
    for (std::size_t kv = 0; kv < config_->num_kv_heads; ++kv) {
      Head& head = layers_[layer][kv];
      copy(config_->num_q_heads + kv, head.keys, token);
      copy(config_->num_q_heads + config_->num_kv_heads + kv, head.values, token);
      if (!is_asked) continue;
      const auto place = static_cast<std::size_t>(position - positions_.begin());
      for (std::size_t q = 0; q < group; ++q)
        copy(kv * group + q, head.queries, q * positions_.size() + place);
    }
  }

  const engine::ModelConfig* config_;
  std::vector<std::uint32_t> positions_;   // whose queries are kept, rising
  std::vector<std::uint32_t> seen_;        // [layer] tokens so far
  std::vector<std::vector<Head>> layers_;  // [layer][kv head]
};

// Of each query of a head: what stands before it, in the window if the layer has one.
std::vector<quant::KeyRange> visible_keys(const engine::ModelConfig& config, std::size_t layer,
                                          std::span<const std::uint32_t> positions) {
  const std::uint32_t window = config.layer_windows.empty() ? 0 : config.layer_windows[layer];
  std::vector<quant::KeyRange> visible;
  for (std::uint32_t head = 0; head < config.num_q_heads / config.num_kv_heads; ++head) {
    for (const std::uint32_t position : positions) {
      const std::uint32_t end = position + 1;
      visible.push_back({window != 0 && end > window ? end - window : 0, end});
    }
  }
  return visible;
}

}  // namespace

ModelErrors measure_model(const engine::KvModel& model, std::span<const std::int32_t> tokens,
                          std::uint32_t queries, const Measurer& measurer,
                          const std::function<void(std::size_t)>& progress) {
  expects(!tokens.empty() && queries != 0, "measure_model: no tokens or no queries");
  const engine::ModelConfig& config = model.config;
  const auto count = static_cast<std::uint32_t>(tokens.size());
  const std::vector<std::uint32_t> positions = even_positions(count, std::min(queries, count));
  ModelErrors errors{.num_layers = config.num_layers,
                     .num_q_heads = config.num_q_heads,
                     .num_kv_heads = config.num_kv_heads,
                     .head_dim = config.head_dim,
                     .tokens = count,
                     .queries = static_cast<std::uint32_t>(positions.size())};
  Capture capture(config, count, positions);
  {
    // What a layer sees of the ones before shall not depend on a format either.
    const auto plain =
        model.compute == quant::ElementType::kF32 ? quant::KvFormat::kFp32 : quant::KvFormat::kBf16;
    engine::TextRunner runner(model, count, std::vector<quant::KvDtype>(config.num_layers, {plain, plain}),
                              nullptr);
    runner.decoder().set_probe(&capture);
    runner.run(tokens, {});
    runner.decoder().wait();
  }
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    progress(layer);
    const std::vector<quant::KeyRange> visible = visible_keys(config, layer, positions);
    std::vector<HeadErrors> heads;
    for (const Head& head : capture.heads(layer)) {
      heads.push_back(measurer.head({.head_dim = config.head_dim,
                                     .scale = config.attention_scale,
                                     .queries = head.queries,
                                     .keys = head.keys,
                                     .values = head.values,
                                     .visible = visible}));
    }
    errors.layers.push_back(mean_of(heads));
    capture.heads(layer).clear();
  }
  errors.mean = mean_of(errors.layers);
  return errors;
}

}  // namespace metrale::quant_report
