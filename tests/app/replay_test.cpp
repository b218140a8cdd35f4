// SPDX-License-Identifier: Apache-2.0
// metrale replay over a tiny model: what it reports about hits, waits, ends and failures.
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <replay/replayer.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/clock.h>
#include <metrale/engine/engine.h>
#include <metrale/runtime/runtime.h>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kHeader = "{\"metrale_trace\":1,\"vocab\":512,\"seed\":5}\n";

struct Replay : ProgramTest {
  // Writes a trace of these request lines and replays it with --json.
  [[nodiscard]] ProcessResult run(const std::string& lines, std::vector<std::string> flags = {},
                                  const ProcessOptions& options = {}) const {
    dir.write("t.jsonl", kHeader + lines);
    return run_file(std::move(flags), options);
  }
  [[nodiscard]] ProcessResult run_file(std::vector<std::string> flags,
                                       const ProcessOptions& options = {}) const {
    flags.insert(flags.begin(), {"replay", "-m", model(), dir.file("t.jsonl"), "--json"});
    return metrale(flags, options);
  }
  // A generated trace, as t.jsonl.
  void make(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"trace", "--vocab", "512", "-o", dir.file("t.jsonl")});
    const ProcessResult made = metrale(flags);
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
};

json report_of(const ProcessResult& result, int exit_code = 0) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(exit_code != 0 || result.err.empty(), true) << result.err;
  return json::parse(result.out);
}

TEST_F(Replay, SharedPromptsHitWithTheCacheAndNotWithout) {
  make({"--kind", "system", "--requests", "12", "--shared-prompts", "1", "--shared-tokens", "64",
        "--own-tokens", "5", "--output-tokens", "4", "--rate", "1000"});
  const json with = report_of(run_file({"--speed", "max", "--max-batch-size", "2"}));
  const json without =
      report_of(run_file({"--speed", "max", "--max-batch-size", "2", "--no-prefix-caching"}));
  // All but those of the first step find the 64 tokens.
  EXPECT_GE(with["prefix_cache"]["requests_with_hits"], 10);
  EXPECT_GE(with["prefix_cache"]["token_hit_rate"], 0.75);
  EXPECT_EQ(with["tokens"]["cached"].get<int>() % 16, 0);
  EXPECT_EQ(without["tokens"]["cached"], 0);
  EXPECT_EQ(without["prefix_cache"]["request_hit_rate"], 0);
  EXPECT_EQ(with["tokens"]["output"], 48);
  EXPECT_EQ(without["tokens"]["output"], 48);
  EXPECT_LT(with["engine"]["computed_tokens"], without["engine"]["computed_tokens"]);
}

TEST_F(Replay, ChildWaitsForItsParentAndFindsWhatItSaid) {
  const json report = report_of(run(
      R"({"id":5,"arrival":0,"prompt":[{"stream":1,"tokens":40}],"max_tokens":30}
{"id":6,"parent":5,"think":0.02,"prompt":[{"stream":2,"tokens":3}],"max_tokens":2})"));
  const json& parent = report["per_request"][0];
  const json& child = report["per_request"][1];
  EXPECT_GE(child["due"], parent["ended"].get<double>() + 0.02 - 1e-9);
  EXPECT_GE(child["started"], child["due"]);
  EXPECT_EQ(child["prompt_tokens"], 40 + 30 + 3);
  EXPECT_GE(child["cached_tokens"], 64);  // into the parent's answer
}

TEST_F(Replay, TimesAreDividedByTheSpeed) {
  const std::string lines = R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":1}
{"id":1,"arrival":0.3,"prompt":[{"stream":2,"tokens":4}],"max_tokens":1}
{"id":2,"parent":1,"think":0.6,"max_tokens":1})";
  const json slow = report_of(run(lines, {"--speed", "3"}));
  EXPECT_DOUBLE_EQ(slow["per_request"][1]["due"].get<double>(), 0.1);
  EXPECT_GE(slow["wall_seconds"], 0.3);
  const json at_once = report_of(run(lines, {"--speed", "max"}));
  EXPECT_EQ(at_once["per_request"][1]["due"], 0);
  EXPECT_EQ(at_once["per_request"][2]["due"], at_once["per_request"][1]["ended"]);
  EXPECT_EQ(at_once["conditions"]["speed"], "max");
}

