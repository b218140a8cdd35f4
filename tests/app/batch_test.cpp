// SPDX-License-Identifier: Apache-2.0
// metrale batch as a user runs it: a file of requests in, a file of results out, and what is left when it
// does not come to its end.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Every line of a text that consists of whole ones.
std::vector<json> parse_lines(const std::string& text) {
  EXPECT_TRUE(text.empty() || text.ends_with('\n'));
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

std::vector<std::string> ids_of(const std::vector<json>& results) {
  std::vector<std::string> ids;
  for (const json& result : results) ids.push_back(result["custom_id"]);
  return ids;
}

const json& body_of(const json& result) {
  EXPECT_EQ(result["error"], nullptr);
  return result["response"]["body"];
}

const json& choice_of(const json& result, std::size_t index = 0) {
  return body_of(result)["choices"].at(index);
}

struct Batch : ProgramTest {
  // metrale batch -m MODEL FILE …, with a file of these lines.
  [[nodiscard]] std::vector<std::string> command(const std::string& lines,
                                                 std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"batch", "-m", model(), dir.write("in.jsonl", lines)});
    return arguments;
  }
  [[nodiscard]] ProcessResult batch(const std::string& lines, std::vector<std::string> arguments = {},
                                    const ProcessOptions& options = {}) const {
    return metrale(command(lines, std::move(arguments)), options);
  }
  // The results of a run that succeeds, on standard output.
  [[nodiscard]] std::vector<json> results(const std::string& lines,
                                          std::vector<std::string> arguments = {}) const {
    const ProcessResult result = batch(lines, std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_lines(result.out);
  }
  [[nodiscard]] json generated(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProcessResult result = generate(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  [[nodiscard]] std::string out() const { return dir.file("out.jsonl"); }
  // Runs until the output file has so many lines, then sends the signal.
  [[nodiscard]] ProcessResult signal_after_lines(int lines, const std::string& signal,
                                                 const std::vector<std::string>& arguments) const {
    const std::string script = R"sh("$@" & pid=$!
      until [ "$(wc -l 2>/dev/null < "$OUT")" -ge $LINES_WANTED ] 2>/dev/null; do
        kill -0 $pid 2>/dev/null || break
        sleep 0.01
      done
      kill -$SIGNAL $pid
      wait $pid)sh";
    std::vector<std::string> shell{"/bin/sh", "-c", script, "sh", METRALE_PROGRAM};
    shell.insert(shell.end(), arguments.begin(), arguments.end());
    return run_process(shell, {.environment = {"OUT=" + out(), "SIGNAL=" + signal,
                                               "LINES_WANTED=" + std::to_string(lines)}});
  }
  // Takes a model of which an answer may be so long that no test waits for its end.
  void use_endless_model() const {
    TinyModel longer = tiny_model("tiny_base");
    longer.config["max_position_embeddings"] = 200'000;
    write_tiny_model(longer, model());
  }
};

const std::string kEndless =
    R"({"custom_id": "endless", "tokens": [1, 2], "max_tokens": 190000, "ignore_eos": true})";
const std::vector<std::string> kEndlessLimits{"--max-seq-len", "195000", "--kv-blocks", "12500"};

TEST_F(Batch, ResultsComeInTheOrderOfTheInput) {
  const auto lines = results(R"({"custom_id": "long", "prompt": "a", "max_tokens": 40, "ignore_eos": true}
{"custom_id": "short", "prompt": "b", "max_tokens": 1, "ignore_eos": true}
{"custom_id": "bad"}

{"prompt": "c", "max_tokens": 2, "ignore_eos": true})");
  EXPECT_THAT(ids_of(lines), ElementsAre("long", "short", "bad", "line-5"));
  EXPECT_EQ(lines[3]["id"], "batch_req_5");
  EXPECT_EQ(choice_of(lines[0])["tokens"].size(), 40U);
}

TEST_F(Batch, ResultsComeAsTheyAreFinishedWhereAsked) {
  const auto lines = results(R"({"custom_id": "long", "prompt": "a", "max_tokens": 40, "ignore_eos": true}
{"custom_id": "short", "prompt": "b", "max_tokens": 1, "ignore_eos": true}
{"custom_id": "bad"})",
                             {"--order", "finished"});
  EXPECT_THAT(ids_of(lines), ElementsAre("bad", "short", "long"));
}

