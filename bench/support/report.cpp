// SPDX-License-Identifier: Apache-2.0
#include "support/report.h"

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>

namespace metrale::bench {
namespace {

std::string cpu_name() {
  constexpr std::string_view kKey = "model name";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(kKey) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string compiler_name() {
#ifdef __clang__
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json json{
      {"name", row.name}, {"metric", row.metric}, {"value", row.value}, {"unit", row.unit}};
  if (row.bytes_moved) json["bytes_moved"] = *row.bytes_moved;
  if (row.share_of_limit) json["share_of_limit"] = *row.share_of_limit;
  if (!row.limit.empty()) json["limit"] = row.limit;
  return json;
}

}  // namespace

Report::Report(std::string bench, std::string conditions, int argc, char** argv)
    : bench_(std::move(bench)), conditions_(std::move(conditions)) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument != "--out" && argument != "--commit") {
      arguments_.push_back(argument);
      continue;
    }
    if (i + 1 == argc) throw InvalidArgument(fmt::format("{} wants a value", argument));
    (argument == "--out" ? out_ : commit_) = argv[++i];
  }
}

void Report::add(Row row) {
  std::string line = fmt::format("{:<40} {:<14} {:>12.4g} {}", row.name, row.metric, row.value, row.unit);
  if (row.share_of_limit) line += fmt::format("  {:.0f} % of {}", 100 * *row.share_of_limit, row.limit);
  fmt::print("{}\n", line);
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

void Report::raise_limit(const std::string& known, const std::string& better, double times) {
  for (Row& row : rows_) {
    if (!row.share_of_limit || row.limit != known) continue;
    *row.share_of_limit /= times;
    row.limit = better;
  }
}

void Report::write() const {
  if (out_.empty()) return;
  nlohmann::ordered_json json{
      {"bench", bench_},
      {"commit", commit_},
      {"date", today()},
      {"machine",
       {{"cpu", cpu_name()}, {"cores", std::thread::hardware_concurrency()}, {"compiler", compiler_name()}}},
      {"conditions", conditions_},
      {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows_) json["rows"].push_back(to_json(row));
  const std::string partial = out_ + ".partial";
  std::ofstream file(partial);
  file << json.dump(2) << '\n';
  file.close();
  if (!file || std::rename(partial.c_str(), out_.c_str()) != 0) {
    const int error = errno;
    std::remove(partial.c_str());
    throw IoError("cannot write", out_, error);
  }
}

}  // namespace metrale::bench