TEST_F(Replay, ClientsThatGoLeaveAPartOfTheirAnswer) {
  const json report = report_of(run(
      R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":200,"cancel_after":3}
{"id":1,"arrival":0,"prompt":[{"stream":2,"tokens":4}],"max_tokens":5,"cancel_after":0}
{"id":2,"arrival":0,"prompt":[{"stream":3,"tokens":4}],"max_tokens":5}
{"id":3,"parent":0,"max_tokens":2}
{"id":4,"parent":1,"prompt":[{"stream":4,"tokens":1}],"max_tokens":2})"));
  EXPECT_EQ(report["requests"]["cancelled"], 2);
  EXPECT_EQ(report["requests"]["finished"], 3);
  const json& each = report["per_request"];
  EXPECT_EQ(each[0]["outcome"], "cancelled");
  EXPECT_GE(each[0]["output_tokens"], 3);
  EXPECT_LE(each[0]["output_tokens"], 5);
  EXPECT_EQ(each[1]["output_tokens"], 0);
  EXPECT_TRUE(each[1]["first_token"].is_null());
  // What follows them goes on from what there is.
  EXPECT_EQ(each[3]["prompt_tokens"], 4 + each[0]["output_tokens"].get<int>());
  EXPECT_EQ(each[4]["prompt_tokens"], 5);
}

TEST_F(Replay, RequestsThatTakeTooLongTimeOut) {
  const json report = report_of(
      run(R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":500,"timeout":0.000001})"));
  EXPECT_EQ(report["requests"]["timeout"], 1);
  EXPECT_EQ(report["per_request"][0]["outcome"], "timeout");
}

TEST_F(Replay, AnswersAreTheSameAloneWhateverTheCacheAndThePoolDo) {
  make({"--kind",        "mix",  "--seed",          "4",     "--requests", "60",  "--shared-tokens", "40",
        "--own-tokens",  "3:20", "--output-tokens", "20:60", "--steps",    "2:4", "--turns",         "2:3",
        "--cancel-rate", "0.1",  "--tenants",       "2"});
  const json report = report_of(run_file({"--speed", "max", "--verify", "--kv-blocks", "24",
                                          "--max-batch-size", "8", "--max-batch-tokens", "48"}));
  EXPECT_EQ(report["verification"]["different_answers"], 0);
  EXPECT_GT(report["verification"]["tokens"], 200);
  EXPECT_GT(report["prefix_cache"]["evicted_blocks"], 0);
  EXPECT_GT(report["engine"]["preemptions"], 0);
  EXPECT_EQ(report["requests"]["ended"], 60);
  EXPECT_LE(report["engine"]["peak_held_blocks"], 24);
}

TEST_F(Replay, EveryKindRunsAndSharesWithinItself) {
  for (const char* kind : {"system", "chat", "agent", "fork"}) {
    make({"--kind", kind, "--requests", "16", "--shared-tokens", "32", "--own-tokens", "4:8",
          "--output-tokens", "4:8", "--steps", "2:4", "--turns", "2:4"});
    const json report = report_of(run_file({"--speed", "max", "--max-batch-size", "4"}));
    EXPECT_EQ(report["requests"]["finished"], 16) << kind;
    EXPECT_GT(report["tokens"]["cached"], 0) << kind;
    EXPECT_EQ(
        report["conditions"]["note"].get<std::string>().find("metrale trace --kind " + std::string(kind)),
        0U);
  }
}

TEST_F(Replay, SummaryGoesToStandardOutputAndReportAndTimelineToFiles) {
  dir.write("t.jsonl", std::string(kHeader) +
                           R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":20}],"max_tokens":3})");
  const ProcessResult result = metrale(
      {"replay", "-m", model(), dir.file("t.jsonl"), "-o", dir.file("r.json"), "--html", dir.file("r.html")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, AllOf(HasSubstr("1 of 1 finished"), HasSubstr("TTFT"), HasSubstr("p99")));
  const json report = json::parse(read_file(dir.file("r.json")));
  EXPECT_EQ(report["complete"], true);
  EXPECT_EQ(report["conditions"]["max_seq_len"], 23);  // what the trace needs
  EXPECT_EQ(report["conditions"]["max_batch_size"], 16);
  EXPECT_EQ(report["conditions"]["prefix_caching"], true);
  EXPECT_EQ(report["metrics"]["metrale_generated_tokens_total"]["samples"][0]["value"], 3);
  EXPECT_THAT(read_file(dir.file("r.html")), AllOf(HasSubstr("<svg"), HasSubstr("request 0: finished")));
}

TEST_F(Replay, TraceMayComeFromStandardInput) {
  const ProcessResult result =
      metrale({"replay", "-m", model(), "-", "--json"},
              {.input = std::string(kHeader) +
                        R"({"id":0,"arrival":0,"prompt":[{"tokens":[1,2,3]}],"max_tokens":3})"});
  EXPECT_EQ(report_of(result)["tokens"]["output"], 3);
}

TEST_F(Replay, BadLinesEndWithFileAndLine) {
  const ProcessResult result = run("{\"id\":0}\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("t.jsonl"), HasSubstr("line 2"), HasSubstr("arrival")));
  EXPECT_EQ(metrale({"replay", "-m", model(), dir.file("none")}).exit_code, 4);
}

TEST_F(Replay, RequestsThatDoNotFitAreNamedBeforeAnythingRuns) {
  const auto refusal = [&](const std::string& lines, const std::vector<std::string>& flags) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"-o", dir.file("r.json")});
    const ProcessResult result = run(lines, all);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_FALSE(std::filesystem::exists(dir.file("r.json")));
    return result.err;
  };
  const std::string lines = R"({"id":7,"arrival":0,"prompt":[{"stream":1,"tokens":100}],"max_tokens":100}
{"id":8,"parent":7,"prompt":[{"stream":1,"tokens":100}],"max_tokens":213})";
  EXPECT_THAT(refusal(lines, {}), AllOf(HasSubstr("request 8"), HasSubstr("513"), HasSubstr("512")));
  const std::string fitting = R"({"id":7,"arrival":0,"prompt":[{"stream":1,"tokens":100}],"max_tokens":100})";
  EXPECT_THAT(refusal(fitting, {"--max-seq-len", "150"}), HasSubstr("--max-seq-len"));
  EXPECT_THAT(refusal(fitting, {"--kv-blocks", "12"}), HasSubstr("--kv-blocks 12 holds 192"));
  EXPECT_THAT(refusal(fitting, {"--speed", "-1"}), HasSubstr("--speed"));
  EXPECT_THAT(refusal(fitting, {"--speed", "fast"}), HasSubstr("--speed"));
  dir.write("t.jsonl", "{\"metrale_trace\":1,\"vocab\":513,\"seed\":5}\n" + fitting);
  EXPECT_THAT(run_file({}).err, AllOf(HasSubstr("513"), HasSubstr("512")));
}