TEST_F(Batch, LineGetsWhatGenerateGivesItsPrompt) {
  const auto lines = results(
      R"({"custom_id": "greedy", "method": "POST", "url": "/v1/completions", "body": {"prompt": "some words", "max_tokens": 9}}
{"custom_id": "drawn", "prompt": "the other", "max_tokens": 12, "temperature": 1.5, "top_k": 40, "seed": 7, "n": 3}
{"custom_id": "ids", "tokens": [5, 6, 7], "max_tokens": 4, "ignore_eos": true}
{"custom_id": "chat", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], "max_tokens": 6})");
  ASSERT_EQ(lines.size(), 4U);
  const json greedy = generated({"-p", "some words", "-n", "9"});
  EXPECT_EQ(choice_of(lines[0])["tokens"], greedy["tokens"]);
  EXPECT_EQ(choice_of(lines[0])["text"], greedy["text"]);
  EXPECT_EQ(choice_of(lines[0])["finish_reason"], greedy["finish_reason"]);
  EXPECT_EQ(body_of(lines[0])["usage"]["prompt_tokens"], greedy["prompt_tokens"]);
  ASSERT_EQ(body_of(lines[1])["choices"].size(), 3U);
  for (int i = 0; i < 3; ++i) {
    const json drawn = generated({"-p", "the other", "-n", "12", "--temperature", "1.5", "--top-k", "40",
                                  "--seed", std::to_string(7 + i)});
    EXPECT_EQ(choice_of(lines[1], i)["tokens"], drawn["tokens"]) << i;
  }
  EXPECT_EQ(choice_of(lines[2])["tokens"],
            generated({"--tokens", "5,6,7", "-n", "4", "--ignore-eos"})["tokens"]);
  const json chat = generated({"--chat", "--system", "be brief", "-p", "hi", "-n", "6"});
  EXPECT_EQ(choice_of(lines[3])["tokens"], chat["tokens"]);
  EXPECT_EQ(choice_of(lines[3])["message"], json({{"role", "assistant"}, {"content", chat["text"]}}));
  EXPECT_EQ(body_of(lines[3])["object"], "chat.completion");
}

TEST_F(Batch, FlagsAreTheDefaultsOfLines) {
  const auto lines = results(R"({"prompt": "the other"}
{"prompt": "the other", "temperature": 0, "max_tokens": 3})",
                             {"-n", "7", "--temperature", "1.5", "--seed", "4", "--ignore-eos"});
  EXPECT_EQ(choice_of(lines[0])["tokens"], generated({"-p", "the other", "-n", "7", "--temperature", "1.5",
                                                      "--seed", "4", "--ignore-eos"})["tokens"]);
  EXPECT_EQ(choice_of(lines[1])["tokens"],
            generated({"-p", "the other", "-n", "3", "--ignore-eos"})["tokens"]);
}

TEST_F(Batch, StopTextEndsAnAnswer) {
  const json whole = generated({"-p", "abc", "-n", "12", "--ignore-eos"});
  const std::string text = whole["text"];
  ASSERT_GT(text.size(), 4U);
  const std::string stop = text.substr(3, 2);
  const json line{{"prompt", "abc"}, {"max_tokens", 12}, {"ignore_eos", true}, {"stop", stop}};
  const auto lines = results(line.dump() + "\n");
  EXPECT_EQ(choice_of(lines[0])["finish_reason"], "stop");
  EXPECT_EQ(choice_of(lines[0])["text"], text.substr(0, text.find(stop)));
}

