// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/scoring.h>

namespace metrale::engine {
namespace {

using quant::KvDtype;
using quant::KvFormat;

// A layer that costs so many times the median layer is marked.
constexpr double kMarkedShare = 4;
// Stands for a divergence without bound, so that differences of costs are numbers.
constexpr double kUseless = 1e30;

double bits_of(KvFormat format, std::uint32_t head_dim) {
  const KvDtype dtype{format, format};
  return mean_kv_bits(std::span(&dtype, 1), head_dim);
}

// A format that a side may have, and what it costs.
struct Option {
  double bits;
  double cost;
  std::size_t format;  // its number
};

// One side of one layer. Each option takes more bits than the one before and costs less: others are never
// worth having.
struct Side {
  std::vector<double> costs;  // by format
  std::vector<Option> options;
  std::size_t chosen = 0;

  void find_options(std::span<const double> bits) {
    for (std::size_t format = 0; format < costs.size(); ++format) {
      if (!options.empty() && costs[format] >= options.back().cost) continue;
      if (!options.empty() && bits[format] == options.back().bits) options.pop_back();
      options.push_back({bits[format], costs[format], format});
    }
  }
  [[nodiscard]] std::size_t format() const { return options[chosen].format; }
};

// Steps from option to option that lower the cost most for their bits, until none fits any more.
class Chooser {
 public:
  Chooser(std::vector<Side>& sides, double mean_bits)
      : sides_(&sides), left_(mean_bits * static_cast<double>(sides.size())) {
    for (const Side& side : sides) left_ -= side.options.front().bits;
  }

  void run() {
    while (take_best_step()) {
    }
  }

 private:
  bool take_best_step() {
    double best = 0;
    Side* best_side = nullptr;
    std::size_t best_option = 0;
    for (Side& side : *sides_) {
      const Option& now = side.options[side.chosen];
      for (std::size_t to = side.chosen + 1; to < side.options.size(); ++to) {
        const double more = side.options[to].bits - now.bits;
        const double gain = (now.cost - side.options[to].cost) / more;
        if (more > left_ + kSlack || gain <= best) continue;
        best = gain;
        best_side = &side;
        best_option = to;
      }
    }
    if (best_side == nullptr) return false;
    left_ -= best_side->options[best_option].bits - best_side->options[best_side->chosen].bits;
    best_side->chosen = best_option;
    return true;
  }

  static constexpr double kSlack = 1e-9;  // sums of bits are not exact
  std::vector<Side>* sides_;
  double left_;
};

// Logits of the model with a BF16 cache, and what caches in other formats make of them.
class Trials {
 public:
  Trials(const KvModel& model, const KvBudgetRequest& request, const KvCalibration& calibration)
      : model_(&model), request_(&request), calibration_(&calibration) {
    reference_.reserve(request.tokens.size() * model.config.vocab_size);
    run(bf16(), [this](std::size_t, std::span<const float> logits) {
      reference_.insert(reference_.end(), logits.begin(), logits.end());
      return true;
    });
  }

  [[nodiscard]] std::vector<KvDtype> bf16() const { return std::vector<KvDtype>(model_->config.num_layers); }

  [[nodiscard]] double divergence(const std::vector<KvDtype>& layers) const {
    const std::size_t vocab = model_->config.vocab_size;
    double sum = 0;
    run(layers, [&](std::size_t position, std::span<const float> logits) {
      sum += logit_divergence(std::span(reference_).subspan(position * vocab, vocab), logits);
      return true;
    });
    return std::min(sum / static_cast<double>(request_->tokens.size()), kUseless);
  }

 private:
  void run(const std::vector<KvDtype>& layers, const TextRunner::TakeLogits& take) const {
    TextRunner runner(*model_, static_cast<std::uint32_t>(request_->tokens.size()), layers, calibration_);
    runner.run(request_->tokens, take);
  }

