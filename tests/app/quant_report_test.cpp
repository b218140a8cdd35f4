// SPDX-License-Identifier: Apache-2.0
// metrale quant-report: what it writes, and that its figures are those of the measures.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <quant_report/report.h>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/quant/hadamard.h>

#include "app/program.h"

namespace metrale::test {
namespace {

namespace report = quant_report;
using nlohmann::json;
using report::Draw;
using report::Kind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kDim = 64;

// But for the order in which sums are taken.
void expect_same(double value, double expected) {
  EXPECT_NEAR(value, expected, 1e-12 * expected);
}

double column_mean_square(const std::vector<float>& x, std::size_t column) {
  double sum = 0;
  for (std::size_t i = column; i < x.size(); i += kDim) sum += double{x[i]} * x[i];
  return sum * kDim / static_cast<double>(x.size());
}

TEST(QuantReportData, DependsOnKindSeedAndDrawOnly) {
  for (const report::KindInfo& kind : report::kKinds) {
    const std::vector<float> few = make_vectors(kind.kind, kDim, 3, 7, Draw::kKeys);
    const std::vector<float> more = make_vectors(kind.kind, kDim, 9, 7, Draw::kKeys);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), more.begin())) << kind.name;
    EXPECT_NE(few, make_vectors(kind.kind, kDim, 3, 8, Draw::kKeys)) << kind.name;
    EXPECT_NE(few, make_vectors(kind.kind, kDim, 3, 7, Draw::kValues)) << kind.name;
  }
}

TEST(QuantReportData, IndependentKindsHaveTheirMoments) {
  const auto fourth_moment = [](Kind kind) {
    const std::vector<float> x = make_vectors(kind, kDim, 2000, 1, Draw::kErrors);
    double mean = 0;
    double second = 0;
    double fourth = 0;
    for (const double v : x) {
      mean += v;
      second += v * v;
      fourth += v * v * v * v;
    }
    const auto count = static_cast<double>(x.size());
    EXPECT_NEAR(mean / count, 0, 0.02);
    EXPECT_NEAR(second / count, 1, 0.06);
    return fourth / count;
  };
  EXPECT_NEAR(fourth_moment(Kind::kGaussian), 3, 0.1);
  EXPECT_NEAR(fourth_moment(Kind::kLaplace), 6, 0.5);
  EXPECT_GT(fourth_moment(Kind::kStudentT3), 9);  // has none in the limit
}

TEST(QuantReportData, FourChannelsAreLargeAndTheSameOnesInEveryDraw) {
  const auto large = [](Kind kind, Draw draw) {
    const std::vector<float> x = make_vectors(kind, kDim, 500, 3, draw);
    std::set<std::size_t> channels;
    for (std::size_t i = 0; i < kDim; ++i) {
      if (column_mean_square(x, i) > 100) channels.insert(i);
    }
    return channels;
  };
  EXPECT_EQ(large(Kind::kOutliers, Draw::kKeys).size(), 4U);
  EXPECT_EQ(large(Kind::kOutliers, Draw::kKeys), large(Kind::kOutliers, Draw::kErrors));
  EXPECT_EQ(large(Kind::kBias, Draw::kKeys).size(), 4U);
  EXPECT_EQ(large(Kind::kOneChannel, Draw::kKeys).size(), 1U);
  EXPECT_EQ(large(Kind::kRopePairs, Draw::kKeys), (std::set<std::size_t>{8, 16, 8 + 32, 16 + 32}));
  EXPECT_TRUE(large(Kind::kGaussian, Draw::kKeys).empty());
}

TEST(QuantReportData, QwenLikeKeysHaveTheNormsThatTheyAreNamedFor) {
  const std::vector<float> x = make_vectors(Kind::kQwenLike, kDim, 500, 3, Draw::kKeys);
  double rest = 0;
  for (std::size_t i = 0; i < kDim; ++i) {
    if (i % 32 != 8 && i % 32 != 16) rest += column_mean_square(x, i);
  }
  EXPECT_NEAR(std::sqrt(rest * kDim / (kDim - 4)), 22, 0.5);
  for (std::size_t n = 0; n < 500; n += 99) {
    for (const std::size_t pair : {8, 16})
      EXPECT_NEAR(std::hypot(x[n * kDim + pair], x[n * kDim + pair + 32]), 600, 12);
  }
}

