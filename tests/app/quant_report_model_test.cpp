// SPDX-License-Identifier: Apache-2.0
// metrale quant-report with a model: what is taken from its attention, and what is said about it.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <quant_report/model.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/engine/attention_probe.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/quant/hadamard.h>
#include <metrale/runtime/runtime.h>

#include "app/program.h"

namespace metrale::test {
namespace {

namespace report = quant_report;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Rows as the decoder shows them: [layer][token * width].
class Recorder final : public engine::AttentionProbe {
 public:
  explicit Recorder(std::size_t layers) : rows(layers) {}
  std::vector<std::vector<float>> rows;

 private:
  void do_take(std::uint32_t layer, std::uint32_t, std::span<const float> qkv) override {
    rows[layer].insert(rows[layer].end(), qkv.begin(), qkv.end());
  }
};

// A tiny model with heads of 64, which every format takes.
struct QuantReportModel : testing::Test {
  explicit QuantReportModel(const char* name = "tiny_base") : tiny(tiny_model(name)) {
    tiny.config["head_dim"] = 64;
    tiny.config["max_position_embeddings"] = 1024;
    write_tiny_model(tiny, model_path());
    dir.write("text.txt", text());
  }

  static std::string text() {
    std::string words;
    for (int i = 0; i < 200; ++i) words += "the " + std::to_string(i * i) + " tints, ";
    return words;
  }
  [[nodiscard]] std::string model_path() const { return dir.file("model"); }
  [[nodiscard]] ProcessResult run(std::vector<std::string> arguments,
                                  const ProcessOptions& options = {}) const {
    arguments.insert(arguments.begin(), {"quant-report", "-o", dir.file("out"), "--vectors", "16", "--keys",
                                         "16", "--queries", "7"});
    return metrale(std::move(arguments), options);
  }
  [[nodiscard]] json document() const { return json::parse(read_file(dir.file("out") + "/report.json")); }

  // The loaded model in this process, by FP32.
  struct Loaded {
    explicit Loaded(const std::string& path)
        : backend(runtime::open_backend({.device = "cpu"})),
          config(engine::load_model_config(path)),
          weights(*backend, config, weights::ModelDirectory::open(path), quant::ElementType::kF32, {}) {}
    ~Loaded() { weights.release(*backend); }
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;
    [[nodiscard]] engine::KvModel model() const {
      return {*backend, config, weights, quant::ElementType::kF32};
    }
    std::unique_ptr<gpu::GpuBackend> backend;
    engine::ModelConfig config;
    engine::ModelWeights weights;
  };

