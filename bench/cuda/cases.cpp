// SPDX-License-Identifier: Apache-2.0
#include "cuda/cases.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::bench {

void MatrixLimit::see(Report& report, double rate) {
  if (rate <= rate_) return;
  const std::string known = describe();
  const double before = std::exchange(rate_, rate);
  if (before > 0) report.raise_limit(known, describe(), rate / before);
}

std::string MatrixLimit::describe() const {
  return fmt::format("best {} rate seen, {:.0f} TFLOP/s", type_, rate_ / 1e12);
}

void Bench::run(const std::string& name, const std::function<void()>& work) const {
  if (!wants(name)) return;
  try {
    work();
  } catch (const Unsupported& error) {
    fmt::print("{} is left out: {}\n", name, error.what());
  }
}

void Bench::add_read(const std::string& name, std::uint64_t bytes, double seconds) const {
  const double rate = static_cast<double>(bytes) / seconds;
  report.add({.name = name,
              .metric = fmt::format("rate at {:.4g} us", seconds * 1e6),
              .value = rate / 1e9,
              .unit = "GB/s",
              .bytes_moved = bytes,
              .share_of_limit = rate / limits.read,
              .limit = fmt::format("read rate, {:.0f} GB/s", limits.read / 1e9)});
}

void Bench::add_copy(const std::string& name, std::uint64_t bytes, double seconds) const {
  const double rate = static_cast<double>(bytes) / seconds;
  report.add({.name = name,
              .metric = fmt::format("rate at {:.4g} us", seconds * 1e6),
              .value = rate / 1e9,
              .unit = "GB/s",
              .bytes_moved = bytes,
              .share_of_limit = rate / limits.copy,
              .limit = fmt::format("device-to-device copy, {:.0f} GB/s", limits.copy / 1e9)});
}

void Bench::add_products(const std::string& name, MatrixLimit& limit, double operations,
                         double seconds) const {
  const double rate = operations / seconds;
  limit.see(report, rate);
  report.add({.name = name,
              .metric = fmt::format("rate of {:.4g} GFLOP", operations / 1e9),
              .value = rate / 1e12,
              .unit = "TFLOP/s",
              .share_of_limit = rate / limit.rate(),
              .limit = limit.describe()});
}

}  // namespace metrale::bench
