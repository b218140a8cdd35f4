// SPDX-License-Identifier: Apache-2.0
// Requests through the engine: ends, limits, cancellation, faults.
#include <cerrno>
#include <string>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/fault.h>
#include <metrale/io/fault.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using engine::FinishReason;
using testing::HasSubstr;

struct EngineTest : testing::Test {
  EngineTest() {
    write_tiny_model(tiny_model("tiny_base"), dir.path());
    options.max_seq_len = 64;
    options.max_batch_size = 2;
    options.max_batch_tokens = 16;
  }

  static engine::Request greedy(Tokens prompt, std::uint32_t max_new_tokens) {
    engine::Request request{.prompt = std::move(prompt),
                            .sampling = {},
                            .max_new_tokens = max_new_tokens,
                            .stop_ids = {},
                            .ignore_eos = true};
    request.sampling.temperature = 0;
    return request;
  }

  // The reason that one request ends with.
  static FinishReason run_to_end(engine::Engine& engine, engine::Request request) {
    const engine::RequestId id = engine.submit(std::move(request));
    while (!engine.idle()) {
      for (const engine::StepEvent& event : engine.step()) {
        if (event.request == id && event.finished) return *event.finished;
      }
    }
    ADD_FAILURE() << "the request never ended";
    return FinishReason::kCancelled;
  }

  TempDir dir;
  engine::EngineOptions options;
};

TEST_F(EngineTest, EndsAtTheAskedNumberOfTokens) {
  EngineHarness harness(dir.path(), options);
  EXPECT_EQ(harness.generate({greedy({1, 2, 3}, 5)}).front().size(), 5U);
  EXPECT_EQ(run_to_end(harness.engine(), greedy({1, 2, 3}, 5)), FinishReason::kLength);
}

TEST_F(EngineTest, EndsWhereMaxSeqLenIsReached) {
  EngineHarness harness(dir.path(), options);
  EXPECT_EQ(harness.generate({greedy(Tokens(60, 7), 100)}).front().size(), 4U);
}

TEST_F(EngineTest, StopTokenEndsTheTextAndIsNotPartOfIt) {
  EngineHarness harness(dir.path(), options);
  const Tokens free_run = harness.generate({greedy({5, 6}, 6)}).front();
  engine::Request request = greedy({5, 6}, 6);
  request.stop_ids = {free_run[3]};
  const auto first = static_cast<std::size_t>(std::ranges::find(free_run, free_run[3]) - free_run.begin());

  const Tokens stopped = harness.generate({request}).front();

  EXPECT_EQ(stopped, Tokens(free_run.begin(), free_run.begin() + static_cast<std::ptrdiff_t>(first)));
  EXPECT_EQ(run_to_end(harness.engine(), request), FinishReason::kStop);
}

TEST_F(EngineTest, ModelsEndOfTextStopsUnlessIgnored) {
  TinyModel model = tiny_model("tiny_base");
  const TempDir other;
  write_tiny_model(model, other.path());
  EngineHarness probe(other.path(), options);
  const std::int32_t first = probe.generate({greedy({9}, 1)}).front().front();
  other.write("generation_config.json", "{\"eos_token_id\": [" + std::to_string(first) + "]}");
  EngineHarness harness(other.path(), options);
  engine::Request request = greedy({9}, 4);
  request.ignore_eos = false;
  EXPECT_EQ(run_to_end(harness.engine(), request), FinishReason::kStop);
  request.ignore_eos = true;
  EXPECT_EQ(run_to_end(harness.engine(), request), FinishReason::kLength);
}

TEST_F(EngineTest, MoreRequestsThanRowsWaitTheirTurn) {
  EngineHarness harness(dir.path(), options);
  std::vector<engine::Request> requests;
  for (std::int32_t i = 0; i < 7; ++i)
    requests.push_back(greedy(Tokens(static_cast<std::size_t>(i) + 1, i), 6));
  const auto together = harness.generate(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(harness.generate({requests[i]}).front(), together[i]) << "request " << i;
  }
  EXPECT_EQ(harness.engine().cache().num_free_blocks(), harness.engine().cache().num_blocks());
}