TEST_F(Replay, NoFileIsWrittenOverAnother) {
  const std::string lines = R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":1})";
  const auto refusal = [&](const std::vector<std::string>& flags, const ProcessOptions& options = {}) {
    const ProcessResult result = run(lines, flags, options);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(read_file(dir.file("t.jsonl")), kHeader + lines);
    return result.err;
  };
  const std::string trace = dir.file("t.jsonl");
  const std::string report = dir.file("r");
  EXPECT_THAT(refusal({"-o", trace}), AllOf(HasSubstr("t.jsonl"), HasSubstr("--output"), HasSubstr("trace")));
  EXPECT_THAT(refusal({"--html", dir.file("./t.jsonl")}), AllOf(HasSubstr("--html"), HasSubstr("trace")));
  std::filesystem::create_symlink(trace, dir.file("link"));
  std::filesystem::create_hard_link(trace, dir.file("name"));
  EXPECT_THAT(refusal({"-o", dir.file("link")}), HasSubstr("trace"));
  EXPECT_THAT(refusal({"-o", dir.file("name")}), HasSubstr("trace"));
  EXPECT_THAT(refusal({"-o", report, "--html", dir.file("./r")}),
              AllOf(HasSubstr("--output"), HasSubstr("--html"), HasSubstr("two files")));
  EXPECT_FALSE(std::filesystem::exists(report));
  EXPECT_EQ(run(lines, {"-o", "/dev/null", "--html", "/dev/null"}).exit_code, 0);
}