TEST(QuantReportData, QueriesGiveLogitsOfTheSpreadThatIsAskedFor) {
  const std::vector<float> keys = make_vectors(Kind::kOutliers, kDim, 400, 1, Draw::kKeys);
  for (const bool whitened : {false, true}) {
    const std::vector<float> queries = report::make_queries(kDim, 20, 1, keys, whitened, 2);
    double variance = 0;
    for (std::size_t query = 0; query < 20; ++query) {
      double sum = 0;
      double squares = 0;
      for (std::size_t key = 0; key < 400; ++key) {
        double logit = 0;
        for (std::size_t i = 0; i < kDim; ++i)
          logit += double{queries[query * kDim + i]} * keys[key * kDim + i] / 8;
        sum += logit;
        squares += logit * logit;
      }
      variance += squares / 400 - std::pow(sum / 400, 2);
    }
    EXPECT_NEAR(std::sqrt(variance / 20), 2, 1e-3);
  }
  const std::vector<float> white = report::make_queries(kDim, 400, 1, keys, true, 2);
  double least = 1e9;
  double most = 0;
  for (std::size_t i = 0; i < kDim; ++i) {
    const double product = column_mean_square(white, i) * column_mean_square(keys, i);
    least = std::min(least, product);
    most = std::max(most, product);
  }
  EXPECT_LT(most / least, 2);
}

TEST(QuantReportVariants, AreEveryFormatEveryPairAndWhatCanBeEqualised) {
  const std::vector<report::Variant> variants = report::variants_for(128);
  EXPECT_EQ(variants.size(), 11 + 9 + 5 + 11 + 11U);
  EXPECT_TRUE(report::why_not_measured(128).empty());
  EXPECT_EQ(report::bits_per_element(quant::KvFormat::kTurbo4, 128), 4.5);
  EXPECT_EQ(report::bits_per_element(quant::KvFormat::kTurbo8, 128), 8.125);
  for (const report::Variant& variant : variants) {
    if (variant.name == "bf16k_turbo3v") {
      EXPECT_EQ(report::bits_per_element(variant, 128), 9.75);
    }
    if (variant.name == "turbo2 values") {
      EXPECT_EQ(report::bits_per_element(variant, 128), 2.5);
    }
    if (variant.name == "turbo2 keys") {
      EXPECT_EQ(report::bits_per_element(variant, 128), 2.5);
    }
  }
  EXPECT_EQ(report::why_not_measured(32).size(), 3U);
  EXPECT_EQ(report::variants_for(32).size(), 8 + 0 + 2 + 8 + 8U);
}

struct QuantReport : ProgramTest {
  // On few vectors.
  [[nodiscard]] ProcessResult run(std::vector<std::string> arguments,
                                  const ProcessOptions& options = {}) const {
    arguments.insert(arguments.begin(), {"quant-report", "-o", out()});
    for (const char* size : {"--vectors", "--keys", "--queries"}) {
      if (std::ranges::find(arguments, size) == arguments.end())
        arguments.insert(arguments.end(), {size, size == std::string("--queries") ? "5" : "70"});
    }
    return metrale(std::move(arguments), options);
  }
  [[nodiscard]] std::string out() const { return dir.file("out"); }
  [[nodiscard]] json document() const { return json::parse(read_file(out() + "/report.json")); }
  [[nodiscard]] std::string page() const { return read_file(out() + "/index.html"); }

  void expect_refused(std::vector<std::string> arguments, const char* message) const {
    const ProcessResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err + result.out, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(out()));
  }
};

