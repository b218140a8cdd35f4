// SPDX-License-Identifier: Apache-2.0
// Report: what a benchmark measured, printed as it goes and written as one JSON file for docs/benchmarks.md.
//
//   int main(int argc, char** argv) {
//     bench::Report report("copy", "64 MiB, warm, median of 9 runs", argc, argv);
//     const double seconds = bench::median_seconds(9, [&] { copy(); });
//     report.add({.name = "memcpy", .metric = "rate", .value = 0.128 / seconds, .unit = "GB/s"});
//     report.write();
//   }
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace metrale::bench {

struct Row {
  std::string name{};    // the case: "decode, 576x1536, bf16"
  std::string metric{};  // what was measured: "time", "rate"
  double value = 0;
  std::string unit{};                          // "us", "GB/s", "tok/s"
  std::optional<std::uint64_t> bytes_moved{};  // by one run
  std::optional<double> share_of_limit{};      // of the limit named below, 1 = all of it
  std::string limit{};                         // "read rate of 2 threads, 21.3 GB/s"
};

class Report {
 public:
  // Takes `--out FILE` and `--commit REVISION` from the command line; arguments() has the rest. `conditions`
  // says sizes, warm or cold, number of runs and threads. Throws InvalidArgument for an option without a
  // value.
  Report(std::string bench, std::string conditions, int argc, char** argv);

  [[nodiscard]] const std::vector<std::string>& arguments() const { return arguments_; }
  // Also prints the row on standard output.
  void add(Row row);
  // Rows whose limit is `known` are shares of `better` from now on, which is `times` as large.
  void raise_limit(const std::string& known, const std::string& better, double times);
  // Writes the JSON file if --out named one: complete or not at all. Throws IoError.
  void write() const;

 private:
  std::string bench_;
  std::string conditions_;
  std::string commit_ = "unknown";
  std::string out_;
  std::vector<std::string> arguments_;
  std::vector<Row> rows_;
};

[[nodiscard]] inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median wall time of `runs` calls, after one that is not counted.
template <class Body>
[[nodiscard]] double median_seconds(unsigned runs, Body&& body) {
  body();
  std::vector<double> seconds(std::max(1U, runs));
  for (double& second : seconds) {
    const auto start = std::chrono::steady_clock::now();
    body();
    second = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return median(std::move(seconds));
}

// Keeps a result alive, so that the compiler cannot drop the work that made it.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

}  // namespace metrale::bench
