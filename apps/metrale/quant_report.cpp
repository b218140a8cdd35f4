// SPDX-License-Identifier: Apache-2.0
// metrale quant-report: how much each format of the KV cache costs in accuracy, as tables and drawings.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/base/thread_pool.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/tokenizer.h>
#include <metrale/gpu/resource.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "prompts.h"
#include "quant_report/model.h"

namespace metrale::app {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kDefaultTokens = 1024;

struct QuantReportFlags {
  std::string directory;
  bool force = false;
  bool json = false;
  quant_report::SyntheticOptions synthetic;
  std::string model;
  std::string file;
  std::optional<std::uint32_t> tokens;
  EngineFlags engine;
  DeviceFlags device;
};

// A directory that goes again if nothing was written and it was not there before.
class ReportDirectory {
 public:
  explicit ReportDirectory(const std::string& path) : path_(path) {
    std::error_code failed;
    made_ = fs::create_directory(path_, failed);
    if (failed) throw IoError("cannot create", path_, failed.value());
    if (!fs::is_directory(path_))
      throw InvalidArgument(fmt::format("--output: '{}' is there and is no directory", path_));
  }
  ~ReportDirectory() {
    std::error_code ignored;
    if (made_ && !kept_) fs::remove(path_, ignored);
  }
  ReportDirectory(const ReportDirectory&) = delete;
  ReportDirectory& operator=(const ReportDirectory&) = delete;

  [[nodiscard]] std::string file(const char* name) const { return (fs::path(path_) / name).string(); }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool made_ = false;
  bool kept_ = false;
};

void check_replaceable(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return;
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  if (quant_report::is_report(head)) return;
  throw InvalidArgument(fmt::format("--output: '{}' is there and no report; --force replaces it", path));
}

quant_report::SyntheticErrors measure_synthetic(const QuantReportFlags& flags,
                                                const quant_report::Measurer& measurer) {
  log().info("measuring vectors that are made");
  ProgressLine progress("measuring");
  return quant_report::measure_synthetic(flags.synthetic, measurer, [&](std::size_t done, std::size_t total) {
    progress.show([&] { return fmt::format("{} of {} kinds of data", done, total); });
  });
}

// The first tokens of the text.
std::vector<std::int32_t> read_tokens(const QuantReportFlags& flags, const engine::ModelConfig& config) {
  const engine::Tokenizer tokenizer =
      engine::Tokenizer::load((fs::path(flags.model) / "tokenizer.json").string());
  const std::uint32_t most = flags.tokens.value_or(std::min(kDefaultTokens, config.max_positions()));
  if (most > config.max_positions()) {
    throw InvalidArgument(
        fmt::format("--tokens {} is beyond the {} positions of the model", most, config.max_positions()));
  }
  std::vector<std::int32_t> tokens = tokenizer.encode(read_source(flags.file));
  if (tokens.size() < 2) {
    throw InvalidArgument(
        fmt::format("--file: '{}' has {} tokens; attention needs two at least", flags.file, tokens.size()));
  }
  tokens.resize(std::min<std::size_t>(tokens.size(), most));
  return tokens;
}

quant_report::ModelErrors measure_model(const QuantReportFlags& flags,
                                        const runtime::BackendOptions& backend_options,
                                        const quant_report::Measurer& measurer) {
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const std::vector<std::int32_t> tokens = read_tokens(flags, config);
  const auto backend = runtime::open_backend(backend_options);
  const auto directory = weights::ModelDirectory::open(flags.model);
  const quant::ElementType compute =
      compute_type(flags.engine).value_or(engine::default_compute(config, directory));
  ProgressLine loading("loading");
  weights::LoadOptions load = load_options(flags.engine);
  load.progress = [&](std::uint64_t done, std::uint64_t total) {
    loading.update(done, total);
    return !interrupted();
  };
  engine::ModelWeights weights(*backend, config, directory, compute, load);
  loading.clear();
  log().info("loaded; measuring {} tokens", tokens.size());
  ProgressLine progress("measuring");
  quant_report::ModelErrors errors = quant_report::measure_model(
      {*backend, config, weights, compute}, tokens, flags.synthetic.queries, measurer, [&](std::size_t done) {
        progress.show([&] { return fmt::format("{} of {} layers", done, config.num_layers); });
      });
  progress.clear();
  errors.model = flags.model;
  errors.text = flags.file == "-" ? "standard input" : flags.file;
  errors.device = backend->name();
  errors.compute = quant::to_string(compute);
  errors.architecture = config.architecture;
  gpu::Teardown teardown;
  teardown.add(weights);
  teardown.release_all(*backend);
  return errors;
}

int write_report(const QuantReportFlags& flags, const runtime::Environment& environment) {
  if (flags.model.empty() != flags.file.empty()) throw InvalidArgument("--model and --file go together");
  const runtime::BackendOptions backend = backend_options(flags.device, environment);
  ReportDirectory directory(flags.directory);
  const std::string json_path = directory.file("report.json");
  const std::string html_path = directory.file("index.html");
  if (!flags.force) {
    check_replaceable(json_path);
    check_replaceable(html_path);
  }
  Output json(json_path);
  Output html(html_path);

  ThreadPool pool(ThreadPoolOptions{.threads = backend.threads, .cpus = backend.cpus});
  const quant_report::Measurer measurer(pool, [] { return !interrupted(); });
  quant_report::Report report{.version = METRALE_VERSION, .synthetic = {}, .model = std::nullopt};
  if (!flags.model.empty()) report.model = measure_model(flags, backend, measurer);
  report.synthetic = measure_synthetic(flags, measurer);
  json.write(quant_report::to_json(report));
  html.write(quant_report::to_html(report));
  json.commit();
  directory.keep();
  html.commit();
  Output("").write(flags.json ? quant_report::summary_json(report) : quant_report::to_text(report));
  return kOk;
}

}  // namespace

