// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/metrics.h>

namespace metrale {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::array kBounds{0.5, 1.0, 2.0};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Counter, AddsUp) {
  Counter counter;
  counter.add();
  counter.add(41);
  EXPECT_EQ(counter.value(), 42U);
}

TEST(Gauge, HoldsTheLastValue) {
  Gauge gauge;
  EXPECT_EQ(gauge.value(), 0);
  gauge.set(3);
  gauge.set(-1.5);
  EXPECT_EQ(gauge.value(), -1.5);
}

TEST(Histogram, ABoundBelongsToTheBucketBelowIt) {
  Histogram histogram(kBounds);
  for (const double value : {0.5, 0.51, 1.0, 2.0, 2.01}) histogram.observe(value);
  EXPECT_THAT(histogram.values().bounds, ElementsAre(0.5, 1.0, 2.0));
  EXPECT_THAT(histogram.values().counts, ElementsAre(1, 2, 1, 1));
}

TEST(Histogram, EndsTakeWhatLiesBeyondTheBounds) {
  Histogram histogram(kBounds);
  histogram.observe(std::numeric_limits<double>::lowest());
  histogram.observe(std::numeric_limits<double>::max());
  EXPECT_THAT(histogram.values().counts, ElementsAre(1, 0, 0, 1));
}

TEST(Histogram, CountsAndSumsWhatItSaw) {
  Histogram histogram(kBounds);
  for (const double value : {0.25, 1.5, -4.0}) histogram.observe(value);
  EXPECT_EQ(histogram.values().count, 3U);
  EXPECT_EQ(histogram.values().sum, -2.25);
}

TEST(Histogram, NanAndInfinitiesAreNotCounted) {
  Histogram histogram(kBounds);
  for (const double value : {kNan, kInfinity, -kInfinity, 1.0}) histogram.observe(value);
  EXPECT_THAT(histogram.values().counts, ElementsAre(0, 1, 0, 0));
  EXPECT_EQ(histogram.values().count, 1U);
  EXPECT_EQ(histogram.values().sum, 1.0);
}

TEST(Histogram, BoundsThatDoNotRiseAreRefused) {
  EXPECT_THROW(Histogram({}), InvalidArgument);
  EXPECT_THROW(Histogram(std::array{1.0, 1.0}), InvalidArgument);
  EXPECT_THROW(Histogram(std::array{2.0, 1.0}), InvalidArgument);
  EXPECT_THROW(Histogram(std::array{1.0, kInfinity}), InvalidArgument);
  EXPECT_THROW(Histogram(std::array{kNan}), InvalidArgument);
}

TEST(MetricsRegistry, AskingAgainGivesTheSameMetric) {
  MetricsRegistry metrics;
  Counter& counter = metrics.counter("reads_total", "Reads", {{"from", "disk"}, {"how", "direct"}});
  Gauge& gauge = metrics.gauge("queue_bytes", "Bytes that wait");
  Histogram& histogram = metrics.histogram("read_seconds", "Time of a read", kBounds);

  EXPECT_EQ(&metrics.counter("reads_total", "Reads", {{"how", "direct"}, {"from", "disk"}}), &counter);
  EXPECT_EQ(&metrics.gauge("queue_bytes", "Bytes that wait"), &gauge);
  EXPECT_EQ(&metrics.histogram("read_seconds", "Time of a read", kBounds), &histogram);
}

TEST(MetricsRegistry, OtherLabelValuesAreAnotherMetric) {
  MetricsRegistry metrics;
  Counter& disk = metrics.counter("reads_total", "Reads", {{"from", "disk"}});
  Counter& peer = metrics.counter("reads_total", "Reads", {{"from", "peer"}});
  disk.add(2);
  peer.add(3);
  EXPECT_EQ(disk.value(), 2U);
  EXPECT_EQ(peer.value(), 3U);
}

TEST(MetricsRegistry, MetricsStayWhereTheyAreAsOthersCome) {
  MetricsRegistry metrics;
  Counter& first = metrics.counter("m_total", "M", {{"i", "0"}});
  for (int i = 1; i < 100; ++i) metrics.counter("m_total", "M", {{"i", std::to_string(i)}});
  for (int i = 0; i < 100; ++i) metrics.gauge("g" + std::to_string(i), "G");
  EXPECT_EQ(&metrics.counter("m_total", "M", {{"i", "0"}}), &first);
}