TEST_F(EngineTest, CancelledRequestGivesItsBlocksBack) {
  EngineHarness harness(dir.path(), options);
  engine::Engine& engine = harness.engine();
  const engine::RequestId running = engine.submit(greedy({1, 2}, 40));
  const engine::RequestId other = engine.submit(greedy({3, 4}, 3));
  const engine::RequestId waiting = engine.submit(greedy({5, 6}, 40));
  (void)engine.step();
  engine.cancel(running);
  engine.cancel(waiting);

  std::vector<std::pair<engine::RequestId, FinishReason>> ends;
  while (!engine.idle()) {
    for (const engine::StepEvent& event : engine.step()) {
      if (event.finished) ends.emplace_back(event.request, *event.finished);
    }
  }

  EXPECT_THAT(ends, testing::UnorderedElementsAre(testing::Pair(running, FinishReason::kCancelled),
                                                  testing::Pair(waiting, FinishReason::kCancelled),
                                                  testing::Pair(other, FinishReason::kLength)));
  EXPECT_EQ(engine.cache().num_free_blocks(), engine.cache().num_blocks());
}

TEST_F(EngineTest, StatsAreGivenOnceForAnEndedRequest) {
  EngineHarness harness(dir.path(), options);
  const engine::RequestId id = harness.engine().submit(greedy({1, 2, 3}, 4));
  EXPECT_THROW((void)harness.engine().take_stats(id), InvalidArgument);
  while (!harness.engine().idle()) (void)harness.engine().step();
  const engine::RequestStats stats = harness.engine().take_stats(id);
  EXPECT_EQ(stats.prompt_tokens, 3U);
  EXPECT_EQ(stats.output_tokens, 4U);
  EXPECT_GT(stats.ttft.count(), 0);
  EXPECT_THROW((void)harness.engine().take_stats(id), InvalidArgument);
}

TEST_F(EngineTest, RequestsThatCannotRunAreRefusedAtTheDoor) {
  options.kv_blocks = 3;
  EngineHarness harness(dir.path(), options);
  engine::Engine& engine = harness.engine();
  EXPECT_THROW(engine.submit(greedy({}, 4)), InvalidArgument);
  EXPECT_THROW(engine.submit(greedy({1}, 0)), InvalidArgument);
  EXPECT_THROW(engine.submit(greedy({512}, 4)), InvalidArgument);
  EXPECT_THROW(engine.submit(greedy({-1}, 4)), InvalidArgument);
  EXPECT_THROW(engine.submit(greedy(Tokens(64, 1), 4)), InvalidArgument);
  engine::Request bad_sampling = greedy({1}, 4);
  bad_sampling.sampling.top_p = 0;
  EXPECT_THROW(engine.submit(bad_sampling), InvalidArgument);
  try {
    engine.submit(greedy({1}, 50));
    FAIL() << "51 tokens fitted into 3 blocks";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs 4 KV blocks of 16 tokens, the cache has 3"));
  }
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineTest, LimitsThatMakeNoSenseAreRefused) {
  options.max_seq_len = 100'000;
  EXPECT_THROW(EngineHarness(dir.path(), options), InvalidArgument);
  options.max_seq_len = 64;
  options.block_size = 17;
  EXPECT_THROW(EngineHarness(dir.path(), options), InvalidArgument);
  options.block_size = 16;
  options.max_batch_tokens = 1;
  EXPECT_THROW(EngineHarness(dir.path(), options), InvalidArgument);
}

TEST_F(EngineTest, FormatThatTheModelOrTheEngineCannotHaveIsUnsupported) {
  const auto refused = [this](std::string_view dtype, const std::string& why) {
    options.kv_dtype = quant::parse_kv_dtype(dtype);
    EXPECT_THAT([this] { EngineHarness(dir.path(), options); },
                ThrowsMessage<Unsupported>(testing::HasSubstr(why)));
  };
  refused("turbo4", "no vectors of head_dim");
  refused("bf16:turbo2", "no vectors of head_dim");
}