  TempDir dir;
  TinyModel tiny;
};

struct QuantReportWindowedModel : QuantReportModel {
  QuantReportWindowedModel() : QuantReportModel("tiny_mistral") {}
};

std::vector<std::int32_t> some_tokens(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<std::int32_t>((i * 7919 + i * i * 31) % 250);
  return tokens;
}

// All heads of one layer, one after the other, from rows of the probe.
std::vector<float> head_of(const std::vector<float>& rows, std::size_t width, std::size_t head) {
  std::vector<float> x;
  for (std::size_t at = head * 64; at < rows.size(); at += width)
    x.insert(x.end(), rows.begin() + static_cast<std::ptrdiff_t>(at),
             rows.begin() + static_cast<std::ptrdiff_t>(at + 64));
  return x;
}

std::vector<float> through(quant::KvFormat format, quant::KvSide side, const std::vector<float>& x) {
  std::vector<float> diagonal(64);
  for (std::uint32_t i = 0; i < 64; ++i) diagonal[i] = quant::diagonal_sign(42, i);
  std::vector<float> back(x.size());
  quant::round_trip(format, side, 64,
                    {.scale = quant::frozen_scale(format, x), .diagonal = diagonal, .mean = {}}, x, back);
  return back;
}

// Causal attention in a window (0: none) of single positions, as the formulas have it.
struct SlowErrors {
  double squares = 0;
  double scores = 0;
  double kl = 0;
  double queries = 0;
  double output_error = 0;
  double output_power = 0;
};
void add_query(const float* q, std::size_t position, std::size_t window, double scale,
               const std::vector<float>& keys, const std::vector<float>& values,
               const std::vector<float>& other_keys, const std::vector<float>& other_values,
               SlowErrors& errors) {
  const std::size_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
  std::vector<double> p;
  std::vector<double> other_p;
  double total = 0;
  double other_total = 0;
  for (std::size_t key = first; key <= position; ++key) {
    double score = 0;
    double other = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      score += scale * q[i] * keys[key * 64 + i];
      other += scale * q[i] * other_keys[key * 64 + i];
    }
    errors.squares += (score - other) * (score - other);
    ++errors.scores;
    total += p.emplace_back(std::exp(score));
    other_total += other_p.emplace_back(std::exp(other));
  }
  std::vector<double> output(64);
  std::vector<double> other_output(64);
  for (std::size_t n = 0; n < p.size(); ++n) {
    p[n] /= total;
    other_p[n] /= other_total;
    errors.kl += p[n] * std::log(p[n] / other_p[n]);
    for (std::size_t i = 0; i < 64; ++i) {
      output[i] += p[n] * values[(first + n) * 64 + i];
      other_output[i] += other_p[n] * other_values[(first + n) * 64 + i];
    }
  }
  for (std::size_t i = 0; i < 64; ++i) {
    errors.output_error += std::pow(output[i] - other_output[i], 2);
    errors.output_power += output[i] * output[i];
  }
  ++errors.queries;
}

// Compares every layer's figures of turbo4 with slow ones from what a probe saw.
void expect_figures_of_turbo4(const engine::KvModel& model, std::span<const std::int32_t> tokens) {
  ThreadPool pool(2);
  const report::Measurer measurer(pool, {});
  const report::ModelErrors measured = measure_model(model, tokens, 5, measurer, [](std::size_t) {});
  const engine::ModelConfig& config = model.config;
  Recorder recorder(config.num_layers);
  engine::TextRunner runner(
      model, static_cast<std::uint32_t>(tokens.size()),
      std::vector<quant::KvDtype>(config.num_layers, {quant::KvFormat::kFp32, quant::KvFormat::kFp32}),
      nullptr);
  runner.decoder().set_probe(&recorder);
  runner.run(tokens, {});
  const std::size_t group = config.num_q_heads / config.num_kv_heads;
  const std::size_t width = std::size_t{64} * (config.num_q_heads + 2 * config.num_kv_heads);
  const std::vector<report::Variant> variants = report::variants_for(64);
  const auto at = std::ranges::find(variants, "turbo4", &report::Variant::name) - variants.begin();
  ASSERT_EQ(measured.layers.size(), config.num_layers);
  for (std::size_t layer = 0; layer < config.num_layers; ++layer) {
    const std::vector<float>& rows = recorder.rows[layer];
    ASSERT_EQ(rows.size(), tokens.size() * width);
    double rmse = 0;
    double kl = 0;
    double output = 0;
    double key_nmse = 0;
    for (std::size_t kv = 0; kv < config.num_kv_heads; ++kv) {
      const std::vector<float> keys = head_of(rows, width, config.num_q_heads + kv);
      const std::vector<float> values = head_of(rows, width, config.num_q_heads + config.num_kv_heads + kv);
      const std::vector<float> other_keys = through(quant::KvFormat::kTurbo4, quant::KvSide::kKey, keys);
      const std::vector<float> other_values =
          through(quant::KvFormat::kTurbo4, quant::KvSide::kValue, values);
      SlowErrors errors;
      for (std::size_t q = kv * group; q < (kv + 1) * group; ++q) {
        const std::vector<float> queries = head_of(rows, width, q);
        for (std::size_t n = 1; n <= 5; ++n) {
          const std::size_t position = n * tokens.size() / 5 - 1;
          add_query(&queries[position * 64], position, config.layer_windows[layer], config.attention_scale,
                    keys, values, other_keys, other_values, errors);
        }
      }
      const auto heads = static_cast<double>(config.num_kv_heads);
      rmse += std::sqrt(errors.squares / errors.scores) / heads;
      kl += errors.kl / errors.queries / heads;
      output += errors.output_error / errors.output_power / heads;
      key_nmse += quant::squared_error(keys, other_keys).nmse() / heads;
    }
    const report::AttentionError& found = measured.layers[layer].attention[static_cast<std::size_t>(at)];
    EXPECT_NEAR(found.logit_rmse, rmse, 1e-9) << layer;
    EXPECT_NEAR(found.kl, kl, 1e-9) << layer;
    EXPECT_NEAR(found.output, output, 1e-9) << layer;
    const auto nmse =
        std::ranges::find(measured.layers[layer].nmse, quant::KvFormat::kTurbo4, &report::Nmse::format);
    EXPECT_NEAR(nmse->keys, key_nmse, 1e-12) << layer;
    EXPECT_GT(rmse, 0);
  }
}

TEST_F(QuantReportModel, FiguresAreThoseOfCausalAttentionOverWhatTheDecoderShows) {
  const Loaded loaded(model_path());
  expect_figures_of_turbo4(loaded.model(), some_tokens(90));
}

TEST_F(QuantReportModel, TextsOfManyStepsAreSeenWhole) {
  const Loaded loaded(model_path());
  expect_figures_of_turbo4(loaded.model(), some_tokens(601));
}

TEST_F(QuantReportWindowedModel, LayersWithAWindowSeeNoFurther) {
  const Loaded loaded(model_path());
  ASSERT_NE(loaded.config.layer_windows[0], 0U);
  ASSERT_LT(loaded.config.layer_windows[0], 90U);
  expect_figures_of_turbo4(loaded.model(), some_tokens(90));
}

TEST_F(QuantReportModel, ReportHasEveryLayerAndTheirMean) {
  const ProcessResult result =
      run({"-m", model_path(), "-f", dir.file("text.txt"), "--tokens", "120", "--dtype", "fp32"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json model = document()["model"];
  EXPECT_EQ(model["model"], model_path());
  EXPECT_EQ(model["text"], dir.file("text.txt"));
  EXPECT_EQ(model["dtype"], "fp32");
  EXPECT_EQ(model["tokens"], 120);
  EXPECT_EQ(model["queries"], 7);
  EXPECT_TRUE(model["not_measured"].empty());
  ASSERT_EQ(model["by_layer"].size(), 3U);
  double sum = 0;
  for (const json& layer : model["by_layer"]) {
    EXPECT_EQ(layer["nmse"].size(), quant::kKvFormats.size());
    EXPECT_EQ(layer["attention"].size(), report::variants_for(64).size());
    sum += layer["nmse"][4]["keys"].get<double>();
  }
  EXPECT_EQ(model["mean"]["nmse"][4]["format"], "nvfp4");
  EXPECT_DOUBLE_EQ(model["mean"]["nmse"][4]["keys"].get<double>(), sum / 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("120 tokens of"), HasSubstr("turbo4 + equaliser")));
  EXPECT_THAT(read_file(dir.file("out") + "/index.html"), HasSubstr("Error of the logits, by layer"));
}

TEST_F(QuantReportModel, NamesAreEscapedOnThePage) {
  dir.write("<b>&.txt", text());
  ASSERT_EQ(run({"-m", model_path(), "-f", dir.file("<b>&.txt"), "--tokens", "20"}).exit_code, 0);
  EXPECT_THAT(read_file(dir.file("out") + "/index.html"),
              AllOf(HasSubstr("&lt;b&gt;&amp;.txt"), Not(HasSubstr("<b>&.txt"))));
}

TEST_F(QuantReportModel, FormatsThatDoNotTakeTheHeadDimAreNamedAndLeftOut) {
  write_tiny_model(tiny_model("tiny_base"), dir.file("small"));  // heads of 16
  const ProcessResult result = run({"-m", dir.file("small"), "-f", dir.file("text.txt"), "--tokens", "50"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json model = document()["model"];
  EXPECT_EQ(model["not_measured"].size(), 3U);
  EXPECT_EQ(model["mean"]["nmse"].size(), 8U);
  EXPECT_EQ(document()["not_measured"].size(), 0U);
  EXPECT_THAT(result.out, HasSubstr("turbo3 has no vectors of head_dim 16"));
  EXPECT_THAT(read_file(dir.file("out") + "/index.html"), HasSubstr("turbo4 has no vectors of head_dim 16"));
}

TEST_F(QuantReportModel, TextFromStandardInputIsTheSame) {
  ASSERT_EQ(run({"-m", model_path(), "-f", dir.file("text.txt"), "--tokens", "30"}).exit_code, 0);
  json from_file = document()["model"];
  ASSERT_EQ(run({"-m", model_path(), "-f", "-", "--tokens", "30"}, {.input = text()}).exit_code, 0);
  json from_input = document()["model"];
  EXPECT_EQ(from_input["text"], "standard input");
  from_file.erase("text");
  from_input.erase("text");
  EXPECT_EQ(from_file, from_input);
}

TEST_F(QuantReportModel, BadFlagsAndFilesAreNamedAndLeaveNothing) {
  const std::string text_file = dir.file("text.txt");
  dir.write("empty.txt", "");
  const auto refused = [&](std::vector<std::string> arguments, int code, const char* message) {
    const ProcessResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(dir.file("out")));
  };
  refused({"-m", model_path()}, 2, "--file");
  refused({"-f", text_file}, 2, "--model");
  refused({"-m", model_path(), "-f", text_file, "--tokens", "1"}, 2, "--tokens");
  refused({"-m", model_path(), "-f", text_file, "--tokens", "1025"}, 2, "--tokens 1025");
  refused({"-m", model_path(), "-f", dir.file("empty.txt"), "--tokens", "30"}, 2, "--file");
  refused({"-m", model_path(), "-f", dir.file("absent.txt")}, 4, "absent.txt");
  refused({"-m", dir.file("absent"), "-f", text_file}, 4, "absent");
  refused({"-m", model_path(), "-f", text_file, "--device", "abacus"}, 2, "abacus");
}

TEST_F(QuantReportModel, InterruptLeavesNothing) {
  const ProcessResult result =
      metrale({"quant-report", "-m", model_path(), "-f", dir.file("text.txt"), "-o", dir.file("out"),
               "--vectors", "100000"},
              {.environment = {"METRALE_LOG=info"}, .signal = SIGINT, .signal_after = "loaded; measuring"});
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_FALSE(std::filesystem::exists(dir.file("out")));
}

}  // namespace
}  // namespace metrale::test