TEST_F(Batch, ErrorIsTheResultOfItsLineAlone) {
  const std::string long_prompt(600, 'x');
  const ProcessResult run = batch(R"({"custom_id": "field", "prompt": "a", "temprature": 0}
{nothing
{"custom_id": "value", "prompt": "a", "top_p": 3}
{"custom_id": "id", "tokens": [1, 512]}
{"custom_id": "many", "prompt": "a", "n": 100000}
{"custom_id": "long", "prompt": ")" +
                                  long_prompt +
                                  R"("}
{"custom_id": "good", "prompt": "a", "max_tokens": 2}
)");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto lines = parse_lines(run.out);
  EXPECT_THAT(ids_of(lines), ElementsAre("field", "line-2", "value", "id", "many", "long", "good"));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lines[i]["response"], nullptr);
    EXPECT_EQ(lines[i]["error"]["code"], i == 1 ? "invalid_json" : "invalid_request");
  }
  EXPECT_THAT(lines[0]["error"]["message"].get<std::string>(), HasSubstr("\"temprature\""));
  EXPECT_THAT(lines[2]["error"]["message"].get<std::string>(), HasSubstr("top_p is 3"));
  EXPECT_THAT(lines[3]["error"]["message"].get<std::string>(), HasSubstr("512"));
  EXPECT_THAT(lines[4]["error"]["message"].get<std::string>(), HasSubstr("n is 100000"));
  EXPECT_THAT(lines[5]["error"]["message"].get<std::string>(), HasSubstr("max_seq_len is 512"));
  EXPECT_EQ(choice_of(lines[6])["index"], 0);
  EXPECT_THAT(run.err, HasSubstr("1 ok, 6 failed"));
}

TEST_F(Batch, TemplateThatRefusesAConversationIsTheLinesError) {
  dir.write("model/chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  const auto lines = results(R"({"messages": [{"role": "user", "content": "x"}]}
{"prompt": "a", "max_tokens": 1})");
  EXPECT_THAT(lines[0]["error"]["message"].get<std::string>(), HasSubstr("roles must alternate"));
  EXPECT_EQ(lines[1]["error"], nullptr);
}

TEST_F(Batch, RepeatedIdIsAnError) {
  const std::string input = R"({"custom_id": "a", "prompt": "x", "max_tokens": 2}
{"custom_id": "a", "prompt": "y", "max_tokens": 2}
{"prompt": "z", "max_tokens": 2}
{"custom_id": "line-3", "prompt": "z", "max_tokens": 2}
)";
  ASSERT_EQ(batch(input, {"-o", out()}).exit_code, 0);
  const std::string first = read_file(out());
  const auto lines = parse_lines(first);
  EXPECT_THAT(ids_of(lines), ElementsAre("a", "a", "line-3", "line-3"));
  EXPECT_EQ(lines[0]["error"], nullptr);
  EXPECT_EQ(lines[1]["error"]["code"], "duplicate_custom_id");
  EXPECT_EQ(lines[3]["error"]["code"], "duplicate_custom_id");

  // Cut anywhere between lines, the file becomes the same again.
  for (std::size_t end = 0; end != std::string::npos; end = first.find('\n', end + 1)) {
    dir.write("out.jsonl", first.substr(0, end == 0 ? 0 : end + 1));
    const ProcessResult resumed = batch(input, {"-o", out(), "--resume"});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(read_file(out()), first);
  }
}

TEST_F(Batch, RunThatIsKilledIsResumedToTheSameFile) {
  std::string input;
  for (int i = 0; i < 120; ++i) {
    input += json({{"custom_id", "r" + std::to_string(i)},
                   {"prompt", "prompt " + std::to_string(i)},
                   {"max_tokens", 5 + i % 7},
                   {"ignore_eos", true},
                   {"temperature", 1.0},
                   {"seed", i}})
                 .dump() +
             "\n";
  }
  // What was found in the prefix cache stands in the results, and another run finds something else.
  const std::vector<std::string> flags{"-o", out(), "--no-prefix-caching", "--max-seq-len", "64"};
  ASSERT_EQ(batch(input, flags).exit_code, 0);
  const std::string whole = read_file(out());
  std::filesystem::remove(out());

  const auto killed = signal_after_lines(20, "KILL", command(input, flags));
  const std::string left = read_file(out());
  ASSERT_THAT(whole, StartsWith(left)) << killed.err;
  // As if it had been killed in the middle of a line.
  std::ofstream(out(), std::ios::app) << whole.substr(left.size(), 40);
  std::vector<std::string> resume = flags;
  resume.emplace_back("--resume");
  const ProcessResult resumed = batch(input, resume);

  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("kept from before"));
  EXPECT_EQ(read_file(out()), whole);
}