TEST(MetricsRegistry, SnapshotHasFamiliesByNameAndSamplesByFirstUse) {
  MetricsRegistry metrics;
  metrics.gauge("b_bytes", "B").set(1.5);
  metrics.counter("c_total", "C", {{"to", "z"}, {"from", "y"}}).add(7);
  metrics.counter("c_total", "C", {{"to", "a"}, {"from", "y"}});
  metrics.histogram("a_seconds", "A", kBounds).observe(1);

  const std::vector<MetricFamily> families = metrics.snapshot();

  ASSERT_EQ(families.size(), 3U);
  EXPECT_EQ(families[0].name, "a_seconds");
  EXPECT_EQ(families[0].help, "A");
  EXPECT_EQ(families[0].type, MetricType::kHistogram);
  EXPECT_THAT(families[0].samples.at(0).histogram.counts, ElementsAre(0, 1, 0, 0));
  EXPECT_EQ(families[1].name, "b_bytes");
  EXPECT_EQ(families[1].type, MetricType::kGauge);
  EXPECT_EQ(families[1].samples.at(0).value, 1.5);
  EXPECT_EQ(families[2].name, "c_total");
  EXPECT_EQ(families[2].type, MetricType::kCounter);
  ASSERT_EQ(families[2].samples.size(), 2U);
  EXPECT_EQ(families[2].samples[0].labels, (MetricLabels{{"from", "y"}, {"to", "z"}}));
  EXPECT_EQ(families[2].samples[0].value, 7);
  EXPECT_EQ(families[2].samples[1].labels, (MetricLabels{{"from", "y"}, {"to", "a"}}));
}

TEST(MetricsRegistry, BadNamesAreRefusedByName) {
  MetricsRegistry metrics;
  for (const char* name : {"", "1st", "with space", "dash-ed", "umlaut_\xC3\xA4"}) {
    EXPECT_THAT(refusal([&] { metrics.gauge(name, "G"); }), HasSubstr("metric '" + std::string(name) + "'"));
  }
  EXPECT_NO_THROW(metrics.gauge("_job:rate5m", "G"));
  EXPECT_TRUE(metrics.snapshot().size() == 1);
}

TEST(MetricsRegistry, EndsOfNamesTellTheType) {
  MetricsRegistry metrics;
  EXPECT_THAT(refusal([&] { metrics.counter("reads", "R"); }),
              AllOf(HasSubstr("'reads'"), HasSubstr("_total")));
  EXPECT_THAT(refusal([&] { metrics.gauge("reads_total", "R"); }), HasSubstr("_total"));
  EXPECT_THAT(refusal([&] { metrics.gauge("reads_count", "R"); }), HasSubstr("_count"));
  EXPECT_THAT(refusal([&] { metrics.gauge("reads_sum", "R"); }), HasSubstr("_sum"));
  EXPECT_THAT(refusal([&] { metrics.gauge("reads_bucket", "R"); }), HasSubstr("_bucket"));
}

TEST(MetricsRegistry, BadLabelsAreRefusedByName) {
  MetricsRegistry metrics;
  const auto labelled = [&](const MetricLabels& labels) {
    return refusal([&] { metrics.gauge("depth", "D", labels); });
  };
  EXPECT_THAT(labelled({{"a-b", "x"}}), AllOf(HasSubstr("metric 'depth'"), HasSubstr("'a-b'")));
  EXPECT_THAT(labelled({{"", "x"}}), HasSubstr("''"));
  EXPECT_THAT(labelled({{"a:b", "x"}}), HasSubstr("'a:b'"));
  EXPECT_THAT(labelled({{"le", "x"}}), HasSubstr("'le'"));
  EXPECT_THAT(labelled({{"__name", "x"}}), HasSubstr("'__name'"));
  EXPECT_THAT(labelled({{"a", "x"}, {"b", "x"}, {"a", "y"}}), HasSubstr("'a' is there twice"));
  EXPECT_TRUE(metrics.snapshot().empty());
}

