// SPDX-License-Identifier: Apache-2.0
// Many requests through one engine: prefix caching, forks, preemption, priorities, limits, threads.
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <support/temp_dir.h>
#include <support/tiny_model.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/engine/detokenizer.h>
#include <metrale/gpu/fault.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using engine::Engine;
using engine::FinishReason;
using engine::Request;
using engine::RequestId;
using engine::StepEvent;
using testing::HasSubstr;

struct Outcome {
  std::vector<Tokens> answers;
  std::vector<std::vector<std::uint64_t>> logits;  // a digest of the logits that each token was chosen from
  std::vector<std::string> texts;
  std::vector<FinishReason> reasons;
  engine::RequestStats stats;
};

struct Batching : testing::Test {
  Batching() {
    TinyModel model = tiny_model("tiny_base");
    model.config["max_position_embeddings"] = 1024;
    write_tiny_model(model, dir.path());
    options.max_seq_len = 256;
    options.max_batch_size = 4;
    options.max_batch_tokens = 64;
    options.prefix_caching = true;
  }

  static Request greedy(Tokens prompt, std::uint32_t max_new_tokens) {
    Request request{.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .ignore_eos = true};
    request.sampling.temperature = 0;
    return request;
  }
  static Request sampled(Tokens prompt, std::uint32_t max_new_tokens, std::uint64_t seed) {
    Request request = greedy(std::move(prompt), max_new_tokens);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    return request;
  }
  static Tokens random_tokens(std::mt19937& random, std::size_t count) {
    Tokens tokens(count);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 256);
    return tokens;
  }

  // The logits of the last step, digested: one for each event, in which all answers of a prompt share a row.
  static void digest_logits(Engine& engine, const std::vector<StepEvent>& events,
                            const std::map<RequestId, std::size_t>& index, std::vector<Outcome>& outcomes) {
    const std::span<const float> logits = engine.decoder().read_logits();
    const std::size_t vocab = engine.config().vocab_size;
    std::size_t row = 0;
    for (const StepEvent& event : events) {
      auto& digests = outcomes[index.at(event.request)].logits[event.choice];
      digests.push_back(hash64(std::as_bytes(logits.subspan(row * vocab, vocab))));
      // The first answer's event is the last of a prompt's.
      if (digests.size() > 1 || event.choice == 0) ++row;
    }
    EXPECT_EQ(row * vocab, logits.size());
  }

  // All of them together, to their ends.
  static std::vector<Outcome> run(Engine& engine, const std::vector<Request>& requests,
                                  bool digests_logits = false) {
    std::map<RequestId, std::size_t> index;
    std::vector<Outcome> outcomes(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      index[engine.submit(requests[i])] = i;
      outcomes[i].answers.resize(requests[i].n);
      outcomes[i].logits.resize(requests[i].n);
      outcomes[i].texts.resize(requests[i].n);
      outcomes[i].reasons.resize(requests[i].n, FinishReason::kCancelled);
    }
    while (!engine.idle()) {
      const std::vector<StepEvent> events = engine.step();
      if (digests_logits) digest_logits(engine, events, index, outcomes);
      for (const StepEvent& event : events) {
        Outcome& outcome = outcomes[index.at(event.request)];
        if (event.token) outcome.answers[event.choice].push_back(*event.token);
        outcome.texts[event.choice] += event.text;
        if (event.finished) outcome.reasons[event.choice] = *event.finished;
        if (event.request_finished) outcome.stats = engine.take_stats(event.request);
      }
      EXPECT_EQ(engine.scheduler().check_invariants(), "");
    }
    return outcomes;
  }

  TempDir dir;
  engine::EngineOptions options;
};

// Few beginnings and many ends, some of them several answers, as real traffic is.
std::vector<Request> mixed_requests(std::mt19937& random, std::size_t count) {
  std::vector<Tokens> systems;
  for (int i = 0; i < 4; ++i) systems.push_back(Batching::random_tokens(random, 20 + random() % 90));
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt = systems[random() % systems.size()];
    const Tokens own = Batching::random_tokens(random, 1 + random() % 30);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (!requests.empty() && random() % 3 == 0) {  // the next turn of an earlier one
      prompt = requests[random() % requests.size()].prompt;
      prompt.push_back(static_cast<std::int32_t>(random() % 256));
    }
    prompt.resize(std::min<std::size_t>(prompt.size(), 200));
    requests.push_back(Batching::sampled(prompt, 1 + static_cast<std::uint32_t>(random() % 12), i));
    requests.back().n = random() % 6 == 0 ? 3 : 1;
    requests.back().priority = static_cast<std::int32_t>(random() % 2);
    requests.back().tenant = random() % 5 == 0 ? "b" : "a";
  }
  return requests;
}

