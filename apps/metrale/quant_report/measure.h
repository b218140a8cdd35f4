// SPDX-License-Identifier: Apache-2.0
// Measurer: the errors of every format, over a thread pool. Figures do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/thread_pool.h>
#include <metrale/quant/kv_error.h>

#include "variant.h"

namespace metrale::quant_report {

// Of reconstruction, normalised.
struct Nmse {
  quant::KvFormat format = quant::KvFormat::kBf16;
  double keys = 0;
  double values = 0;
};

// What attention makes of a variant.
struct AttentionError {
  double logit_rmse = 0;
  double kl = 0;      // nats, mean over the queries
  double output = 0;  // |o - o'|^2 / |o|^2
};

struct HeadErrors {
  std::vector<Nmse> nmse;                 // in the order of formats_for
  std::vector<AttentionError> attention;  // in the order of variants_for
};

// The mean of each figure.
[[nodiscard]] HeadErrors mean_of(std::span<const HeadErrors> heads);

class Measurer {
 public:
  // Asked between small pieces of work, from any thread; false ends a call with Cancelled.
  using KeepGoing = std::function<bool()>;

  Measurer(ThreadPool& pool, KeepGoing keep_going) : pool_(&pool), keep_going_(std::move(keep_going)) {}

  // x: [count][head_dim], taken as keys and as values.
  [[nodiscard]] std::vector<Nmse> nmse(std::uint32_t head_dim, std::span<const float> x) const;
  // The equaliser is made from these keys and queries.
  [[nodiscard]] HeadErrors head(const quant::AttentionInput& input) const;

 private:
  struct Side;
  void go_through_formats(std::uint32_t head_dim, std::vector<Side>& sides) const;
  void check() const;

  ThreadPool* pool_;
  KeepGoing keep_going_;
};

}  // namespace metrale::quant_report
