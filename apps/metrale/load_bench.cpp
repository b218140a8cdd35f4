// SPDX-License-Identifier: Apache-2.0
// metrale load-bench: how fast a model's weights come into memory by each path, beside the disk itself.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

#include "commands.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "load_bench/measure.h"
#include "output.h"
#include "progress.h"

namespace metrale::app {
namespace {

using load_bench::Sample;
using load_bench::Subject;
using nlohmann::ordered_json;

struct LoadBenchFlags {
  std::string path;
  std::string paths = "auto,direct,buffered,mmap";
  bool raw = false;
  bool cold_only = false;
  bool allocate = false;
  bool file_layout = false;
  unsigned runs = 3;
  std::string staging;
  std::string chunk;
  std::string engine = "auto";
  unsigned read_threads = 0;
  bool json = false;
  DeviceFlags device;
};

constexpr const char* kRaw = "raw";

// All samples of one path, cold and warm.
struct Row {
  std::string name;
  std::vector<Sample> cold;
  std::vector<Sample> warm;
};

// The sample of the median time.
const Sample& median(const std::vector<Sample>& samples) {
  std::vector<const Sample*> sorted;
  for (const Sample& sample : samples) sorted.push_back(&sample);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->seconds < b->seconds; });
  return *sorted[sorted.size() / 2];
}

double rate(const Sample& sample) {
  return sample.seconds > 0 ? static_cast<double>(sample.bytes) / sample.seconds / 1e9 : 0;
}

std::vector<std::string> parse_paths(const LoadBenchFlags& flags) {
  std::vector<std::string> names;
  if (flags.raw) names.emplace_back(kRaw);
  std::string rest = flags.paths;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string name = rest.substr(0, comma);
    if (!weights::parse_load_path(name)) {
      throw InvalidArgument(fmt::format("--paths: '{}' is none of auto, direct, buffered and mmap", name));
    }
    names.push_back(name);
    rest.erase(0, comma + 1);
  }
  return names;
}

weights::LoadOptions load_options(const LoadBenchFlags& flags) {
  weights::LoadOptions options;
  options.staging_bytes = flags.staging.empty() ? 0 : parse_bytes(flags.staging, "--staging");
  options.chunk_bytes = flags.chunk.empty() ? 0 : parse_bytes(flags.chunk, "--chunk");
  options.engine = flags.engine == "posix"      ? io::IoEngineKind::kPosix
                   : flags.engine == "io_uring" ? io::IoEngineKind::kUring
                                                : io::IoEngineKind::kAuto;
  options.threads = flags.read_threads;
  options.progress = [](std::uint64_t, std::uint64_t) { return !interrupted(); };
  return options;
}

Sample take_sample(Subject& subject, const std::string& name, weights::LoadOptions options) {
  if (name == kRaw) return subject.read_raw(options);
  options.path = weights::parse_load_path(name).value_or(weights::LoadPath::kAuto);
  return subject.load(options);
}

// Every path in turn, run after run, so that what the machine does meanwhile meets all of them.
std::vector<Row> measure(Subject& subject, const LoadBenchFlags& flags) {
  const weights::LoadOptions options = load_options(flags);
  std::vector<Row> rows;
  for (const std::string& name : parse_paths(flags)) rows.push_back({name, {}, {}});
  ProgressLine progress("measuring");
  const std::uint64_t total = rows.size() * flags.runs * (flags.cold_only ? 1 : 2);
  std::uint64_t done = 0;
  for (unsigned run = 0; run < flags.runs; ++run) {
    for (const bool warm : {false, true}) {
      if (warm && flags.cold_only) continue;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        Row& row = rows[(run + i) % rows.size()];  // nobody is always first
        const std::uint64_t cached = warm ? subject.make_warm() : subject.make_cold();
        if (!warm && cached > subject.file_bytes() / 100 && run == 0 && i == 0) {
          log().warn("{} bytes of the files stay in the page cache: what is called cold is not", cached);
        }
        (warm ? row.warm : row.cold).push_back(take_sample(subject, row.name, options));
        if (interrupted()) throw Cancelled("interrupted");
        progress.update(++done, total);
      }
    }
  }
  progress.clear();
  return rows;
}

ordered_json as_json(const std::vector<Sample>& samples, const std::vector<Sample>* raw,
                     std::uint64_t file_bytes) {
  const Sample& mid = median(samples);
  ordered_json json{
      {"seconds", mid.seconds},
      {"gb_per_s", rate(mid)},
      {"bytes", mid.bytes},
      {"cpu_seconds", mid.cpu_seconds},
      {"cpu_seconds_per_gb", mid.cpu_seconds / (static_cast<double>(mid.bytes) / 1e9)},
      {"peak_bytes_beyond_weights", mid.peak_bytes},
      {"page_cache_before", mid.cached_before},
      {"page_cache_after", mid.cached_after},
      {"page_cache_growth", (static_cast<double>(mid.cached_after) - static_cast<double>(mid.cached_before)) /
                                static_cast<double>(file_bytes)},
      {"staging_bytes", mid.staging_bytes},
      {"chunk_bytes", mid.chunk_bytes},
      {"detail", mid.detail}};
  if (raw != nullptr && !raw->empty()) {
    // Of runs that followed each other, so that a slow disk hits both.
    std::vector<double> shares;
    for (std::size_t i = 0; i < samples.size(); ++i) shares.push_back(rate(samples[i]) / rate((*raw)[i]));
    std::sort(shares.begin(), shares.end());
    json["share_of_raw"] = shares[shares.size() / 2];
  }
  for (const Sample& sample : samples) json["all_seconds"].push_back(sample.seconds);
  return json;
}

