// SPDX-License-Identifier: Apache-2.0
// The slow obvious sampler: long double, whole sorts, quadratic matches, straight from docs/sampling.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include <metrale/sampling/sampler.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {

struct ReferenceResult {
  std::vector<long double> probabilities;  // by token, 0 for what cannot be drawn; empty if nothing is left
  std::uint32_t greedy = kNoToken;
  long double closest = 1e9L;  // the smallest distance of any decision to its threshold, ties left out
};

class ReferenceSampler {
 public:
  ReferenceSampler(const SamplingParams& params, const Logits& logits, const Tokens& prompt,
                   const Tokens& output, const std::vector<bool>& allowed)
      : params_(params), row_(logits.begin(), logits.end()), prompt_(prompt), output_(output) {
    edit(allowed);
    if (std::ranges::none_of(row_, [](long double l) { return std::isfinite(l); })) return;
    order_ = sorted_ids();
    result_.greedy = order_.front();
    keep_sigmas();
    const long double filter_temperature =
        params.temperature_last ? 1.0L : static_cast<long double>(params.temperature);
    keep_top_k();
    keep_top_p(softmax(filter_temperature));
    keep_min_p(softmax(filter_temperature));
    result_.probabilities = softmax(static_cast<long double>(params.temperature));
  }

  [[nodiscard]] const ReferenceResult& result() const { return result_; }

 private:
  static constexpr long double kOut = -std::numeric_limits<long double>::infinity();

  bool reaches(long double value, long double threshold) {
    if (value != threshold) result_.closest = std::min(result_.closest, std::abs(value - threshold));
    return value >= threshold;
  }

