// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json only_line(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

using Generate = ProgramTest;

TEST_F(Generate, PromptFromFlagFileAndStandardInputGiveTheSameText) {
  const ProcessResult flag = generate({"-p", "hello there", "-n", "12", "--ignore-eos"});
  dir.write("prompt.txt", "hello there");
  EXPECT_EQ(flag.exit_code, 0) << flag.err;
  EXPECT_EQ(flag.err, "");
  EXPECT_EQ(generate({"-f", dir.file("prompt.txt"), "-n", "12", "--ignore-eos"}).out, flag.out);
  EXPECT_EQ(generate({"-n", "12", "--ignore-eos"}, {.input = "hello there"}).out, flag.out);
  EXPECT_EQ(generate({"-f", "-", "-n", "12", "--ignore-eos"}, {.input = "hello there"}).out, flag.out);
}

TEST_F(Generate, JsonHasTokensTextReasonAndStats) {
  const json line = only_line(generate({"--tokens", "1,2,3", "-n", "6", "--ignore-eos", "--json"}));
  EXPECT_EQ(line["prompt_tokens"], 3);
  EXPECT_EQ(line["tokens"].size(), 6U);
  EXPECT_TRUE(line["text"].is_string());
  EXPECT_EQ(line["finish_reason"], "length");
  EXPECT_EQ(line["stats"]["kv_bytes_per_token"], 3 * 2 * 2 * 16 * 2);
  for (const char* name : {"load_seconds", "ttft_seconds", "prefill_tokens_per_second",
                           "decode_tokens_per_second", "peak_memory_bytes"}) {
    EXPECT_GT(line["stats"][name].get<double>(), 0) << name;
  }
}

TEST_F(Generate, TokenIdsNeedNoTokenizer) {
  std::filesystem::remove(model() + "/tokenizer.json");
  const json line = only_line(generate({"--tokens", "1 2 3", "-n", "4", "--ignore-eos", "--json"}));
  EXPECT_TRUE(line["text"].is_null());
  EXPECT_EQ(line["tokens"].size(), 4U);
  const ProcessResult text = generate({"--tokens", "1 2 3", "-n", "4", "--ignore-eos"});
  EXPECT_EQ(text.exit_code, 0);
  std::istringstream words(text.out);
  for (const json& token : line["tokens"]) {
    std::int32_t word = -1;
    words >> word;
    EXPECT_EQ(word, token.get<std::int32_t>());
  }
}

TEST_F(Generate, BatchGivesEachPromptWhatItGetsAlone) {
  dir.write("prompts.txt", "one\n\nthe second prompt\nthree 3\n");
  const ProcessResult batch =
      generate({"--batch", dir.file("prompts.txt"), "-n", "8", "--json", "--ignore-eos"});
  ASSERT_EQ(batch.exit_code, 0) << batch.err;
  std::istringstream lines(batch.out);
  for (const char* prompt : {"one", "the second prompt", "three 3"}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const json alone = only_line(generate({"-p", prompt, "-n", "8", "--json", "--ignore-eos"}));
    EXPECT_EQ(json::parse(line)["tokens"], alone["tokens"]) << prompt;
  }
}

TEST_F(Generate, LinesMayEndWithCarriageReturns) {
  dir.write("unix.txt", "one\ntwo\n");
  dir.write("dos.txt", "one\r\n\r\ntwo\r\n");
  EXPECT_EQ(generate({"--batch", dir.file("dos.txt"), "-n", "4"}).out,
            generate({"--batch", dir.file("unix.txt"), "-n", "4"}).out);
}

TEST_F(Generate, PromptMayComeThroughAPipe) {
  const std::string flag = generate({"-p", "piped", "-n", "4"}).out;
  EXPECT_EQ(generate({"-f", "/dev/stdin", "-n", "4"}, {.input = "piped"}).out, flag);
}