TEST(MetricsRegistry, LabelValuesAreUtf8) {
  MetricsRegistry metrics;
  const auto labelled = [&](const char* value) {
    return refusal([&] { metrics.gauge("depth", "D", {{"at", value}}); });
  };
  for (const char* good : {"", "line\nbreak \"quoted\"", "\xC3\xA4", "\xE4\xB8\x96", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(labelled(good), "nothing was refused");
  }
  for (const char* bad :
       {"\xC3", "\x80", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_THAT(labelled(bad), AllOf(HasSubstr("metric 'depth'"), HasSubstr("'at' is not UTF-8")));
  }
}

TEST(MetricsRegistry, HelpIsOneLine) {
  MetricsRegistry metrics;
  for (const char* help : {"", "two\nlines", "\xFF"}) {
    EXPECT_THAT(refusal([&] { metrics.gauge("depth", help); }), HasSubstr("metric 'depth'"));
  }
}

TEST(MetricsRegistry, BadBoundsAreRefusedByName) {
  MetricsRegistry metrics;
  const auto bounded = [&](const std::vector<double>& bounds) {
    return refusal([&] { metrics.histogram("wait_seconds", "W", bounds); });
  };
  EXPECT_THAT(bounded({}), HasSubstr("metric 'wait_seconds'"));
  EXPECT_THAT(bounded({2, 1}), AllOf(HasSubstr("metric 'wait_seconds'"), HasSubstr("1 follows 2")));
  EXPECT_THAT(bounded({1, kInfinity}),
              AllOf(HasSubstr("metric 'wait_seconds'"), HasSubstr("bound 1 is inf")));
  EXPECT_TRUE(metrics.snapshot().empty());
}

TEST(MetricsRegistry, ANameThatIsThereAsSomethingElseIsRefused) {
  MetricsRegistry metrics;
  metrics.histogram("wait_seconds", "W", kBounds, {{"of", "x"}});

  EXPECT_THAT(refusal([&] { metrics.gauge("wait_seconds", "W", {{"of", "x"}}); }),
              AllOf(HasSubstr("metric 'wait_seconds'"), HasSubstr("type")));
  EXPECT_THAT(refusal([&] { metrics.histogram("wait_seconds", "Other", kBounds, {{"of", "x"}}); }),
              HasSubstr("help"));
  EXPECT_THAT(refusal([&] { metrics.histogram("wait_seconds", "W", std::array{1.0}, {{"of", "x"}}); }),
              HasSubstr("bounds"));
  EXPECT_THAT(refusal([&] { metrics.histogram("wait_seconds", "W", kBounds); }), HasSubstr("label names"));
  EXPECT_EQ(metrics.snapshot().at(0).samples.size(), 1U);
}

TEST(MetricsRegistry, NothingThatThreadsWriteTogetherIsLost) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  MetricsRegistry metrics;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      for (const MetricFamily& family : metrics.snapshot()) EXPECT_FALSE(family.samples.empty());
    }
  });
  std::vector<std::thread> writers;
  for (int thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([&metrics, thread] {
      for (int round = 0; round < kRounds; ++round) {
        metrics.counter("work_total", "W").add(2);
        metrics.counter("by_thread_total", "T", {{"thread", std::to_string(thread)}}).add();
        metrics.histogram("size_tokens", "S", kBounds).observe(round % 4);
        metrics.gauge("last", "L").set(round);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();

  EXPECT_EQ(metrics.counter("work_total", "W").value(), 2U * kThreads * kRounds);
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(metrics.counter("by_thread_total", "T", {{"thread", std::to_string(thread)}}).value(), kRounds);
  }
  const Histogram::Values sizes = metrics.histogram("size_tokens", "S", kBounds).values();
  constexpr std::uint64_t kEach = std::uint64_t{kThreads} * kRounds / 4;
  EXPECT_THAT(sizes.counts, ElementsAre(kEach, kEach, kEach, kEach));
  EXPECT_EQ(sizes.count, 4 * kEach);
  EXPECT_EQ(sizes.sum, 6.0 * kEach);
  EXPECT_EQ(metrics.gauge("last", "L").value(), kRounds - 1);
}

}  // namespace
}  // namespace metrale