  const KvModel* model_;
  const KvBudgetRequest* request_;
  const KvCalibration* calibration_;
  std::vector<float> reference_;  // [token][vocab]
};

// By their bits, each once.
std::vector<KvFormat> sorted_formats(const KvBudgetRequest& request, std::uint32_t head_dim) {
  std::vector<KvFormat> formats = request.formats;
  if (formats.empty()) {
    formats = {KvFormat::kTurbo2, KvFormat::kTurbo3, KvFormat::kTurbo4, KvFormat::kTurbo8i};
  }
  std::ranges::sort(formats);
  const auto [first, last] = std::ranges::unique(formats);
  formats.erase(first, last);
  std::ranges::stable_sort(formats, {}, [&](KvFormat format) { return bits_of(format, head_dim); });
  return formats;
}

void mark_costly_layers(const std::vector<Side>& sides, std::size_t format, KvCalibration& calibration) {
  std::vector<double> costs;
  for (std::size_t i = 0; i < sides.size(); i += 2) {
    costs.push_back(sides[i].costs[format] + sides[i + 1].costs[format]);
  }
  std::vector<double> sorted = costs;
  std::ranges::sort(sorted);
  const double bound = kMarkedShare * sorted[sorted.size() / 2];
  for (std::size_t i = 0; i < costs.size(); ++i) calibration.layers[i].high_precision = costs[i] > bound;
}

}  // namespace

void check_kv_budget(const gpu::GpuBackend& gpu, const ModelConfig& config, const KvBudgetRequest& request) {
  if (request.tokens.size() < 2) throw InvalidArgument("a KV budget needs a text of two tokens at least");
  const std::vector<KvFormat> formats = sorted_formats(request, config.head_dim);
  for (const KvFormat format : formats) {
    const bool on_cpu = gpu.capabilities().host_memory_is_device_memory;
    const std::string why = why_no_kv_format(format, config.head_dim, on_cpu);
    if (why.empty()) continue;
    throw InvalidArgument(fmt::format("the KV budget cannot choose {}: {}", quant::to_string(format), why));
  }
  const double least = bits_of(formats.front(), config.head_dim);
  if (request.mean_bits >= least) return;
  throw InvalidArgument(fmt::format("a KV budget of {} bits an element: {}, the narrowest format, has {}",
                                    request.mean_bits, quant::to_string(formats.front()), least));
}

KvBudget choose_kv_formats(const KvModel& model, const KvBudgetRequest& request, KvCalibration& calibration) {
  check_kv_budget(model.gpu, model.config, request);
  KvBudget budget{.divergences = {}, .formats = sorted_formats(request, model.config.head_dim)};
  std::vector<double> bits;
  for (const KvFormat format : budget.formats) bits.push_back(bits_of(format, model.config.head_dim));
  const Trials trials(model, request, calibration);
  const std::size_t layers = model.config.num_layers;
  const std::uint64_t total = layers * 2 * budget.formats.size();
  std::uint64_t done = 0;
  std::vector<Side> sides;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    budget.divergences.emplace_back();
    for (const bool is_key : {true, false}) {
      Side side;
      for (const KvFormat format : budget.formats) {
        if (request.progress && !request.progress(done++, total)) {
          throw Cancelled("the choice of KV formats was cancelled");
        }
        std::vector<KvDtype> dtypes = trials.bf16();
        (is_key ? dtypes[layer].k : dtypes[layer].v) = format;
        side.costs.push_back(trials.divergence(dtypes));
      }
      budget.divergences.back().push_back(side.costs);
      sides.push_back(std::move(side));
    }
  }
  for (Side& side : sides) side.find_options(bits);
  Chooser(sides, request.mean_bits).run();
  std::vector<KvDtype> chosen;
  for (std::size_t i = 0; i < layers; ++i) {
    chosen.push_back({budget.formats[sides[2 * i].format()], budget.formats[sides[2 * i + 1].format()]});
    calibration.layers[i].dtype = chosen.back();
  }
  mark_costly_layers(sides, budget.formats.size() / 2, calibration);
  budget.mean_bits = mean_kv_bits(chosen, model.config.head_dim);
  budget.divergence = trials.divergence(chosen);
  if (budget.divergence == kUseless) {
    throw InvalidArgument(
        "no choice of these formats within the KV budget leaves the model with finite logits: allow more "
        "bits, "
        "or other formats");
  }
  return budget;
}

}  // namespace metrale::engine