ordered_json report_json(const LoadBenchFlags& flags, Subject& subject, const std::vector<Row>& rows) {
  ordered_json json{{"path", flags.path},
                    {"files", subject.files()},
                    {"tensors", subject.tensors()},
                    {"tensor_bytes", subject.tensor_bytes()},
                    {"file_bytes", subject.file_bytes()},
                    {"runs", flags.runs},
                    {"file_layout", flags.file_layout},
                    {"paths", ordered_json::array()}};
  const Row* raw = flags.raw ? &rows.front() : nullptr;
  for (const Row& row : rows) {
    ordered_json entry{{"name", row.name}};
    entry["cold"] = as_json(row.cold, raw == nullptr ? nullptr : &raw->cold, subject.file_bytes());
    if (!row.warm.empty()) {
      entry["warm"] = as_json(row.warm, raw == nullptr ? nullptr : &raw->warm, subject.file_bytes());
    }
    json["paths"].push_back(std::move(entry));
  }
  return json;
}

std::string as_table(const ordered_json& report) {
  std::string text = fmt::format("{}: {} files, {} tensors, {:.3f} GB; medians of {} runs\n",
                                 report["path"].get<std::string>(), report["files"].get<std::size_t>(),
                                 report["tensors"].get<std::size_t>(),
                                 report["tensor_bytes"].get<double>() / 1e9, report["runs"].get<unsigned>());
  text += fmt::format("{:10} {:5} {:>8} {:>8} {:>7} {:>9} {:>10} {:>8}  {}\n", "path", "cache", "s", "GB/s",
                      "of raw", "CPU s/GB", "extra MiB", "cache +%", "how");
  for (const auto& row : report["paths"]) {
    for (const char* state : {"cold", "warm"}) {
      if (!row.contains(state)) continue;
      const auto& sample = row[state];
      const std::string share = sample.contains("share_of_raw")
                                    ? fmt::format("{:.1f} %", 100 * sample["share_of_raw"].get<double>())
                                    : "";
      text +=
          fmt::format("{:10} {:5} {:8.3f} {:8.3f} {:>7} {:9.3f} {:10.1f} {:8.2f}  {}\n",
                      row["name"].get<std::string>(), state, sample["seconds"].get<double>(),
                      sample["gb_per_s"].get<double>(), share, sample["cpu_seconds_per_gb"].get<double>(),
                      sample["peak_bytes_beyond_weights"].get<double>() / (1 << 20),
                      100 * sample["page_cache_growth"].get<double>(), sample["detail"].get<std::string>());
    }
  }
  return text;
}

int load_bench_command(const LoadBenchFlags& flags, const runtime::Environment& environment) {
  (void)parse_paths(flags);
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));
  Subject subject(*backend, flags.path, {.allocates = flags.allocate, .is_as_in_files = flags.file_layout});
  expects(subject.tensor_bytes() != 0, "the model has no weights to load");
  Output output("");
  const ordered_json report = report_json(flags, subject, measure(subject, flags));
  output.write(flags.json ? report.dump() + "\n" : as_table(report));
  return kOk;
}

}  // namespace

Action add_load_bench(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<LoadBenchFlags>();
  command.add_option("path", flags->path, "Model directory or .safetensors file")->required();
  command.add_option("--paths", flags->paths, "Which of auto, direct, buffered and mmap, with commas")
      ->capture_default_str();
  command.add_flag("--raw", flags->raw, "Also read the files past the page cache and discard them");
  command.add_flag("--cold-only", flags->cold_only, "Nothing from the page cache");
  command.add_flag("--allocate", flags->allocate, "Allocate the weights' memory within the time");
  command.add_flag("--file-layout", flags->file_layout,
                   "Tensors lie in memory as in their files: host memory is read into directly");
  command.add_option("--runs", flags->runs, "Runs of each, in turns")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  command.add_option(
      "--staging", flags->staging,
      "Staging memory, at most 256M (default: 16M; to a GPU 8M past the page cache, 44M through it)");
  command.add_option("--chunk", flags->chunk,
                     "Bytes of one read (default: 1M; to a GPU 256K past the page cache, 1536K through it)");
  command.add_option("--engine", flags->engine, "What carries reads: auto, io_uring or posix")
      ->check(CLI::IsMember({"auto", "io_uring", "posix"}))
      ->capture_default_str();
  command
      .add_option("--read-threads", flags->read_threads,
                  "Threads that read without io_uring (0: about as many as processors)")
      ->check(CLI::Range(0U, 256U))
      ->capture_default_str();
  command.add_flag("--json", flags->json, "One JSON object");
  add_device_flags(command, flags->device);
  return [flags, environment] { return load_bench_command(*flags, environment); };
}

}  // namespace metrale::app
