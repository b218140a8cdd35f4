// SPDX-License-Identifier: Apache-2.0
// What the CUDA benchmark measures, one function a group of cases. Every share is of a limit that
// measure_limits found in the same run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "support/report.h"

namespace metrale::bench {

// The best rate that the run has seen of matrix products of one type: products of one shape hold a
// processor's clock better than those of another, so that no shape is the limit of all.
class MatrixLimit {
 public:
  explicit MatrixLimit(std::string type) : type_(std::move(type)) {}
  // A better one raises the limit, and with it that of the rows before.
  void see(Report& report, double rate);
  [[nodiscard]] double rate() const { return rate_; }  // operations a second
  [[nodiscard]] std::string describe() const;

 private:
  std::string type_;
  double rate_ = 0;
};

struct Limits {
  double read = 0;           // bytes a second
  double copy = 0;           // bytes read and bytes written a second, device to device
  double empty_seconds = 0;  // an empty kernel of a graph
  MatrixLimit bf16{"BF16"};
  MatrixLimit fp8{"FP8"};
};

struct Bench {
  Report& report;
  Device& device;
  runtime::BackendOptions options;
  std::string only;  // cases whose names begin so
  Limits limits;

  [[nodiscard]] bool wants(std::string_view name) const { return name.starts_with(only); }
  // Runs `work` where `name` is wanted; a line says so where the build or the device has no such product.
  void run(const std::string& name, const std::function<void()>& work) const;

  // Rows with the limit that stands for them.
  void add_read(const std::string& name, std::uint64_t bytes, double seconds) const;
  void add_copy(const std::string& name, std::uint64_t bytes, double seconds) const;
  void add_products(const std::string& name, MatrixLimit& limit, double operations, double seconds) const;
};

// Always measures what Limits holds; reports what is wanted.
[[nodiscard]] Limits measure_limits(Bench& bench);
void measure_attention(Bench& bench);
void measure_linear(Bench& bench);
void measure_linear_embedded(Bench& bench);  // with a second backend that has no library
void measure_fp8(Bench& bench);
void measure_small_kernels(Bench& bench);
// Everything that the engine does with the model of this directory.
void measure_engine(Bench& bench, const std::string& model);
// Time to the first token where a prompt's beginning is cached, and where it is not.
void measure_shared_prefix(Bench& bench, const std::string& model);

}  // namespace metrale::bench