TEST_F(Generate, JsonlBatchTakesTextsAndTokens) {
  dir.write("prompts.jsonl", "{\"prompt\": \"a\\nb\"}\n{\"tokens\": [4, 5]}\n");
  const ProcessResult batch = generate({"--batch", dir.file("prompts.jsonl"), "-n", "3", "--json"});
  ASSERT_EQ(batch.exit_code, 0) << batch.err;
  std::istringstream lines(batch.out);
  std::string first;
  std::string second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(json::parse(first)["prompt_tokens"], 3);
  EXPECT_EQ(json::parse(second)["prompt_tokens"], 2);
}

TEST_F(Generate, SameSeedGivesTheSameTextAndAnotherSeedAnother) {
  const std::vector<std::string> base{"-p", "seed", "-n", "24", "--temperature", "1.5", "--ignore-eos"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), {"--seed", seed});
    return generate(arguments).out;
  };
  EXPECT_EQ(with_seed("7"), with_seed("7"));
  EXPECT_NE(with_seed("7"), with_seed("8"));
}

TEST_F(Generate, LogitBiasBansAToken) {
  const json free_run = only_line(generate({"--tokens", "1", "-n", "1", "--json", "--ignore-eos"}));
  const std::string banned = std::to_string(free_run["tokens"][0].get<int>());
  const json biased = only_line(
      generate({"--tokens", "1", "-n", "1", "--json", "--ignore-eos", "--logit-bias", banned + ":-inf"}));
  EXPECT_NE(biased["tokens"][0], free_run["tokens"][0]);
}

TEST_F(Generate, LimitsThreadsAndGraphsDoNotChangeTheText) {
  const json reference = only_line(generate({"-p", "some words here", "-n", "20", "--json", "--ignore-eos"}));
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--max-batch-tokens", "3"},
                                             {"--block-size", "64"},
                                             {"--no-graphs"},
                                             {"--threads", "5"},
                                             {"--threads", "3", "--cpus", "0", "--numa", "bind"},
                                             {"--kv-blocks", "9"},
                                             {"--max-seq-len", "400"}}) {
    std::vector<std::string> arguments{"-p", "some words here", "-n", "20", "--json", "--ignore-eos"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(only_line(generate(arguments))["tokens"], reference["tokens"]) << flags.front();
  }
}

TEST_F(Generate, StatsGoToStandardError) {
  const ProcessResult result = generate({"-p", "x", "-n", "3", "--stats", "--ignore-eos"});
  EXPECT_THAT(result.err, HasSubstr("TTFT"));
  EXPECT_THAT(result.err, HasSubstr("384 bytes a token"));
  EXPECT_THAT(result.out, Not(HasSubstr("TTFT")));
}

TEST_F(Generate, OutputFileHoldsWhatStandardOutputWould) {
  const std::string to_stdout = generate({"-p", "x", "-n", "5", "--ignore-eos"}).out;
  const ProcessResult result = generate({"-p", "x", "-n", "5", "--ignore-eos", "-o", dir.file("out.txt")});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(read_file(dir.file("out.txt")), to_stdout);
}

TEST_F(Generate, ChatWrapsThePromptInChatMl) {
  const json chat = only_line(generate({"-p", "hi", "--chat", "-n", "1", "--json"}));
  const json plain = only_line(generate({"-p", "hi", "-n", "1", "--json"}));
  EXPECT_GT(chat["prompt_tokens"].get<int>(), plain["prompt_tokens"].get<int>() + 3);
  const json with_system =
      only_line(generate({"-p", "hi", "--chat", "--system", "be brief", "-n", "1", "--json"}));
  EXPECT_GT(with_system["prompt_tokens"].get<int>(), chat["prompt_tokens"].get<int>());
}

TEST_F(Generate, ModelsRecommendedSamplingIsTheDefault) {
  const std::vector<std::string> base{"-p", "the other", "-n", "12", "--ignore-eos", "--json"};
  const auto tokens = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return only_line(generate(more))["tokens"];
  };
  const auto greedy = tokens({});
  const auto sampled = tokens({"--temperature", "1.5", "--top-k", "40"});
  ASSERT_NE(greedy, sampled);
  dir.write("model/generation_config.json", R"({"do_sample": true, "temperature": 1.5, "top_k": 40})");

  EXPECT_EQ(tokens({}), sampled);
  EXPECT_EQ(tokens({"--temperature", "0"}), greedy);
}