Action add_quant_report(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<QuantReportFlags>();
  command
      .add_option("-o,--output", flags->directory,
                  "Directory for report.json and index.html; made where it is absent")
      ->required();
  command.add_option("-m,--model", flags->model,
                     "Model directory (config.json, safetensors, tokenizer.json) to measure as well");
  command.add_option("-f,--file", flags->file, "Text that the model is run on (- is standard input)");
  command
      .add_option("--tokens", flags->tokens,
                  "Most tokens of the text that are used (default: 1024, or what the model takes)")
      ->check(CLI::Range(2U, 1U << 20));
  command.add_option("--dtype", flags->engine.dtype, "Computation of the model: auto, bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
  command.add_flag("--force", flags->force, "Replace files of these names that are no report");
  command.add_flag("--json", flags->json, "Print the summary as one JSON object");
  command.add_option("--head-dim", flags->synthetic.head_dim, "Dimensions of the vectors that are made")
      ->check(CLI::IsMember({64, 80, 96, 128, 192, 256, 512}))
      ->capture_default_str();
  command
      .add_option("--vectors", flags->synthetic.vectors,
                  "Vectors of each kind for the errors of reconstruction")
      ->check(CLI::Range(1U, 1U << 18))
      ->capture_default_str();
  command.add_option("--keys", flags->synthetic.keys, "Keys that attention over vectors that are made sees")
      ->check(CLI::Range(2U, 1U << 16))
      ->capture_default_str();
  command
      .add_option("--queries", flags->synthetic.queries,
                  "Queries of each head, at most: positions at even distances of a text")
      ->check(CLI::Range(1U, 1U << 16))
      ->capture_default_str();
  add_seed_flag(command, flags->synthetic.seed, "Seed of the vectors that are made");
  add_device_flags(command, flags->device);
  return [flags, environment] { return write_report(*flags, environment); };
}

}  // namespace metrale::app
