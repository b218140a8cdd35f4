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

double bits_of(KvFormat format, std::uint32_t head_dim) {
  const KvDtype dtype{format, format};
  return mean_kv_bits(std::span(&dtype, 1), head_dim);
}

// One side of one layer: which format it has, and what each costs.
struct Side {
  std::vector<double> costs;  // by format, falling from the narrowest on
  std::size_t chosen = 0;
};

// Steps from format to format that lower the cost most for their bits, until none fits any more.
class Chooser {
 public:
  Chooser(std::vector<Side>& sides, std::span<const double> bits, double mean_bits)
      : sides_(&sides), bits_(bits), left_((mean_bits - bits.front()) * static_cast<double>(sides.size())) {}

  void run() {
    while (take_best_step()) {
    }
  }

 private:
  bool take_best_step() {
    double best = 0;
    Side* best_side = nullptr;
    std::size_t best_format = 0;
    for (Side& side : *sides_) {
      for (std::size_t to = side.chosen + 1; to < bits_.size(); ++to) {
        const double more = bits_[to] - bits_[side.chosen];
        const double gain = (side.costs[side.chosen] - side.costs[to]) / more;
        if (more > left_ + kSlack || gain <= best) continue;
        best = gain;
        best_side = &side;
        best_format = to;
      }
    }
    if (best_side == nullptr) return false;
    left_ -= bits_[best_format] - bits_[best_side->chosen];
    best_side->chosen = best_format;
    return true;
  }

  static constexpr double kSlack = 1e-9;  // sums of bits are not exact
  std::vector<Side>* sides_;
  std::span<const double> bits_;
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
    return sum / static_cast<double>(request_->tokens.size());
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

void check(const KvModel& model, const KvBudgetRequest& request, std::span<const KvFormat> formats) {
  if (request.tokens.size() < 2) throw InvalidArgument("a KV budget needs a text of two tokens at least");
  for (const KvFormat format : formats) {
    const bool on_cpu = model.gpu.capabilities().host_memory_is_device_memory;
    const std::string why = why_no_kv_format(format, model.config.head_dim, on_cpu);
    if (!why.empty()) {
      throw InvalidArgument(fmt::format("the KV budget cannot choose {}: {}", quant::to_string(format), why));
    }
  }
  const double least = bits_of(formats.front(), model.config.head_dim);
  if (request.mean_bits >= least) return;
  throw InvalidArgument(fmt::format("a KV budget of {} bits an element: {}, the narrowest format, has {}",
                                    request.mean_bits, quant::to_string(formats.front()), least));
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

KvBudget choose_kv_formats(const KvModel& model, const KvBudgetRequest& request, KvCalibration& calibration) {
  KvBudget budget{.divergences = {}, .formats = request.formats};
  if (budget.formats.empty()) {
    budget.formats = {KvFormat::kTurbo2, KvFormat::kTurbo3, KvFormat::kTurbo4, KvFormat::kTurbo8i};
  }
  std::ranges::stable_sort(budget.formats, {},
                           [&](KvFormat format) { return bits_of(format, model.config.head_dim); });
  check(model, request, budget.formats);
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
  std::vector<double> bits;
  for (const KvFormat format : budget.formats) bits.push_back(bits_of(format, model.config.head_dim));
  Chooser(sides, bits, request.mean_bits).run();
  std::vector<KvDtype> chosen;
  for (std::size_t i = 0; i < layers; ++i) {
    chosen.push_back({budget.formats[sides[2 * i].chosen], budget.formats[sides[2 * i + 1].chosen]});
    calibration.layers[i].dtype = chosen.back();
  }
  mark_costly_layers(sides, budget.formats.size() / 2, calibration);
  budget.mean_bits = mean_kv_bits(chosen, model.config.head_dim);
  budget.divergence = trials.divergence(chosen);
  return budget;
}

}  // namespace metrale::engine