TEST_F(Batching, FiveHundredRequestsHaveTheSameLogitsWithTheCacheOnOffAndUnderConstantEviction) {
  std::mt19937 random(404);
  const std::vector<Request> requests = mixed_requests(random, 500);
  EngineHarness cached(dir.path(), options);
  const auto with_cache = run(cached.engine(), requests, true);
  options.kv_blocks =
      20;  // one long request and a half: blocks are evicted and sequences preempted all the time
  EngineHarness tight(dir.path(), options);
  const auto with_eviction = run(tight.engine(), requests, true);
  options.kv_blocks = 0;
  options.prefix_caching = false;
  EngineHarness uncached(dir.path(), options);
  const auto without = run(uncached.engine(), requests, true);

  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(with_cache[i].answers, without[i].answers) << "request " << i;
    EXPECT_EQ(with_eviction[i].answers, without[i].answers) << "request " << i;
    EXPECT_EQ(with_cache[i].logits, without[i].logits) << "request " << i;
    EXPECT_EQ(with_eviction[i].logits, without[i].logits) << "request " << i;
    EXPECT_EQ(without[i].stats.cached_tokens, 0U);
  }
  EXPECT_GT(cached.engine().counts().scheduler.cached_tokens, 10'000U);
  EXPECT_GT(tight.engine().counts().prefix.evicted_blocks, 500U);
  EXPECT_GT(tight.engine().counts().scheduler.preempted, 3U);
  EXPECT_EQ(uncached.engine().cache().num_free_blocks(), uncached.engine().cache().num_blocks());
  EXPECT_EQ(tight.engine().counts().held_blocks, 0U);
}

TEST_F(Batching, AnswersOfARequestAreThoseOfItsSeedsAlone) {
  EngineHarness harness(dir.path(), options);
  std::mt19937 random(3);
  Request request = sampled(random_tokens(random, 37), 10, 70);
  request.n = 6;  // more than there are rows
  const Outcome together = run(harness.engine(), {request}).front();

  request.n = 1;
  for (std::uint64_t i = 0; i < 6; ++i) {
    request.sampling.seed = 70 + i;
    EXPECT_EQ(run(harness.engine(), {request}).front().answers.front(), together.answers[i])
        << "answer " << i;
  }
  EXPECT_EQ(together.stats.prompt_tokens, 37U);
  EXPECT_EQ(together.stats.output_tokens, 60U);
}

TEST_F(Batching, AnswersShareThePromptsBlocks) {
  EngineHarness harness(dir.path(), options);
  Engine& engine = harness.engine();
  Request request = sampled(Tokens(64, 5), 4, 1);
  request.n = 4;
  engine.submit(request);
  (void)engine.step();
  (void)engine.step();
  // Four full blocks of prompt, one of its own for each answer.
  EXPECT_EQ(engine.counts().held_blocks, 8U);
  EXPECT_EQ(engine.counts().scheduler.computed_tokens, 64U + 4U);
  while (!engine.idle()) (void)engine.step();
}

TEST_F(Batching, StatsTellWhatTheCacheHad) {
  EngineHarness harness(dir.path(), options);
  std::mt19937 random(3);
  const Tokens prompt = random_tokens(random, 100);
  const Outcome cold = run(harness.engine(), {greedy(prompt, 4)}).front();
  const Outcome warm = run(harness.engine(), {greedy(prompt, 4)}).front();
  EXPECT_EQ(cold.stats.cached_tokens, 0U);
  EXPECT_EQ(warm.stats.cached_tokens, 99U);
  EXPECT_EQ(cold.answers, warm.answers);
}

struct BatchingWithText : Batching {
  BatchingWithText() : tokenizer(engine::Tokenizer::load(dir.path() + "/tokenizer.json")) {
    options.tokenizer = &tokenizer;
  }
  engine::Tokenizer tokenizer;
};

TEST_F(BatchingWithText, TextOfTheEventsIsTheTextOfTheTokens) {
  EngineHarness harness(dir.path(), options);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Outcome outcome = run(harness.engine(), {sampled({1, 2, 3}, 30, seed)}).front();
    engine::Detokenizer detokenizer(tokenizer);
    std::string expected;
    for (const std::int32_t token : outcome.answers.front()) {
      if (static_cast<std::size_t>(token) < tokenizer.vocab_size()) expected += detokenizer.push(token);
    }
    EXPECT_EQ(outcome.texts.front(), expected + detokenizer.finish());
  }
}

