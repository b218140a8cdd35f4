// SPDX-License-Identifier: Apache-2.0
// The trace format, and the generator: what a seed and a kind promise.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <replay/draws.h>
#include <replay/generator.h>
#include <replay/record.h>
#include <replay/trace.h>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "app/program.h"

namespace metrale::test {
namespace {

using replay::generate_trace;
using replay::parse_trace;
using replay::Trace;
using replay::TraceKind;
using replay::TraceOptions;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kHeader = "{\"metrale_trace\":1,\"vocab\":100,\"seed\":5}\n";

TraceOptions small_options(TraceKind kind) {
  TraceOptions options;
  options.kind = kind;
  options.seed = 11;
  options.requests = 60;
  options.vocab = 1000;
  options.prefixes = 3;
  options.shared_tokens = 40;
  options.own_tokens = {5, 9};
  options.output_tokens = {4, 8};
  return options;
}

// Prompts as they would be with answers that share nothing; full[i] has the answer behind.
struct Expanded {
  explicit Expanded(const Trace& trace) {
    std::vector<replay::RequestRecord> records(trace.requests.size());
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      records[i].answers.resize(1);
      for (std::uint32_t at = 0; at < trace.requests[i].max_tokens; ++at)
        records[i].answers[0].tokens.push_back(replay::stream_token(~trace.seed, i, at, trace.vocab));
      prompts.push_back(replay::prompt_of(trace, records, i));
      full.push_back(prompts.back());
      full.back().insert(full.back().end(), records[i].answers[0].tokens.begin(),
                         records[i].answers[0].tokens.end());
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) shared.push_back(longest_shared(trace, i));
  }

  // How much of a prompt an earlier request of the same tenant, with its answer, begins with too.
  [[nodiscard]] std::size_t longest_shared(const Trace& trace, std::size_t request) const {
    std::size_t longest = 0;
    for (std::size_t j = 0; j < request; ++j) {
      if (trace.requests[j].tenant != trace.requests[request].tenant) continue;
      const auto [end, other] = std::ranges::mismatch(prompts[request], full[j]);
      longest = std::max(longest, static_cast<std::size_t>(end - prompts[request].begin()));
    }
    return longest;
  }

  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::vector<std::int32_t>> full;
  std::vector<std::size_t> shared;
};

std::map<std::size_t, std::vector<std::size_t>> children_of(const Trace& trace) {
  std::map<std::size_t, std::vector<std::size_t>> children;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].parent) children[*trace.requests[i].parent].push_back(i);
  }
  return children;
}

TEST(TraceFormat, TextAndTraceAreEachOthersInverse) {
  for (const TraceKind kind :
       {TraceKind::kSystem, TraceKind::kChat, TraceKind::kAgent, TraceKind::kFork, TraceKind::kMix}) {
    TraceOptions options = small_options(kind);
    options.tenants = 3;
    options.cancel_rate = 0.3;
    Trace trace = generate_trace(options);
    trace.note = "a \"note\"\n";
    EXPECT_EQ(parse_trace(to_text(trace), "t"), trace);
  }
}