TEST_F(Batch, InterruptLeavesWholeLinesAndSaysHowToGoOn) {
  use_endless_model();
  const std::string start = R"({"custom_id": "a", "prompt": "x", "max_tokens": 2}
{"custom_id": "b", "prompt": "y", "max_tokens": 2}
)";
  std::vector<std::string> flags = kEndlessLimits;
  flags.insert(flags.end(), {"-o", out()});
  const ProcessResult run = signal_after_lines(2, "INT", command(start + kEndless + "\n", flags));

  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("1 not finished"), HasSubstr("--resume")));
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("a", "b"));

  flags.emplace_back("--resume");
  const ProcessResult resumed =
      batch(start + R"({"custom_id": "endless", "prompt": "z", "max_tokens": 1})", flags);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("a", "b", "endless"));
}

TEST_F(Batch, InterruptLosesNoResultThatWaitsForAnEarlierLine) {
  use_endless_model();
  // All begin with the first step, in which all but one end: when the first result is there, so are the rest.
  const auto one_token = [](const std::string& id) {
    return json({{"custom_id", id}, {"tokens", {1, 2}}, {"max_tokens", 1}, {"ignore_eos", true}}).dump() +
           "\n";
  };
  const std::string input = one_token("a") + kEndless + "\n" + one_token("b") + one_token("c");
  std::vector<std::string> flags = kEndlessLimits;
  flags.insert(flags.end(), {"-o", out()});
  std::vector<std::string> with_json = flags;
  with_json.emplace_back("--json");
  const ProcessResult run = signal_after_lines(1, "INT", command(input, with_json));

  EXPECT_EQ(run.exit_code, 130) << run.err;
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("a", "b", "c"));
  EXPECT_THAT(run.err, AllOf(HasSubstr("3 ok"), HasSubstr("1 not finished"),
                             HasSubstr("2 finished after one that is not: written before it")));
  EXPECT_EQ(json::parse(run.out)["early"], 2);

  flags.emplace_back("--resume");
  const ProcessResult resumed =
      batch(one_token("a") + one_token("endless") + one_token("b") + one_token("c"), flags);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("3 kept"));
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("a", "b", "c", "endless"));
}

TEST_F(Batch, AnswerThatTimesOutIsAnErrorThatResumeTriesAgain) {
  use_endless_model();
  json timed = json::parse(kEndless);
  timed["timeout"] = 0.05;
  std::vector<std::string> flags = kEndlessLimits;
  flags.insert(flags.end(), {"-o", out()});
  const std::string second =
      "\n"
      R"({"custom_id": "b", "prompt": "y", "max_tokens": 2})";
  ASSERT_EQ(batch(timed.dump() + second, flags).exit_code, 0);
  const auto lines = parse_lines(read_file(out()));
  ASSERT_THAT(ids_of(lines), ElementsAre("endless", "b"));
  EXPECT_EQ(lines[0]["error"]["code"], "timeout");
  EXPECT_EQ(lines[0]["response"]["status_code"], 408);
  EXPECT_EQ(lines[0]["response"]["body"]["choices"][0]["finish_reason"], "timeout");

  timed["max_tokens"] = 2;
  timed.erase("timeout");
  flags.emplace_back("--resume");
  ASSERT_EQ(batch(timed.dump() + second, flags).exit_code, 0);
  const auto again = parse_lines(read_file(out()));
  EXPECT_THAT(ids_of(again), ElementsAre("b", "endless"));
  EXPECT_EQ(again[1]["error"], nullptr);
}