TEST_F(BatchingWithText, StopTextEndsTheAnswerAndIsNotInItsText) {
  EngineHarness harness(dir.path(), options);
  const std::string whole = run(harness.engine(), {sampled({1, 2, 3}, 40, 11)}).front().texts.front();
  ASSERT_GT(whole.size(), 12U);
  Request request = sampled({1, 2, 3}, 40, 11);
  request.stop = {"never there", whole.substr(6, 4)};
  const std::size_t end = whole.find(request.stop[1]);

  const Outcome stopped = run(harness.engine(), {request}).front();

  EXPECT_EQ(stopped.texts.front(), whole.substr(0, end));
  EXPECT_EQ(stopped.reasons.front(), FinishReason::kStop);
}

TEST_F(Batching, StopTextWithoutATokenizerIsRefused) {
  EngineHarness harness(dir.path(), options);
  Request request = greedy({1}, 4);
  request.stop = {"x"};
  EXPECT_THROW(harness.engine().submit(request), InvalidArgument);
  request.stop = {};
  request.n = 0;
  EXPECT_THROW(harness.engine().submit(request), InvalidArgument);
}

TEST_F(Batching, TimeEndsARequestWhereverItIs) {
  options.max_batch_size = 1;
  const auto gpu = make_backend();
  ManualClock clock;
  Engine engine(*gpu, dir.path(), options, clock);
  Request endless = greedy({1, 2}, 200);
  endless.timeout = std::chrono::seconds(10);
  const RequestId running = engine.submit(endless);
  endless.timeout = std::chrono::seconds(5);
  endless.n = 2;
  const RequestId waiting = engine.submit(endless);
  (void)engine.step();
  EXPECT_FALSE(engine.idle());

  clock.advance(std::chrono::seconds(6));
  const auto first = engine.step();
  clock.advance(std::chrono::seconds(6));
  const auto second = engine.step();

  std::vector<std::pair<RequestId, FinishReason>> ends;
  for (const auto& events : {first, second}) {
    for (const StepEvent& event : events) {
      if (event.finished) ends.emplace_back(event.request, *event.finished);
    }
  }
  EXPECT_THAT(ends, testing::ElementsAre(testing::Pair(waiting, FinishReason::kTimeout),
                                         testing::Pair(waiting, FinishReason::kTimeout),
                                         testing::Pair(running, FinishReason::kTimeout)));
  EXPECT_TRUE(engine.idle());
}

// The second request begins with a copy of a block's start, which has to come again with the step.
TEST_F(Batching, StepThatFailedOverACachedPrefixIsTakenAgain) {
  std::mt19937 random(8);
  const Tokens prompt = random_tokens(random, 40);
  const Tokens other = [&] {
    Tokens changed = prompt;
    changed[38] = (changed[38] + 1) % 256;
    return changed;
  }();
  const auto expected = EngineHarness(dir.path(), options).generate({greedy(other, 4)}).front();
  for (const gpu::FaultPoint point : {gpu::FaultPoint::kCopy, gpu::FaultPoint::kSynchronize}) {
    bool failed = true;
    for (std::uint64_t nth = 1; failed; ++nth) {
      const auto gpu = make_backend();
      const auto fault = gpu::make_fault_backend(*gpu);
      const SteadyClock clock;
      Engine engine(*fault, dir.path(), options, clock);
      (void)run(engine, {greedy(prompt, 1)});
      engine.submit(greedy(other, 4));
      fault->fail_nth(point, nth);
      failed = false;
      Tokens tokens;
      while (!engine.idle()) {
        try {
          for (const StepEvent& event : engine.step()) {
            if (event.token) tokens.push_back(*event.token);
          }
        } catch (const DeviceError&) {
          failed = true;
        }
      }
      EXPECT_EQ(tokens, expected) << "failure " << nth;
      EXPECT_EQ(engine.counts().scheduler.cached_tokens, 38U);
    }
  }
}

// Another thread submits and cancels at once, wherever the step is.
TEST_F(Batching, RequestCancelledAsSoonAsItIsSubmittedIsCancelled) {
  EngineHarness harness(dir.path(), options);
  Engine& engine = harness.engine();
  constexpr int kRequests = 20'000;
  std::atomic<bool> done = false;
  std::thread client([&] {
    for (int i = 0; i < kRequests; ++i) {
      engine.cancel(engine.submit(greedy(Tokens(8, 1 + i % 50), 200)));
      // So that steps find the door empty, half open and full.
      if (i % 100 == 0) {
        while (!engine.idle()) std::this_thread::yield();
      }
    }
    done = true;
  });
  int cancelled = 0;
  while (!done || !engine.idle()) {
    if (!engine.wait_for_work(std::chrono::milliseconds(1))) continue;
    for (const StepEvent& event : engine.step()) {
      if (event.finished == FinishReason::kCancelled) ++cancelled;
      if (event.request_finished) (void)engine.take_stats(event.request);
    }
  }
  client.join();
  // One whose thread was held up between the two calls for 200 steps may have ended by itself.
  EXPECT_GT(cancelled, kRequests - kRequests / 100);
}