TEST_F(Replay, TraceOnStandardInputIsNotWrittenOver) {
  const std::string text =
      std::string(kHeader) + R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":1})";
  const std::string trace = dir.write("t.jsonl", text);
  const ProcessResult result = run_process({"/bin/sh", "-c", "exec \"$@\" < \"$TRACE\"", "sh",
                                            METRALE_PROGRAM, "replay", "-m", model(), "-", "-o", trace},
                                           {.environment = {"TRACE=" + trace}});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(read_file(trace), text);
}

TEST_F(Replay, InterruptLeavesTheReportOfThePartThatRan) {
  // The second request is due in a week; the signal comes while nothing runs, or during the first.
  const ProcessResult result = run(
      R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":100}
{"id":1,"arrival":600000,"prompt":[{"stream":2,"tokens":4}],"max_tokens":1})",
      {"-o", dir.file("r.json"), "--html", dir.file("r.html"), "--verify"},
      {.environment = {"METRALE_LOG=info"}, .signal = SIGINT, .signal_after = "replaying"});
  EXPECT_EQ(result.exit_code, 130);
  const json report = json::parse(read_file(dir.file("r.json")));
  EXPECT_EQ(report["complete"], false);
  EXPECT_EQ(report["per_request"][1]["outcome"], "waiting");
  EXPECT_FALSE(report.contains("verification"));
  EXPECT_EQ(json::parse(result.out), report);
  EXPECT_THAT(read_file(dir.file("r.html")), HasSubstr("Interrupted"));
}

// The parts of the command by themselves, on an engine in this process.
struct ReplayEngine : ProgramTest {
  std::unique_ptr<engine::Engine> make_engine(bool prefix_caching) {
    engine::EngineOptions options;
    options.max_seq_len = 256;
    options.max_batch_size = 4;
    options.prefix_caching = prefix_caching;
    return std::make_unique<engine::Engine>(*backend, model(), options, clock);
  }

  SteadyClock clock;
  std::unique_ptr<gpu::GpuBackend> backend = runtime::open_backend({});
  const replay::Trace trace = replay::parse_trace(
      std::string(kHeader) +
          R"({"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":20}],"max_tokens":9,"n":3,"temperature":1}
{"id":1,"parent":0,"prompt":[{"stream":2,"tokens":3}],"max_tokens":7}
{"id":2,"arrival":0,"prompt":[{"stream":1,"tokens":20}],"max_tokens":5})",
      "t");
};

TEST_F(ReplayEngine, VerificationFindsAWrongToken) {
  const auto engine = make_engine(true);
  replay::ReplayRecord record = replay::replay(*engine, clock, trace, {.speed = 0});
  engine->close();
  const auto alone = make_engine(false);
  const replay::Verification good = replay::verify(*alone, trace, record, {});
  EXPECT_EQ(good.answers, 5U);
  EXPECT_EQ(good.tokens, 3U * 9 + 7 + 5);
  EXPECT_EQ(good.different_answers, 0U);

  std::int32_t& token = record.requests[0].answers[2].tokens[3];
  token = (token + 1) % 512;
  const replay::Verification bad = replay::verify(*alone, trace, record, {});
  alone->close();

  EXPECT_EQ(bad.different_answers, 1U);
  EXPECT_EQ(bad.first_difference, "answer 3 to request 0 differs from token 4 on");
}

TEST_F(ReplayEngine, InterruptedReplayCancelsWhatRunsAndKeepsWhatCame) {
  const auto engine = make_engine(true);
  int steps = 0;
  const replay::ReplayRecord record =
      replay::replay(*engine, clock, trace, {.speed = 0, .interrupted = [&] { return ++steps > 4; }});
  EXPECT_TRUE(engine->idle());
  engine->close();
  EXPECT_FALSE(record.complete);
  EXPECT_EQ(record.requests[0].answers[0].tokens.size(), 4U);
  EXPECT_EQ(record.requests[0].answers[0].reason, engine::FinishReason::kCancelled);
  EXPECT_EQ(record.requests[1].prompt_tokens, 0U);  // its parent did not end by itself
  EXPECT_TRUE(record.requests[1].answers.empty());  // which take memory from when it is submitted
}

}  // namespace
}  // namespace metrale::test