TEST(TraceFormat, EveryMemberIsRead) {
  const std::string text =
      std::string(kHeader) +
      R"({"id":7,"arrival":0.25,"tenant":"ä","prompt":[{"stream":3,"tokens":2},{"tokens":[1,99]}],"max_tokens":5,)"
      R"("n":2,"temperature":0.5,"priority":-4,"timeout":1.5,"cancel_after":0})"
      "\r\n\n"
      R"({"id":9,"parent":7,"think":0.000000001,"max_tokens":1})";

  const Trace trace = parse_trace(text, "t");

  ASSERT_EQ(trace.requests.size(), 2U);
  const replay::TraceRequest& first = trace.requests[0];
  EXPECT_EQ(first.arrival, std::chrono::milliseconds(250));
  EXPECT_EQ(first.prompt[0].count, 2U);
  EXPECT_EQ(first.prompt[1].ids, (std::vector<std::int32_t>{1, 99}));
  EXPECT_EQ(first.n, 2U);
  EXPECT_EQ(first.temperature, 0.5F);
  EXPECT_EQ(first.priority, -4);
  EXPECT_EQ(first.tenant, "ä");
  EXPECT_EQ(first.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(first.cancel_after, 0U);
  EXPECT_EQ(trace.requests[1].parent, 0U);
  EXPECT_EQ(trace.requests[1].think, Nanoseconds(1));
  EXPECT_EQ(replay::longest_prompts(trace.requests), (std::vector<std::uint64_t>{4, 9}));
  EXPECT_EQ(parse_trace(to_text(trace), "t"), trace);
}

TEST(TraceFormat, StreamsAreThoseOfTheFormatPage) {
  const auto first = [](std::uint64_t seed, std::uint64_t stream, std::uint32_t vocab) {
    std::vector<std::int32_t> tokens;
    for (std::uint64_t i = 0; i < 4; ++i) tokens.push_back(replay::stream_token(seed, stream, i, vocab));
    return tokens;
  };
  EXPECT_EQ(first(0, 0, 32'000), (std::vector<std::int32_t>{14878, 28779, 18400, 13009}));
  EXPECT_EQ(first(7, 3, 512), (std::vector<std::int32_t>{265, 14, 104, 142}));
  EXPECT_EQ(first(~0ULL, ~0ULL, 0x7FFF'FFFF),
            (std::vector<std::int32_t>{1227827817, 601799204, 891171850, 1136733851}));
  EXPECT_EQ(first(1, 1, 1), (std::vector<std::int32_t>{0, 0, 0, 0}));
}

struct BadLine {
  const char* line;  // the third of a file, after a good request with id 1
  const char* message;
};

const std::vector<BadLine>& bad_lines() {
  static const std::vector<BadLine> lines{
      {"{", "not JSON"},
      {"[1]", "object"},
      {"{}", "no \"id\""},
      {R"({"id":"a"})", "\"id\" is \"a\""},
      {R"({"id":-1})", "\"id\" is -1"},
      {R"({"id":2})", "no \"arrival\""},
      {R"({"id":2,"arrival":-0.5})", "-0.5"},
      {R"({"id":2,"arrival":1e300})", "1000000"},
      {R"({"id":2,"arrival":1e999})", "not JSON"},
      {R"({"id":2,"arrival":null})", "null"},
      {R"({"id":1,"arrival":0})", "earlier request"},
      {R"({"id":2,"parent":2})", "no earlier request"},
      {R"({"id":2,"parent":3})", "no earlier request"},
      {R"({"id":2,"arrival":0,"think":1})", "no \"parent\""},
      {R"({"id":2,"arrival":0,"max_tokens":2})", "no tokens"},
      {R"({"id":2,"arrival":0,"prompt":{},"max_tokens":2})", "list of parts"},
      {R"({"id":2,"arrival":0,"prompt":[3],"max_tokens":2})", "expected objects"},
      {R"({"id":2,"arrival":0,"prompt":[{"stream":1}],"max_tokens":2})", "no \"tokens\""},
      {R"({"id":2,"arrival":0,"prompt":[{"stream":1,"tokens":0}],"max_tokens":2})", "\"tokens\" is 0"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[]}],"max_tokens":2})", "empty"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":7}],"max_tokens":2})", "list of token ids"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[100]}],"max_tokens":2})", "below 100"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1],"stream":"x"}],"max_tokens":2})", "stream"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1],"x":1}],"max_tokens":2})", "unknown member \"x\""},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":0})", "max_tokens"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":16777216})", "at most 16777216"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"n":0})", "\"n\" is 0"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"priority":0.5})", "0.5"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"priority":-2147483648})", "priority"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"tenant":5})", "a string"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"cancel_after":-1})", "cancel"},
      {R"({"id":2,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2,"typo":1})",
       "unknown member \"typo\""},
      {R"({"id":2,"id":3,"arrival":0,"prompt":[{"tokens":[1]}],"max_tokens":2})", "twice"}};
  return lines;
}

TEST(TraceFormat, BadLinesAreNamedWithFileAndLine) {
  const std::string good = R"({"id":1,"arrival":0,"prompt":[{"stream":1,"tokens":4}],"max_tokens":2})";
  for (const BadLine& bad : bad_lines()) {
    SCOPED_TRACE(bad.line);
    try {
      (void)parse_trace(kHeader + good + "\n" + bad.line, "dir/x.jsonl");
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("dir/x.jsonl"), HasSubstr("line 3"), HasSubstr(bad.message)));
      EXPECT_EQ(error.offset(), std::string(kHeader).size() + good.size() + 1);
    }
  }
}