TEST_F(QuantReport, HasEveryFormatOfEveryKindAndEveryVariantOfEveryScene) {
  const ProcessResult result = run({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json object = document();
  EXPECT_EQ(object["metrale_quant_report"], 1);
  EXPECT_EQ(object["options"]["vectors"], 70);
  EXPECT_TRUE(object["version"].is_string());
  EXPECT_TRUE(object["model"].is_null());
  EXPECT_EQ(object["nmse"].size(), 9 * 11U);
  EXPECT_EQ(object["attention"].size(), 10 * 47U);
  std::set<std::string> formats;
  for (const json& row : object["nmse"]) {
    formats.insert(row["format"]);
    EXPECT_GE(row["keys"], 0.0);
    EXPECT_LT(row["keys"], 0.1) << row;
    EXPECT_LT(row["values"], 0.1) << row;
    EXPECT_EQ(row["format"] == "fp32", row["keys"] == 0.0) << row;
  }
  EXPECT_EQ(formats.size(), quant::kKvFormats.size());
  std::set<std::string> names;
  for (const json& row : object["attention"]) {
    names.insert(row["name"]);
    EXPECT_TRUE(row["logit_rmse"].is_number() && row["kl"].is_number() && row["output_error"].is_number());
    EXPECT_EQ(row["group"] == "values" || row["k"] == "fp32", row["logit_rmse"] == 0.0) << row;
  }
  for (const quant::KvPairName& pair : quant::kKvPairNames)
    EXPECT_EQ(names.count(std::string(pair.name)), 1U) << pair.name;
  EXPECT_EQ(names.count("turbo4 + equaliser"), 1U);
  EXPECT_THAT(result.out, AllOf(HasSubstr("nvfp4 / turbo4"), HasSubstr("turbo8i")));
}

TEST_F(QuantReport, FiguresAreThoseOfTheMeasures) {
  ASSERT_EQ(run({"--head-dim", "64", "--seed", "5"}).exit_code, 0);
  const json object = document();
  const std::vector<float> x = make_vectors(Kind::kLaplace, kDim, 70, 5, Draw::kErrors);
  std::vector<float> diagonal(kDim);
  for (std::uint32_t i = 0; i < kDim; ++i) diagonal[i] = quant::diagonal_sign(42, i);
  std::size_t found = 0;
  for (const json& row : object["nmse"]) {
    if (row["data"] != "laplace") continue;
    const quant::KvFormat format = *quant::parse_kv_format(row["format"].get<std::string>());
    const quant::KvHeadParams params{
        .scale = quant::frozen_scale(format, x), .diagonal = diagonal, .mean = {}};
    std::vector<float> back(x.size());
    quant::round_trip(format, quant::KvSide::kKey, kDim, params, x, back);
    expect_same(row["keys"], quant::squared_error(x, back).nmse());
    quant::round_trip(format, quant::KvSide::kValue, kDim, params, x, back);
    expect_same(row["values"], quant::squared_error(x, back).nmse());
    ++found;
  }
  EXPECT_EQ(found, quant::kKvFormats.size());

  const std::vector<float> keys = make_vectors(Kind::kOutliers, kDim, 70, 5, Draw::kKeys);
  const std::vector<float> values = make_vectors(Kind::kVLike, kDim, 70, 5, Draw::kValues);
  const std::vector<float> queries = report::make_queries(kDim, 5, 5, keys, true, 2);
  std::vector<float> key_back(keys.size());
  std::vector<float> value_back(values.size());
  const quant::KvHeadParams params{.diagonal = diagonal, .mean = {}};
  quant::round_trip(quant::KvFormat::kTurbo4, quant::KvSide::kKey, kDim, params, keys, key_back);
  quant::round_trip(quant::KvFormat::kTurbo3, quant::KvSide::kValue, kDim, params, values, value_back);
  const quant::AttentionReference reference(
      {.head_dim = kDim, .scale = 0.125, .queries = queries, .keys = keys, .values = values, .visible = {}});
  const auto with = reference.with_keys(key_back);
  for (const json& row : object["attention"]) {
    if (row["data"] != "outliers_x20_white" || row["name"] != "turbo4k_turbo3v") continue;
    expect_same(row["logit_rmse"], with.logit_rmse);
    expect_same(row["kl"], with.kl);
    expect_same(row["output_error"], reference.output_error(with.weights, value_back).nmse());
    ++found;
  }
  EXPECT_EQ(found, quant::kKvFormats.size() + 1);
}

// What the research behind the formats found, with room for few vectors.
TEST_F(QuantReport, TurboFourLosesHalfOfWhatNvfp4DoesAndTheEqualiserSavesItsKeys) {
  const ProcessResult result = run({"--vectors", "400", "--keys", "400", "--queries", "20", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(result.out);
  EXPECT_EQ(summary["formats"].size(), quant::kKvFormats.size());
  EXPECT_NEAR(summary["nvfp4_over_turbo4"]["keys"].get<double>(), 2.33, 0.1);
  EXPECT_NEAR(summary["nvfp4_searched_over_turbo4"]["values"].get<double>(), 1.67, 0.1);
  const json object = document();
  EXPECT_EQ(object["summary"], summary);
  const auto rmse = [&](const std::string& data, const std::string& name) {
    for (const json& row : object["attention"]) {
      if (row["data"] == data && row["name"] == name) return row["logit_rmse"].get<double>();
    }
    return std::nan("");
  };
  const auto nmse = [&](const std::string& data, const std::string& format, const char* side) {
    for (const json& row : object["nmse"]) {
      if (row["data"] == data && row["format"] == format) return row[side].get<double>();
    }
    return std::nan("");
  };
  for (const char* data : {"gaussian", "laplace", "student_t3", "outliers_x20"}) {
    for (const char* side : {"keys", "values"}) {
      EXPECT_GE(nmse(data, "nvfp4", side) / nmse(data, "turbo4", side), 2.1) << data << " " << side;
    }
  }
  EXPECT_NEAR(rmse("gaussian", "turbo4"), 0.124, 0.01);
  EXPECT_NEAR(rmse("qwen_like_white", "fp8"), 0.053, 0.005);
  EXPECT_GT(rmse("qwen_like_white", "turbo8"), 1);
  EXPECT_LT(rmse("qwen_like_white", "turbo8 + equaliser"), 0.06);
  EXPECT_LT(rmse("qwen_like_white", "turbo4 + equaliser"), 0.2);
  EXPECT_GT(rmse("outliers_x20_white", "turbo4"), 3 * rmse("outliers_x20_white", "turbo4 + equaliser"));
}

TEST_F(QuantReport, ThreadsDoNotChangeTheFigures) {
  ASSERT_EQ(run({"--threads", "1"}).exit_code, 0);
  const std::string first = read_file(out() + "/report.json") + page();
  ASSERT_EQ(run({"--threads", "3"}).exit_code, 0);
  EXPECT_EQ(read_file(out() + "/report.json") + page(), first);
}

TEST_F(QuantReport, EveryHeadDimHasItsReport) {
  for (const char* head_dim : {"64", "80", "96", "192", "256", "512"}) {
    ASSERT_EQ(run({"--head-dim", head_dim, "--vectors", "9", "--keys", "9", "--queries", "2"}).exit_code, 0);
    EXPECT_EQ(document()["options"]["head_dim"], std::stoi(head_dim));
    EXPECT_EQ(document()["nmse"].size(), 9 * 11U);
  }
}

TEST_F(QuantReport, PageNeedsNoOtherFile) {
  ASSERT_EQ(run({}).exit_code, 0);
  for (const char* reference : {"http:", "https:", "url(", "src=", "href=", "@import", "<script"})
    EXPECT_THAT(page(), Not(HasSubstr(reference)));
  EXPECT_THAT(page(), AllOf(HasSubstr("<svg"), HasSubstr("prefers-color-scheme: dark"),
                            HasSubstr("turbo4k_turbo3v"), HasSubstr("qwen_like_white")));
  EXPECT_THAT(page(), Not(HasSubstr("nan")));
}

TEST_F(QuantReport, ReplacesItsOwnFilesAndNoOthersUnlessForced) {
  ASSERT_EQ(run({}).exit_code, 0);
  ASSERT_EQ(run({"--seed", "1"}).exit_code, 0);
  EXPECT_EQ(document()["options"]["seed"], 1);
  dir.write("out/index.html", "<h1>my page</h1>");
  const ProcessResult refused = run({"--seed", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("index.html"), HasSubstr("--force")));
  EXPECT_EQ(page(), "<h1>my page</h1>");
  EXPECT_EQ(document()["options"]["seed"], 1);
  ASSERT_EQ(run({"--force"}).exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("<svg"));
}

TEST_F(QuantReport, BadFlagsAreNamed) {
  expect_refused({"--head-dim", "100"}, "--head-dim");
  expect_refused({"--vectors", "0"}, "--vectors");
  expect_refused({"--keys", "1"}, "--keys");
  expect_refused({"--queries", "0"}, "--queries");
  expect_refused({"--seed", "-1"}, "--seed");
  expect_refused({"--cpus", "x"}, "--cpus");
  EXPECT_THAT(metrale({"quant-report"}).err, HasSubstr("--output"));
  EXPECT_EQ(metrale({"quant-report"}).exit_code, 2);
  dir.write("file", "");
  const ProcessResult no_directory = metrale({"quant-report", "-o", dir.file("file")});
  EXPECT_NE(no_directory.exit_code, 0);
  EXPECT_THAT(no_directory.err, HasSubstr("file"));
  EXPECT_EQ(metrale({"quant-report", "-o", dir.file("no/out")}).exit_code, 4);
}

TEST_F(QuantReport, InterruptLeavesNothing) {
  const ProcessResult result =
      run({"--vectors", "100000"},
          {.environment = {"METRALE_LOG=info"}, .signal = SIGINT, .signal_after = "measuring"});
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_FALSE(std::filesystem::exists(out()));
}

}  // namespace
}  // namespace metrale::test