TEST_F(EngineTest, DecodeStepsReplayOneGraphABucket) {
  options.max_batch_size = 6;
  options.max_batch_tokens = 64;
  EngineHarness harness(dir.path(), options);
  const auto request = [](std::int32_t token) { return greedy({token}, 10); };
  (void)harness.generate({request(1)});
  EXPECT_EQ(harness.engine().decoder().num_graphs(), 1U);
  (void)harness.generate({request(1), request(2), request(3)});
  EXPECT_EQ(harness.engine().decoder().num_graphs(), 2U);
  (void)harness.generate({request(1), request(2), request(3), request(4)});
  EXPECT_EQ(harness.engine().decoder().num_graphs(), 2U);
  (void)harness.generate({request(1), request(2), request(3), request(4), request(5), request(6)});
  EXPECT_EQ(harness.engine().decoder().num_graphs(), 3U);
}

TEST_F(EngineTest, SteadyDecodeAllocatesNothingAndWaitsOnceAStep) {
  EngineHarness harness(dir.path(), options);
  engine::Engine& engine = harness.engine();
  engine.submit(greedy({1, 2, 3}, 40));
  for (int i = 0; i < 5; ++i) (void)engine.step();
  const gpu::BackendStats before = harness.gpu().stats();
  for (int i = 0; i < 10; ++i) (void)engine.step();
  const gpu::BackendStats after = harness.gpu().stats();
  EXPECT_EQ(after.allocs, before.allocs);
  EXPECT_EQ(after.synchronizes, before.synchronizes + 10);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 10);
  EXPECT_EQ(after.launches, before.launches);
}

// Whatever call of a step fails once, the step can be taken again, and no token shows it: not in prompts, nor
// in the first decode step with its capture, nor in a replay that begins a block.
TEST_F(EngineTest, AStepThatFailedIsTakenAgain) {
  options.block_size = 16;
  const auto prompt = Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const Tokens expected = EngineHarness(dir.path(), options).generate({greedy(prompt, 6)}).front();
  for (const gpu::FaultPoint point : {gpu::FaultPoint::kCopy, gpu::FaultPoint::kLaunch,
                                      gpu::FaultPoint::kStream, gpu::FaultPoint::kSynchronize}) {
    bool failed = true;
    for (std::uint64_t nth = 1; failed; ++nth) {
      const auto gpu = make_backend();
      const auto fault = gpu::make_fault_backend(*gpu);
      const SteadyClock clock;
      engine::Engine engine(*fault, dir.path(), options, clock);
      engine.submit(greedy(prompt, 6));
      fault->fail_nth(point, nth);
      Tokens tokens;
      failed = false;
      while (!engine.idle()) {
        try {
          for (const engine::StepEvent& event : engine.step()) {
            if (event.token) tokens.push_back(*event.token);
          }
        } catch (const DeviceError&) {
          failed = true;
        }
      }
      ASSERT_EQ(tokens, expected) << "call " << nth << " of kind " << static_cast<int>(point);
    }
  }
}

TEST_F(EngineTest, NothingIsLeftOnTheBackendAfterTheEngineIsGone) {
  EngineHarness harness(dir.path(), options);
  const auto gpu = make_backend();
  const SteadyClock clock;
  {
    engine::Engine engine(*gpu, dir.path(), options, clock);
    EXPECT_GT(gpu->live_bytes(), 0U);
  }
  EXPECT_EQ(gpu->live_bytes(), 0U);
  {
    engine::Engine engine(*gpu, dir.path(), options, clock);
    engine.close();
  }
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

// Every allocation of the start fails once; each time nothing stays behind, and the next start works.
TEST_F(EngineTest, EveryFailingAllocationOfTheStartLeaksNothing) {
  const auto gpu = make_backend();
  const SteadyClock clock;
  for (const gpu::FaultPoint point : {gpu::FaultPoint::kAlloc, gpu::FaultPoint::kAllocPinned}) {
    const auto fault = gpu::make_fault_backend(*gpu);
    {
      const engine::Engine engine(*fault, dir.path(), options, clock);
    }
    const std::uint64_t calls = fault->calls(point);
    ASSERT_GT(calls, 2U);
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      fault->fail_nth(point, nth);
      EXPECT_THROW(engine::Engine(*fault, dir.path(), options, clock), OutOfMemory) << "allocation " << nth;
      EXPECT_EQ(gpu->live_alloc_count(), 0U) << "allocation " << nth;
    }
    fault->fail_nth(point, 0);
    const engine::Engine engine(*fault, dir.path(), options, clock);
  }
}