// A message of its line, whatever member is so deep that to print it would overflow the stack.
TEST(TraceFormat, DeepLinesAreRefused) {
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  const auto message = [&](const std::string& text) {
    try {
      (void)parse_trace(text, "x.jsonl");
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("{\"metrale_trace\":" + deep + "}"), AllOf(HasSubstr("line 1"), HasSubstr("64 deep")));
  for (const char* member : {"id", "prompt", "anything"}) {
    EXPECT_THAT(message(std::string(kHeader) + "{\"" + member + "\":" + deep + "}"),
                AllOf(HasSubstr("x.jsonl"), HasSubstr("line 2"), HasSubstr("64 deep")))
        << member;
  }
  EXPECT_THAT(message(std::string(kHeader) + "{\"id\":[[1,2]]}"), HasSubstr("\"id\" is an array"));
}

TEST(TraceFormat, BadHeadersAreRefused) {
  const std::string request =
      "{\"id\":1,\"arrival\":0,\"prompt\":[{\"stream\":1,\"tokens\":4}],\"max_tokens\":2}\n";
  const auto message = [&](const std::string& text) {
    try {
      (void)parse_trace(text, "x");
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message(""), HasSubstr("no requests"));
  EXPECT_THAT(message(kHeader), HasSubstr("no requests"));
  EXPECT_THAT(message(request), AllOf(HasSubstr("line 1"), HasSubstr("no trace")));
  EXPECT_THAT(message("{\"metrale_trace\":2}\n" + request), HasSubstr("version 2"));
  EXPECT_THAT(message("{\"metrale_trace\":1,\"vocab\":0,\"seed\":1}\n" + request), HasSubstr("vocab"));
  EXPECT_THAT(message("{\"metrale_trace\":1,\"vocab\":9,\"seed\":1,\"x\":1}\n" + request),
              HasSubstr("unknown"));
}

TEST(TraceDraws, LogarithmNeedsNoLibraryAndIsRight) {
  for (std::uint64_t bits = ~0ULL; bits > 0; bits = bits / 7 * 4) {
    const double exact = -std::log(static_cast<double>(bits) * 0x1p-64);
    EXPECT_NEAR(static_cast<double>(replay::minus_log(bits)) * 0x1p-32, exact, 1e-9) << bits;
  }
  EXPECT_EQ(replay::minus_log(std::uint64_t{1} << 63), 0xB172'17F7U);  // ln 2
}

TEST(TraceGenerator, SameOptionsGiveTheSameBytesAndAnotherSeedOthers) {
  TraceOptions options = small_options(TraceKind::kMix);
  const std::string text = to_text(generate_trace(options));
  EXPECT_EQ(to_text(generate_trace(options)), text);
  options.seed += 1;
  EXPECT_NE(to_text(generate_trace(options)), text);
}

TEST(TraceGenerator, BytesAreTheSameOnEveryMachine) {
  TraceOptions options = small_options(TraceKind::kChat);
  options.requests = 3;
  options.cancel_rate = 0.5;
  EXPECT_EQ(to_text(generate_trace(options)),
            R"({"metrale_trace":1,"vocab":1000,"seed":11}
{"id":0,"arrival":0,"prompt":[{"stream":1,"tokens":40},{"stream":3,"tokens":9}],"max_tokens":4}
{"id":1,"parent":0,"think":0.931145,"prompt":[{"stream":4,"tokens":7}],"max_tokens":5,"cancel_after":3}
{"id":2,"parent":1,"think":0.24544,"prompt":[{"stream":5,"tokens":5}],"max_tokens":8,"cancel_after":4}
)");
}

TEST(TraceGenerator, RequestsArriveAtTheRateThatWasAskedFor) {
  for (const TraceKind kind : {TraceKind::kSystem, TraceKind::kAgent, TraceKind::kMix}) {
    TraceOptions options = small_options(kind);
    options.requests = 20'000;
    options.rate = 50;
    const Trace trace = generate_trace(options);
    Nanoseconds last{0};
    for (const replay::TraceRequest& request : trace.requests) {
      if (request.parent) continue;
      EXPECT_GE(request.arrival, last);
      last = request.arrival;
    }
    EXPECT_NEAR(std::chrono::duration<double>(last).count(), 400, 12);
  }
}

TEST(TraceGenerator, SystemRequestsShareOneOfTheSharedPromptsAndNoMore) {
  const Trace trace = generate_trace(small_options(TraceKind::kSystem));
  const Expanded expanded(trace);
  std::set<std::vector<std::int32_t>> shared_prompts;
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_FALSE(trace.requests[i].parent);
    const auto& prompt = expanded.prompts[i];
    const bool is_first = shared_prompts.insert({prompt.begin(), prompt.begin() + 40}).second;
    // Tokens of different streams may agree by chance.
    EXPECT_GE(expanded.shared[i], is_first ? 0U : 40U);
    EXPECT_LE(expanded.shared[i], is_first ? 3U : 43U);
    EXPECT_GE(prompt.size(), 45U);
    EXPECT_LE(prompt.size(), 49U);
  }
  EXPECT_EQ(shared_prompts.size(), 3U);
}

TEST(TraceGenerator, TurnsOfAChatBeginWithAllThatWasSaid) {
  TraceOptions options = small_options(TraceKind::kChat);
  options.turns = {3, 3};
  const Trace trace = generate_trace(options);
  const Expanded expanded(trace);
  for (std::size_t i = 0; i < 60; ++i) {
    ASSERT_EQ(trace.requests[i].parent.has_value(), i % 3 != 0);
    if (i % 3 == 0) continue;
    EXPECT_EQ(trace.requests[i].parent, i - 1);
    EXPECT_GE(expanded.shared[i], expanded.full[i - 1].size());
    EXPECT_GT(expanded.prompts[i].size(), expanded.full[i - 1].size());
  }
}

TEST(TraceGenerator, AgentsTakeMoreStepsWithoutPauses) {
  const Trace agents = generate_trace(small_options(TraceKind::kAgent));
  const Trace chats = generate_trace(small_options(TraceKind::kChat));
  const auto followers = [](const Trace& trace) {
    return std::ranges::count_if(trace.requests,
                                 [](const auto& request) { return request.parent.has_value(); });
  };
  const auto pauses = [](const Trace& trace) {
    Nanoseconds sum{0};
    for (const auto& request : trace.requests) sum += request.think;
    return sum;
  };
  EXPECT_GT(followers(agents), followers(chats));
  EXPECT_LT(4 * pauses(agents), pauses(chats));
  for (const auto& [parent, children] : children_of(agents)) EXPECT_EQ(children.size(), 1U) << parent;
}

TEST(TraceGenerator, ForksHaveSeveralAnswersAndSeveralSuccessorsOfOne) {
  TraceOptions options = small_options(TraceKind::kFork);
  options.branches = {3, 3};
  const Trace trace = generate_trace(options);
  const Expanded expanded(trace);
  const auto children = children_of(trace);
  EXPECT_EQ(children.size(), 15U);
  for (const auto& [root, branches] : children) {
    EXPECT_EQ(trace.requests[root].n, 3U);
    EXPECT_GT(trace.requests[root].temperature, 0);
    ASSERT_EQ(branches.size(), 3U);
    for (const std::size_t branch : branches) {
      EXPECT_EQ(trace.requests[branch].think, Nanoseconds(0));
      EXPECT_GE(expanded.shared[branch], expanded.full[root].size());
    }
    EXPECT_NE(expanded.prompts[branches[0]], expanded.prompts[branches[1]]);
  }
}

TEST(TraceGenerator, MixHasEveryKind) {
  TraceOptions options = small_options(TraceKind::kMix);
  options.requests = 400;
  const Trace trace = generate_trace(options);
  const auto children = children_of(trace);
  EXPECT_TRUE(std::ranges::any_of(trace.requests, [](const auto& request) { return request.n > 1; }));
  EXPECT_TRUE(std::ranges::any_of(
      trace.requests, [](const auto& request) { return request.think > std::chrono::seconds(1); }));
  EXPECT_TRUE(std::ranges::any_of(children, [](const auto& entry) { return entry.second.size() > 1; }));
  std::size_t singles = 0;
  for (std::size_t i = 0; i < 400; ++i)
    singles += !trace.requests[i].parent && !children.contains(i) && trace.requests[i].n == 1 ? 1 : 0;
  EXPECT_GT(singles, 10U);
}

TEST(TraceGenerator, TenantsShareLess) {
  TraceOptions options = small_options(TraceKind::kSystem);
  const auto sum = [&] {
    const Expanded expanded(generate_trace(options));
    std::size_t total = 0;
    for (const std::size_t shared : expanded.shared) total += shared;
    return total;
  };
  const std::size_t together = sum();
  options.tenants = 20;
  EXPECT_LT(2 * sum(), together);
}

TEST(TraceGenerator, CancellationsComeBeforeTheEndAtTheRateAskedFor) {
  TraceOptions options = small_options(TraceKind::kSystem);
  options.requests = 4000;
  options.cancel_rate = 0.25;
  std::size_t cancelled = 0;
  for (const replay::TraceRequest& request : generate_trace(options).requests) {
    if (!request.cancel_after) continue;
    ++cancelled;
    EXPECT_LT(*request.cancel_after, request.max_tokens);
  }
  EXPECT_NEAR(static_cast<double>(cancelled), 1000, 100);
}

TEST(TraceGenerator, OptionsThatMakeNoTraceAreRefused) {
  TraceOptions options = small_options(TraceKind::kChat);
  options.turns = {5, 2};
  EXPECT_THROW((void)generate_trace(options), InvalidArgument);
  options = small_options(TraceKind::kChat);
  options.turns = {40, 40};
  options.own_tokens = {1U << 20, 1U << 20};
  EXPECT_THROW((void)generate_trace(options), InvalidArgument);  // a sequence beyond what the format takes
}

TEST(TraceGenerator, TraceThatWouldTakeTooLongIsRefusedBeforeItIsDrawn) {
  TraceOptions options = small_options(TraceKind::kSystem);
  options.requests = 10'000'000;
  options.rate = 1;
  const auto refusal = [&] {
    int asked = 0;
    const auto count = [&] { return ++asked < 0; };
    try {
      (void)generate_trace(options, count);
    } catch (const InvalidArgument& error) {
      return std::pair(std::string(error.what()), asked);
    }
    return std::pair(std::string("accepted"), asked);
  };
  EXPECT_THAT(refusal().first,
              AllOf(HasSubstr("--rate"), HasSubstr("--requests"), HasSubstr("1000000 seconds")));
  EXPECT_EQ(refusal().second, 0);
  // Where only the draws say: at the first request that comes too late.
  options.requests = 1000;
  options.rate = 0.0009;
  EXPECT_THAT(refusal().first, HasSubstr("--rate"));
  EXPECT_GT(refusal().second, 0);
}

TEST(TraceGenerator, CanBeInterrupted) {
  int asked = 0;
  EXPECT_THROW((void)generate_trace(small_options(TraceKind::kMix), [&] { return ++asked == 3; }), Cancelled);
}

struct TraceCommand : ProgramTest {};

TEST_F(TraceCommand, InterruptEndsItWithoutAFile) {
  // Long to generate: the signal comes in the middle, or before the first request.
  const ProcessResult result = run_process(
      {"/bin/sh", "-c", R"sh("$@" & pid=$!; sleep 0.3; kill -INT $pid; wait $pid)sh", "sh", METRALE_PROGRAM,
       "trace", "--requests", "10000000", "--rate", "1000", "-o", dir.file("t.jsonl")});
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_FALSE(std::filesystem::exists(dir.file("t.jsonl")));
}

TEST_F(TraceCommand, FileAndStandardOutputAreTheSameAndCanBeRead) {
  const std::vector<std::string> flags{"trace",      "--kind", "mix",     "--seed", "3",
                                       "--requests", "50",     "--vocab", "512"};
  const ProcessResult shown = metrale(flags);
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  std::vector<std::string> to_file = flags;
  to_file.insert(to_file.end(), {"-o", dir.file("t.jsonl")});
  EXPECT_EQ(metrale(to_file).out, "");
  std::ostringstream written;
  written << std::ifstream(dir.file("t.jsonl")).rdbuf();
  EXPECT_EQ(written.str(), shown.out);
  const Trace trace = parse_trace(shown.out, "t");
  EXPECT_EQ(trace.requests.size(), 50U);
  EXPECT_EQ(trace.vocab, 512U);
  // The note is the command that makes the same trace.
  std::istringstream note(trace.note);
  std::vector<std::string> again;
  for (std::string word; note >> word;) again.push_back(word);
  EXPECT_EQ(metrale({again.begin() + 1, again.end()}).out, shown.out);
}

TEST_F(TraceCommand, VocabularyCanBeThatOfAModel) {
  const ProcessResult result = metrale({"trace", "-m", model(), "--requests", "1"});
  EXPECT_EQ(parse_trace(result.out, "t").vocab, 512U);
}

TEST_F(TraceCommand, TenThousandRequestsAreASmallFile) {
  EXPECT_LT(metrale({"trace", "--requests", "10000"}).out.size(), 2'000'000U);
}

TEST_F(TraceCommand, BadFlagsAreUsageErrors) {
  const auto code = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "trace");
    const ProcessResult result = metrale(flags);
    EXPECT_EQ(result.out, "");
    return result.exit_code;
  };
  EXPECT_EQ(code({"--kind", "tree"}), 2);
  EXPECT_EQ(code({"--requests", "0"}), 2);
  EXPECT_EQ(code({"--rate", "0"}), 2);
  EXPECT_EQ(code({"--own-tokens", "9:3"}), 2);
  EXPECT_EQ(code({"--own-tokens", "3:"}), 2);
  EXPECT_EQ(code({"--turns", "0"}), 2);
  EXPECT_EQ(code({"--cancel-rate", "1.5"}), 2);
  EXPECT_EQ(code({"--vocab", "9", "-m", model()}), 2);
  EXPECT_EQ(code({"-o", dir.file("no/t")}), 4);
}

}  // namespace
}  // namespace metrale::test
