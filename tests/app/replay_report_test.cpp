// SPDX-License-Identifier: Apache-2.0
// What is made of a finished replay: percentiles, JSON, text and the timeline.
#include <algorithm>
#include <replay/summary.h>
#include <replay/timeline.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace metrale::test {
namespace {

using engine::FinishReason;
using nlohmann::json;
using replay::Percentiles;
using replay::percentiles;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr auto kMs = std::chrono::milliseconds(1);

// Two requests: one waits 10 ms, has its first token after 30 and two more 5 and 15 ms apart; the other is
// cancelled while it waits.
struct ReplayReport : testing::Test {
  ReplayReport() {
    trace.requests.resize(2);
    trace.requests[1].id = 1;
    trace.requests[1].tenant = "<script>alert('x')</script>";
    record.requests.resize(2);
    replay::RequestRecord& first = record.requests[0];
    first.due = 100 * kMs;
    first.started = 110 * kMs;
    first.first_token = 130 * kMs;
    first.ended = 150 * kMs;
    first.prompt_tokens = 40;
    first.cached_tokens = 16;
    first.answers = {
        {.tokens = {1, 2, 3}, .times = {130 * kMs, 135 * kMs, 150 * kMs}, .reason = FinishReason::kLength}};
    replay::RequestRecord& second = record.requests[1];
    second.due = 120 * kMs;
    second.ended = 140 * kMs;
    second.prompt_tokens = 10;
    second.answers = {{.tokens = {}, .times = {}, .reason = FinishReason::kCancelled}};
    record.wall = 200 * kMs;
    record.complete = true;
    record.counts.prefix.evicted_blocks = 7;
    record.counts.scheduler.preempted = 2;
    record.peak.held_blocks = 5;
    for (int i = 0; i <= 20; ++i) record.load.add({.at = 10 * i * kMs, .running = 1, .free_blocks = 9});
    conditions.model = "models/a&b";
    conditions.trace = "t.jsonl";
    conditions.device = "cpu";
  }

  [[nodiscard]] replay::Report report() const {
    return {.conditions = &conditions,
            .trace = &trace,
            .record = &record,
            .summary = replay::summarize(record),
            .metrics = {},
            .verification = verification};
  }