TEST_F(Batching, EventsOfAStepThatFailsComeWithTheNext) {
  const auto gpu = make_backend();
  const auto fault = gpu::make_fault_backend(*gpu);
  const SteadyClock clock;
  Engine engine(*fault, dir.path(), options, clock);
  const RequestId goes_on = engine.submit(greedy(Tokens(8, 5), 3));
  const RequestId ended = engine.submit(greedy(Tokens(8, 6), 3));
  (void)engine.step();
  engine.cancel(ended);
  fault->fail_nth(gpu::FaultPoint::kSynchronize, 1);
  EXPECT_THROW((void)engine.step(), DeviceError);
  std::map<RequestId, FinishReason> ends;
  while (!engine.idle()) {
    for (const StepEvent& event : engine.step()) {
      if (event.finished) ends.emplace(event.request, *event.finished);
    }
  }
  EXPECT_EQ(ends.at(ended), FinishReason::kCancelled);
  EXPECT_EQ(ends.at(goes_on), FinishReason::kLength);
  engine.close();
}

TEST_F(Batching, TimeoutBeyondTheEndOfTheClockNeverComes) {
  EngineHarness harness(dir.path(), options);
  Request request = greedy(Tokens(8, 5), 3);
  request.timeout = Nanoseconds::max();
  harness.engine().submit(request);
  std::vector<FinishReason> ends;
  while (!harness.engine().idle()) {
    for (const StepEvent& event : harness.engine().step()) {
      if (event.finished) ends.push_back(*event.finished);
    }
  }
  EXPECT_EQ(ends, std::vector{FinishReason::kLength});
  request.timeout = Nanoseconds{-1};
  EXPECT_THROW((void)harness.engine().submit(request), InvalidArgument);
}

TEST_F(Batching, ThreadsSubmitAndCancelWhileOneSteps) {
  EngineHarness harness(dir.path(), options);
  Engine& engine = harness.engine();
  constexpr int kThreads = 4;
  constexpr int kRequests = 40;
  std::atomic<int> submitting = kThreads;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<RequestId> mine;
      for (int i = 0; i < kRequests; ++i) {
        mine.push_back(engine.submit(
            greedy(random_tokens(random, 1 + random() % 60), 1 + static_cast<std::uint32_t>(random() % 8))));
        if (random() % 3 == 0) engine.cancel(mine[random() % mine.size()]);
        (void)engine.counts();
        (void)engine.idle();
      }
      --submitting;
    });
  }
  std::map<RequestId, int> ends;
  while (submitting > 0 || !engine.idle()) {
    if (!engine.wait_for_work(std::chrono::milliseconds(1))) continue;
    for (const StepEvent& event : engine.step()) {
      if (!event.request_finished) continue;
      ++ends[event.request];
      (void)engine.take_stats(event.request);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ends.size(), std::size_t{kThreads} * kRequests);
  for (const auto& [id, count] : ends) EXPECT_EQ(count, 1) << id.value();
  EXPECT_EQ(engine.counts().held_blocks, 0U);
  EXPECT_EQ(engine.counts().requests_finished, std::uint64_t{kThreads} * kRequests);
}

TEST_F(Batching, MetricsAgreeWithWhatHappened) {
  MetricsRegistry registry;
  options.metrics = &registry;
  EngineHarness harness(dir.path(), options);
  std::mt19937 random(5);
  const Tokens prompt = random_tokens(random, 48);
  (void)run(harness.engine(), {greedy(prompt, 4)});
  (void)run(harness.engine(), {greedy(prompt, 4)});
  std::map<std::string, double> values;
  for (const MetricFamily& family : registry.snapshot()) {
    for (const MetricSample& sample : family.samples) {
      std::string name = family.name;
      for (const auto& [label, value] : sample.labels) name += "," + value;
      values[name] =
          family.type == MetricType::kHistogram ? static_cast<double>(sample.histogram.count) : sample.value;
    }
  }
  EXPECT_EQ(values.at("metrale_prompt_tokens_total"), 96);
  EXPECT_EQ(values.at("metrale_generated_tokens_total"), 8);
  EXPECT_EQ(values.at("metrale_prefix_hit_tokens_total"), 32);
  EXPECT_EQ(values.at("metrale_answers_total,length"), 2);
  EXPECT_EQ(values.at("metrale_answers_total,cancelled"), 0);
  EXPECT_EQ(values.at("metrale_ttft_seconds"), 2);
  EXPECT_EQ(values.at("metrale_inter_token_seconds"), 6);
  EXPECT_EQ(values.at("metrale_sequences_running"), 0);
  EXPECT_GT(values.at("metrale_kv_blocks,cached"), 0);
}

}  // namespace
}  // namespace metrale::test