TEST_F(Generate, IdsBeyondTheTokenizerGiveNoText) {
  // The matrix of the model has 512 rows, the tokenizer ends before them.
  TinyModel shorter = tiny_model("tiny_base");
  shorter.config["vocab_size"] = 261;
  dir.write("model/tokenizer.json", tiny_tokenizer_json(shorter));

  const auto answer = only_line(generate({"-p", "a", "-n", "2", "--json", "--logit-bias", "500:1000"}));

  EXPECT_EQ(answer["tokens"], nlohmann::json({500, 500}));
  EXPECT_EQ(answer["text"], "");
}

TEST_F(Generate, StopTextEndsTheTextAndIsNoPartOfIt) {
  const std::vector<std::string> base{"-p", "abc", "-n", "12", "--ignore-eos", "--json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return only_line(generate(more));
  };
  const std::string text = with({})["text"];
  ASSERT_GT(text.size(), 4U);
  const std::string stop = text.substr(3, 2);
  const json stopped = with({"--stop", "[never]", "--stop", stop});
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(with({"--stop", "[never]"})["text"], text);
}

TEST_F(Generate, StopTextMayNotBeEmptyAndNeedsATokenizer) {
  EXPECT_EQ(generate({"-p", "x", "--stop", ""}).exit_code, 2);
  std::filesystem::remove(model() + "/tokenizer.json");
  const ProcessResult result = generate({"--tokens", "1", "--stop", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("tokenizer"));
}

TEST_F(Generate, SharedPrefixesDoNotChangeTheTexts) {
  const std::string shared =
      "a beginning that is long enough for several blocks of sixteen tokens, and then ";
  dir.write("prompts.txt", shared + "one\n" + shared + "two\n" + shared + "three\n");
  const std::vector<std::string> base{"--batch", dir.file("prompts.txt"), "-n", "8", "--max-batch-size", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    const ProcessResult result = generate(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(with({"--enable-prefix-caching", "--tenant", "t"}), with({}));
}

TEST_F(Generate, MetricsAreServedWhereAsked) {
  const ProcessResult result = generate({"-p", "x", "-n", "1", "--metrics-port", "0"});
  if (result.exit_code == 6) GTEST_SKIP() << "a build without prometheus-cpp";
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("metrics: http://127.0.0.1:"));
}

TEST_F(Generate, LastJsonLineHasTheMetricsOfTheRun) {
  dir.write("prompts.txt", "one\ntwo\n");
  const ProcessResult batch =
      generate({"--batch", dir.file("prompts.txt"), "-n", "3", "--ignore-eos", "--json"});
  ASSERT_EQ(batch.exit_code, 0) << batch.err;
  const std::size_t end = batch.out.find('\n');
  EXPECT_FALSE(json::parse(batch.out.substr(0, end)).contains("metrics"));
  const json metrics = json::parse(batch.out.substr(end))["metrics"];
  EXPECT_EQ(metrics["metrale_generated_tokens_total"]["samples"][0]["value"], 6);
  EXPECT_EQ(metrics["metrale_ttft_seconds"]["samples"][0]["count"], 2);
}

TEST_F(Generate, InterruptPrintsWhatThereIsAndEndsCleanly) {
  TinyModel longer = tiny_model("tiny_base");
  longer.config["max_position_embeddings"] = 200'000;
  write_tiny_model(longer, dir.file("long"));
  // Token ids are printed with a space behind each: the signal comes after the first.
  std::filesystem::remove(dir.file("long") + "/tokenizer.json");

  const ProcessResult result =
      metrale({"generate", "-m", dir.file("long"), "--tokens", "1,2", "-n", "150000", "--ignore-eos"},
              {.signal = SIGINT, .signal_after = " "});

  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace metrale::test