  replay::Trace trace;
  replay::ReplayRecord record;
  replay::Conditions conditions;
  std::optional<replay::Verification> verification;
};

TEST(Percentiles, AreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  const Percentiles hundred = percentiles(values);
  EXPECT_EQ(hundred.p50, 50);
  EXPECT_EQ(hundred.p90, 90);
  EXPECT_EQ(hundred.p95, 95);
  EXPECT_EQ(hundred.p99, 99);
  EXPECT_EQ(hundred.max, 100);
  EXPECT_EQ(hundred.mean, 50.5);
  EXPECT_EQ(hundred.count, 100U);
  const Percentiles three = percentiles({3, 1, 2});
  EXPECT_EQ(three.p50, 2);
  EXPECT_EQ(three.p90, 3);
  EXPECT_EQ(percentiles({5}).p50, 5);
  EXPECT_EQ(percentiles({}).max, 0);
  EXPECT_EQ(percentiles({}).count, 0U);
}

TEST(LoadCurve, KeepsTheWholeTimeInFewPoints) {
  replay::LoadCurve curve;
  for (int i = 0; i < 100'000; ++i) curve.add({.at = Nanoseconds(i)});
  const std::vector<replay::Load>& points = curve.points();
  EXPECT_LE(points.size(), replay::LoadCurve::kMost);
  EXPECT_GE(points.size(), replay::LoadCurve::kMost / 2);
  EXPECT_EQ(points.front().at, Nanoseconds(0));
  EXPECT_GT(points.back().at, Nanoseconds(99'000));
  for (std::size_t i = 2; i < points.size(); ++i)
    EXPECT_EQ(points[i].at - points[i - 1].at, points[1].at - points[0].at);
}

TEST_F(ReplayReport, LatenciesCountFromWhenARequestWasDue) {
  const replay::Summary summary = replay::summarize(record);
  EXPECT_DOUBLE_EQ(summary.queue.max, 0.010);
  EXPECT_DOUBLE_EQ(summary.ttft.max, 0.030);
  EXPECT_DOUBLE_EQ(summary.end_to_end.max, 0.050);
  EXPECT_EQ(summary.end_to_end.count, 1U);  // of finished requests only
  EXPECT_EQ(summary.inter_token.count, 2U);
  EXPECT_DOUBLE_EQ(summary.inter_token.p50, 0.005);
  EXPECT_DOUBLE_EQ(summary.inter_token.max, 0.015);
}

TEST_F(ReplayReport, HitRatesAreOfTokensAndOfRequestsThatRan) {
  const replay::Summary summary = replay::summarize(record);
  EXPECT_DOUBLE_EQ(summary.token_hit_rate(), 16.0 / 50);
  EXPECT_DOUBLE_EQ(summary.request_hit_rate(), 1);
  EXPECT_EQ(summary.finished, 1U);
  EXPECT_EQ(summary.cancelled, 1U);
}

TEST_F(ReplayReport, JsonHasTheDocumentedKeys) {
  const json object = json::parse(replay::to_json(report()));
  EXPECT_EQ(object["metrale_replay"], 1);
  EXPECT_EQ(object["complete"], true);
  EXPECT_EQ(object["conditions"]["model"], "models/a&b");
  EXPECT_EQ(object["conditions"]["speed"], 1.0);
  EXPECT_EQ(object["requests"]["ended"], 2);
  EXPECT_EQ(object["tokens"]["cached"], 16);
  EXPECT_DOUBLE_EQ(object["throughput"]["output_tokens_per_second"].get<double>(), 15);
  for (const char* name : {"ttft", "inter_token", "queue", "end_to_end"}) {
    for (const char* rank : {"count", "mean", "p50", "p90", "p95", "p99", "max"})
      EXPECT_TRUE(object["latency_seconds"][name][rank].is_number()) << name << rank;
  }
  EXPECT_EQ(object["prefix_cache"]["evicted_blocks"], 7);
  EXPECT_EQ(object["engine"]["preemptions"], 2);
  EXPECT_EQ(object["engine"]["peak_held_blocks"], 5);
  EXPECT_FALSE(object.contains("verification"));
  ASSERT_EQ(object["per_request"].size(), 2U);
  EXPECT_EQ(object["per_request"][0]["outcome"], "finished");
  EXPECT_EQ(object["per_request"][0]["first_token"], 0.13);
  EXPECT_EQ(object["per_request"][1]["outcome"], "cancelled");
  EXPECT_TRUE(object["per_request"][1]["started"].is_null());
}

TEST_F(ReplayReport, VerificationIsPartOfIt) {
  verification =
      replay::Verification{.answers = 4, .tokens = 9, .different_answers = 1, .first_difference = "answer 1"};
  EXPECT_EQ(json::parse(replay::to_json(report()))["verification"]["different_answers"], 1);
  EXPECT_THAT(replay::to_text(report()), HasSubstr("1 of 4 answers differ: answer 1"));
  verification->different_answers = 0;
  EXPECT_THAT(replay::to_text(report()), HasSubstr("4 answers, 9 tokens: the same"));
}

TEST_F(ReplayReport, InterruptedOnesSaySo) {
  EXPECT_THAT(replay::to_text(report()), Not(HasSubstr("interrupted")));
  EXPECT_THAT(replay::timeline_html(report()), Not(HasSubstr("Interrupted")));
  record.complete = false;
  record.requests[1].due.reset();
  EXPECT_THAT(replay::to_text(report()), HasSubstr("interrupted"));
  EXPECT_THAT(replay::timeline_html(report()), HasSubstr("Interrupted"));
  const json object = json::parse(replay::to_json(report()));
  EXPECT_EQ(object["complete"], false);
  EXPECT_EQ(object["per_request"][1]["outcome"], "waiting");
}

TEST_F(ReplayReport, TimelineEscapesTextsAndNeedsNoOtherFile) {
  trace.requests[0].tenant = trace.requests[1].tenant;
  conditions.note = "<b>&\"'\x01";
  const std::string page = replay::timeline_html(report());
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
  EXPECT_THAT(page, HasSubstr("models/a&amp;b"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;&quot;&#39; "));
  for (const char* reference : {"http:", "https:", "url(", "src=", "href=", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(reference)));
}

TEST_F(ReplayReport, TimelineHasALaneARequestInOrderOfTime) {
  const std::string page = replay::timeline_html(report());
  EXPECT_LT(page.find("<title>request 0:"), page.find("<title>request 1:"));
  EXPECT_THAT(page, AllOf(HasSubstr("16 cached"), HasSubstr("polyline"), HasSubstr("TTFT 0.030 s")));
  // 100 to 110 ms of 200 are the wait, the first 40 % of the prompt's time its cached part.
  EXPECT_THAT(page, HasSubstr(R"(class="queue" x="560.00" y="6.00" width="50.00")"));
  EXPECT_THAT(page, HasSubstr(R"(class="cached" x="610.00" y="6.00" width="40.00")"));
  EXPECT_THAT(page, HasSubstr(R"(class="prefill" x="650.00" y="6.00" width="60.00")"));
  EXPECT_THAT(page, HasSubstr(R"(class="decode" x="710.00" y="6.00" width="100.00")"));
}

TEST_F(ReplayReport, TimelineOfManyRequestsIsThinnedOut) {
  const replay::RequestRecord one = record.requests[0];
  record.requests.assign(4100, one);
  trace.requests.assign(4100, trace.requests[0]);
  for (std::size_t i = 0; i < 4100; ++i) trace.requests[i].id = i;
  const std::string page = replay::timeline_html(report());
  std::size_t lanes = 0;
  for (std::size_t at = 0; (at = page.find("<title>request", at)) != std::string::npos; ++at) ++lanes;
  EXPECT_EQ(lanes, 1367U);
  EXPECT_THAT(page, HasSubstr("1367 of 4100 requests: one in 3"));
  EXPECT_THAT(page, HasSubstr("<title>request 4098:"));
  EXPECT_LT(page.size(), 1'500'000U);
}

TEST_F(ReplayReport, ReplayOfNothingStillMakesAPage) {
  record = {};
  record.requests.resize(2);
  EXPECT_THAT(replay::timeline_html(report()), HasSubstr("</html>"));
  EXPECT_EQ(json::parse(replay::to_json(report()))["requests"]["ended"], 0);
  EXPECT_THAT(replay::to_text(report()), HasSubstr("0 of 2 finished"));
}

}  // namespace
}  // namespace metrale::test