  void edit(const std::vector<bool>& allowed) {
    for (long double& l : row_) l = std::isfinite(l) ? l : kOut;
    for (const auto& [token, bias] : params_.logit_bias) row_[token] += static_cast<long double>(bias);

    std::vector<std::pair<std::uint32_t, bool>> seen;  // token, is it output
    for (const std::uint32_t token : prompt_) seen.emplace_back(token, false);
    for (const std::uint32_t token : output_) seen.emplace_back(token, true);
    const auto window = static_cast<std::size_t>(std::max(params_.penalty_window, 0));
    if (window != 0 && window < seen.size()) seen.erase(seen.begin(), seen.end() - params_.penalty_window);
    for (std::uint32_t token = 0; token < row_.size(); ++token) {
      const auto times = [&](bool output_only) {
        return std::ranges::count_if(
            seen, [&](const auto& entry) { return entry.first == token && (entry.second || !output_only); });
      };
      long double& l = row_[token];
      const long double r = static_cast<long double>(params_.repetition_penalty);
      if (times(false) != 0) l = l > 0 ? l / r : l * r;
      l -= static_cast<long double>(params_.frequency_penalty) * static_cast<long double>(times(true));
      if (times(true) != 0) l -= static_cast<long double>(params_.presence_penalty);
    }

    Tokens history = prompt_;
    history.insert(history.end(), output_.begin(), output_.end());
    if (params_.dry_multiplier != 0.0f) edit_dry(history);
    edit_lz(history);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      if (!allowed.empty() && !allowed[i]) row_[i] = kOut;
    }
  }

  void edit_dry(const Tokens& history) {
    const auto breaks = [&](std::uint32_t token) {
      return std::ranges::count(params_.dry_breakers, token) != 0;
    };
    std::map<std::uint32_t, std::size_t> longest;
    for (std::size_t end = 0; end + 1 < history.size(); ++end) {
      std::size_t length = 0;
      while (length <= end && history[end - length] == history[history.size() - 1 - length] &&
             !breaks(history[end - length])) {
        ++length;
      }
      const std::uint32_t next = history[end + 1];
      if (length != 0 && length >= params_.dry_allowed_length && !breaks(next)) {
        longest[next] = std::max(longest[next], length);
      }
    }
    for (const auto& [token, length] : longest) {
      if (token >= row_.size()) continue;
      row_[token] -= static_cast<long double>(params_.dry_multiplier) *
                     std::pow(static_cast<long double>(params_.dry_base),
                              static_cast<long double>(length - params_.dry_allowed_length));
    }
  }

  void edit_lz(const Tokens& history) {
    if (history.size() < 4) return;
    const Tokens recent(
        history.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(256, history.size())),
        history.end());
    for (std::size_t n = 3; n <= 5; ++n) {
      for (std::size_t start = 0; start + n <= recent.size(); ++start) {
        const std::span<const std::uint32_t> gram(&recent[start], n);
        const std::span<const std::uint32_t> suffix(&recent[recent.size() - (n - 1)], n - 1);
        if (std::ranges::equal(gram.first(n - 1), suffix) && gram.back() < row_.size()) {
          row_[gram.back()] -= static_cast<long double>(params_.lz_penalty) * static_cast<long double>(n - 2);
        }
      }
    }
  }

  [[nodiscard]] Tokens sorted_ids() {
    Tokens ids(row_.size());
    std::iota(ids.begin(), ids.end(), 0u);
    std::ranges::stable_sort(ids, [&](std::uint32_t a, std::uint32_t b) { return row_[a] > row_[b]; });
    if (ids.size() > 1) static_cast<void>(reaches(row_[ids[0]], row_[ids[1]]));
    return ids;
  }

  [[nodiscard]] std::vector<long double> softmax(long double temperature) const {
    const long double best = *std::ranges::max_element(row_);
    std::vector<long double> weights;
    for (const long double l : row_) weights.push_back(std::exp((l - best) / temperature));
    const long double sum = std::accumulate(weights.begin(), weights.end(), 0.0L);
    for (long double& weight : weights) weight /= sum;
    return weights;
  }

  void keep_sigmas() {
    if (params_.top_n_sigma == 0.0f) return;
    std::vector<long double> finite;
    std::ranges::copy_if(row_, std::back_inserter(finite), [](long double l) { return std::isfinite(l); });
    const auto count = static_cast<long double>(finite.size());
    const long double mean = std::accumulate(finite.begin(), finite.end(), 0.0L) / count;
    long double squares = 0.0L;
    for (const long double l : finite) squares += (l - mean) * (l - mean);
    const long double gap = static_cast<long double>(params_.top_n_sigma) * std::sqrt(squares / count);
    const long double best = *std::ranges::max_element(row_);
    for (long double& l : row_) {
      if (std::isfinite(l) && !reaches(gap, best - l)) l = kOut;
    }
  }

  void keep_top_k() {
    const auto k = static_cast<std::size_t>(std::max(params_.top_k, 0));
    if (k == 0 || k >= row_.size()) return;
    if (std::isfinite(row_[order_[k]])) static_cast<void>(reaches(row_[order_[k - 1]], row_[order_[k]]));
    for (std::size_t i = k; i < order_.size(); ++i) row_[order_[i]] = kOut;
  }

  void keep_top_p(const std::vector<long double>& probabilities) {
    if (params_.top_p == 1.0f) return;
    long double mass = 0.0L;
    bool full = false;
    for (const std::uint32_t id : order_) {
      if (full) row_[id] = kOut;
      mass += probabilities[id];
      full = full || reaches(mass, static_cast<long double>(params_.top_p));
    }
  }

  void keep_min_p(const std::vector<long double>& probabilities) {
    const long double best = *std::ranges::max_element(probabilities);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      const long double threshold = static_cast<long double>(params_.min_p) * best;
      if (std::isfinite(row_[i]) && !reaches(probabilities[i] / best, threshold / best)) row_[i] = kOut;
    }
  }

  const SamplingParams& params_;
  std::vector<long double> row_;
  const Tokens& prompt_;
  const Tokens& output_;
  Tokens order_;
  ReferenceResult result_;
};

}  // namespace metrale::sampling