TEST_F(EngineTest, FailingCopyOrLookUpOfTheStartLeaksNothing) {
  const auto gpu = make_backend();
  const SteadyClock clock;
  for (const gpu::FaultPoint point : {gpu::FaultPoint::kCopy, gpu::FaultPoint::kStream}) {
    const auto fault = gpu::make_fault_backend(*gpu);
    {
      const engine::Engine engine(*fault, dir.path(), options, clock);
    }
    const std::uint64_t calls = fault->calls(point);
    ASSERT_GT(calls, 0U);
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      fault->fail_nth(point, nth);
      EXPECT_THROW(engine::Engine(*fault, dir.path(), options, clock), DeviceError) << "call " << nth;
      EXPECT_EQ(gpu->live_alloc_count(), 0U) << "call " << nth;
    }
  }
}

TEST_F(EngineTest, CancelledLoadLeavesNothing) {
  const auto gpu = make_backend();
  const SteadyClock clock;
  options.load.progress = [](std::uint64_t done, std::uint64_t total) { return done * 2 < total; };
  EXPECT_THROW(engine::Engine(*gpu, dir.path(), options, clock), Cancelled);
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

TEST_F(EngineTest, LoadThatFailsLeavesNothingAndNamesFileAndCause) {
  const auto gpu = make_backend();
  const SteadyClock clock;
  options.load.path = weights::LoadPath::kBuffered;
  options.load.make_engine = [](const io::IoOptions& with) {
    auto engine = std::make_unique<io::FaultEngine>(io::make_io_engine(with));
    engine->inject(io::IoFault::kError, 1, EIO);
    return engine;
  };
  try {
    const engine::Engine engine(*gpu, dir.path(), options, clock);
    FAIL() << "the load went through";
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), EIO);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("model.safetensors"), HasSubstr("from byte")));
  }
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

TEST_F(EngineTest, TooLittleMemoryForTheWeightsIsFoundBeforeAnyIsRead) {
  const auto small = make_backend(2, std::uint64_t{16} << 10);
  const SteadyClock clock;
  options.load.make_engine = [](const io::IoOptions&) -> std::unique_ptr<io::IoEngine> {
    ADD_FAILURE() << "something was read";
    return nullptr;
  };
  try {
    const engine::Engine engine(*small, dir.path(), options, clock);
    FAIL() << "the weights fitted into 16 KiB";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("the model's weights do not fit"));
  }
  EXPECT_EQ(small->live_alloc_count(), 0U);
}

TEST_F(EngineTest, TooLittleMemoryForTheBlocksSaysWhatWouldFit) {
  const auto small = make_backend(2, std::uint64_t{64} << 20);
  const SteadyClock clock;
  options.kv_blocks = 100'000;
  try {
    const engine::Engine engine(*small, dir.path(), options, clock);
    FAIL() << "100000 blocks fitted into 64 megabytes";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("100000 blocks of 16 tokens asked"));
    EXPECT_THAT(error.what(), HasSubstr("would fit"));
  }
  EXPECT_EQ(small->live_alloc_count(), 0U);
}

TEST_F(EngineTest, WeightsThatDoNotMatchTheConfigurationAreListed) {
  TinyModel wider = tiny_model("tiny_base");
  wider.config["intermediate_size"] = 96;
  dir.write("config.json", tiny_config_json(wider));
  try {
    EngineHarness harness(dir.path(), options);
    FAIL() << "a wrong shape passed";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.*.mlp.gate_proj.weight has the shape [128, 64]"));
    EXPECT_THAT(error.what(), HasSubstr("asks for [96, 64]"));
    EXPECT_THAT(error.what(), HasSubstr("(3 layers)"));
  }
  TinyModel deeper = tiny_model("tiny_base");
  deeper.config["num_hidden_layers"] = 4;
  dir.write("config.json", tiny_config_json(deeper));
  try {
    EngineHarness harness(dir.path(), options);
    FAIL() << "a missing layer passed";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.3.input_layernorm.weight is missing"));
  }
}

}  // namespace
}  // namespace metrale::test