TEST_F(Batch, LinesComeThroughAPipeAsWell) {
  const ProcessResult run =
      metrale({"batch", "-m", model(), "-"}, {.input = R"({"prompt": "a", "max_tokens": 1})"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(ids_of(parse_lines(run.out)), ElementsAre("line-1"));
}

TEST_F(Batch, EmptyInputGivesAnEmptyFile) {
  EXPECT_EQ(batch("", {"-o", out()}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(out()));
  EXPECT_EQ(read_file(out()), "");
}

TEST_F(Batch, WindowOfOneGivesTheSameResults) {
  std::string input;
  for (int i = 0; i < 9; ++i)
    input += json({{"prompt", "p" + std::to_string(i)}, {"max_tokens", 4}, {"n", 1 + i % 3}}).dump() + "\n";
  const auto many = results(input, {"--no-prefix-caching"});
  EXPECT_EQ(results(input, {"--no-prefix-caching", "--max-in-flight", "1"}), many);
  EXPECT_EQ(results(input, {"--no-prefix-caching", "--max-batch-size", "1"}), many);
}

TEST_F(Batch, PrefixesAreSharedWithinATenant) {
  const std::vector<int> shared(100, 9);
  std::string input;
  for (const char* user : {"one", "one", "two"})
    input += json({{"tokens", shared}, {"max_tokens", 1}, {"user", user}}).dump() + "\n";
  const auto cached = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max-in-flight", "1"});
    std::vector<int> counts;
    for (const json& line : results(input, flags))
      counts.push_back(body_of(line)["usage"]["prompt_tokens_details"]["cached_tokens"]);
    return counts;
  };
  const std::vector<int> with_sharing = cached({});
  EXPECT_EQ(with_sharing[0], 0);
  EXPECT_GE(with_sharing[1], 80);
  EXPECT_EQ(with_sharing[2], 0);
  EXPECT_THAT(cached({"--no-prefix-caching"}), ElementsAre(0, 0, 0));
}

TEST_F(Batch, SummaryIsOneObjectOnStandardOutput) {
  const std::string line =
      json({{"tokens", std::vector<int>(40, 9)}, {"max_tokens", 3}, {"ignore_eos", true}}).dump() + "\n";
  const ProcessResult run =
      batch(line + line + R"({"prompt": 3})", {"-o", out(), "--json", "--max-in-flight", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json summary = json::parse(run.out);
  EXPECT_EQ(summary["ok"], 2);
  EXPECT_EQ(summary["failed"], 1);
  EXPECT_EQ(summary["kept"], 0);
  EXPECT_EQ(summary["prompt_tokens"], 80);
  EXPECT_EQ(summary["output_tokens"], 6);
  EXPECT_GE(summary["cached_tokens"], 32);
  EXPECT_DOUBLE_EQ(summary["hit_rate"], summary["cached_tokens"].get<double>() / 80);
  EXPECT_GT(summary["output_tokens_per_second"], 0);
  EXPECT_EQ(summary["interrupted"], false);
  EXPECT_EQ(summary["early"], 0);
  EXPECT_EQ(summary["metrics"]["metrale_generated_tokens_total"]["samples"][0]["value"], 6);
  EXPECT_THAT(run.err, AllOf(HasSubstr("2 ok, 1 failed"), HasSubstr("hit rate"), HasSubstr("tokens/s")));
}

TEST_F(Batch, ExistingFileIsTouchedOnlyWhereAsked) {
  const std::string input = R"({"custom_id": "a", "prompt": "x", "max_tokens": 1})";
  dir.write("out.jsonl", "precious\n");
  const ProcessResult refused = batch(input, {"-o", out()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--resume"), HasSubstr("--overwrite")));
  const ProcessResult no_results = batch(input, {"-o", out(), "--resume"});
  EXPECT_EQ(no_results.exit_code, 3);
  EXPECT_THAT(no_results.err, HasSubstr("line 1"));
  EXPECT_EQ(batch(input, {"-o", out(), "--overwrite", "--kv-dtype", "int5"}).exit_code, 2);
  EXPECT_EQ(read_file(out()), "precious\n");
  EXPECT_EQ(batch(input, {"-o", out(), "--overwrite"}).exit_code, 0);
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("a"));
}

TEST_F(Batch, ResultsOfAnotherInputAreCounted) {
  ASSERT_EQ(batch(R"({"custom_id": "old", "prompt": "x", "max_tokens": 1})", {"-o", out()}).exit_code, 0);
  const ProcessResult run =
      batch(R"({"custom_id": "new", "prompt": "x", "max_tokens": 1})", {"-o", out(), "--resume"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("1 results of ids that the input does not have"));
  EXPECT_THAT(ids_of(parse_lines(read_file(out()))), ElementsAre("old", "new"));
}

TEST_F(Batch, FullDiskIsReported) {
  const ProcessResult run = batch(R"({"prompt": "x", "max_tokens": 1})", {"-o", "/dev/full"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
  EXPECT_EQ(batch(R"({"prompt": "x", "max_tokens": 1})", {}, {.out_path = "/dev/full"}).exit_code, 4);
}

TEST_F(Batch, FileBeyondTheSizeLimitKeepsWholeLines) {
  std::string input;
  for (int i = 0; i < 20; ++i)
    input += R"({"prompt": "x", "max_tokens": 4})"
             "\n";
  std::vector<std::string> limited{"/bin/sh", "-c", "ulimit -f 4 && exec \"$@\"", "sh", METRALE_PROGRAM};
  const auto arguments = command(input, {"-o", out()});
  limited.insert(limited.end(), arguments.begin(), arguments.end());
  const ProcessResult run = run_process(limited);
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, AllOf(HasSubstr("out.jsonl"), HasSubstr("File too large"), HasSubstr("--resume")));
  EXPECT_GT(parse_lines(read_file(out())).size(), 2U);
  EXPECT_EQ(batch(input, {"-o", out(), "--resume"}).exit_code, 0);
  EXPECT_EQ(parse_lines(read_file(out())).size(), 20U);
}

TEST_F(Batch, ModelWithoutATokenizerTakesTokenIds) {
  std::filesystem::remove(model() + "/tokenizer.json");
  const auto lines = results(R"({"tokens": [1, 2], "max_tokens": 2, "ignore_eos": true}
{"prompt": "text"}
{"tokens": [1, 2], "stop": "x"})");
  EXPECT_EQ(choice_of(lines[0])["text"], nullptr);
  EXPECT_EQ(choice_of(lines[0])["tokens"].size(), 2U);
  EXPECT_THAT(lines[1]["error"]["message"].get<std::string>(), HasSubstr("tokenizer"));
  EXPECT_THAT(lines[2]["error"]["message"].get<std::string>(), HasSubstr("tokenizer"));
}

TEST_F(Batch, BadFlagsAndFilesEndTheRunBeforeItBegins) {
  const std::string input = R"({"prompt": "x"})";
  EXPECT_EQ(batch(input, {"--resume"}).exit_code, 2);
  EXPECT_EQ(batch(input, {"-o", out(), "--resume", "--overwrite"}).exit_code, 2);
  EXPECT_EQ(batch(input, {"--order", "random"}).exit_code, 2);
  EXPECT_EQ(batch(input, {"--top-p", "0"}).exit_code, 2);
  EXPECT_EQ(batch(input, {"--stop", ""}).exit_code, 2);
  EXPECT_EQ(batch(input, {"-o", dir.file("in.jsonl"), "--overwrite"}).exit_code, 2);
  EXPECT_EQ(read_file(dir.file("in.jsonl")), input);
  EXPECT_EQ(metrale({"batch", "-m", model(), dir.file("absent.jsonl"), "-o", out()}).exit_code, 4);
  EXPECT_EQ(batch(input, {"-o", dir.file("no/such/folder/out")}).exit_code, 4);
  EXPECT_EQ(batch(input, {"-o", out(), "--memory", "5X"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Batch, RepeatableFlagsLeaveTheInputAlone) {
  const auto lines =
      results(R"({"prompt": "x", "max_tokens": 1})", {"--stop", "[END]", "--stop-id", "9", "--stop", "b"});
  EXPECT_EQ(lines.size(), 1U);
  const std::vector<std::string> before{"batch", "-m",     model(), "--stop-id",
                                        "9",     "--stop", "b",     dir.file("in.jsonl")};
  EXPECT_EQ(metrale(before).exit_code, 0);
}

}  // namespace
}  // namespace metrale::test
