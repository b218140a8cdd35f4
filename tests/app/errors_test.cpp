// SPDX-License-Identifier: Apache-2.0
// Bad input ends with a message that names it, the documented exit code, and nothing left behind.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"

namespace metrale::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Errors = ProgramTest;

void expect_failure(const ProcessResult& result, int code, const testing::Matcher<std::string>& message) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, message);
  EXPECT_EQ(result.out, "");
}

TEST_F(Errors, AbsentModelDirectory) {
  expect_failure(metrale({"generate", "-m", dir.file("nowhere"), "-p", "x"}), 4,
                 HasSubstr("nowhere/config.json"));
}

TEST_F(Errors, AbsentWeights) {
  std::filesystem::remove(model() + "/model.safetensors");
  expect_failure(generate({"-p", "x"}), 4, HasSubstr(model()));
}

TEST_F(Errors, TruncatedWeights) {
  const std::string path = model() + "/model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  expect_failure(generate({"-p", "x"}), 3, HasSubstr("model.safetensors"));
}

TEST_F(Errors, IndexThatNamesAnAbsentTensor) {
  dir.write(
      "model/model.safetensors.index.json",
      R"({"weight_map": {"model.embed_tokens.weight": "model.safetensors", "ghost": "model.safetensors"}})");
  expect_failure(generate({"-p", "x"}), 3, AllOf(HasSubstr("ghost"), HasSubstr("model.safetensors")));
}

TEST_F(Errors, IndexThatNamesAnAbsentShard) {
  dir.write("model/model.safetensors.index.json",
            R"({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}})");
  expect_failure(generate({"-p", "x"}), 4, HasSubstr("model-00001-of-00002.safetensors"));
}

TEST_F(Errors, UnknownArchitecture) {
  dir.write("model/config.json", R"({"architectures": ["RwkvForCausalLM"]})");
  expect_failure(generate({"-p", "x"}), 6, HasSubstr("RwkvForCausalLM"));
}

TEST_F(Errors, UnknownDtypes) {
  expect_failure(generate({"-p", "x", "--kv-dtype", "int5"}), 2, AllOf(HasSubstr("int5"), HasSubstr("bf16")));
  expect_failure(generate({"-p", "x", "--kv-dtype", "turbo4"}), 6, HasSubstr("turbo4"));
  expect_failure(generate({"-p", "x", "--dtype", "fp8"}), 2, HasSubstr("--dtype"));
}

TEST_F(Errors, WrongShape) {
  TinyModel wider = tiny_model("tiny_base");
  wider.config["hidden_size"] = 48;
  dir.write("model/config.json", tiny_config_json(wider));
  expect_failure(generate({"-p", "x"}), 3, AllOf(HasSubstr("[512, 64]"), HasSubstr("[512, 48]")));
}

TEST_F(Errors, PromptBeyondMaxSeqLen) {
  expect_failure(generate({"--tokens", "1,2,3,4,5", "--max-seq-len", "4"}), 2,
                 AllOf(HasSubstr("5 tokens"), HasSubstr("max_seq_len is 4")));
}

TEST_F(Errors, MaxSeqLenBeyondTheModel) {
  expect_failure(generate({"-p", "x", "--max-seq-len", "100000"}), 2, HasSubstr("max_position_embeddings"));
}

TEST_F(Errors, NotEnoughMemorySaysWhatWouldFit) {
  expect_failure(generate({"-p", "x", "--kv-blocks", "4000000000", "--memory", "16M"}), 5,
                 AllOf(HasSubstr("4000000000 blocks"), HasSubstr("would fit")));
}

TEST_F(Errors, BrokenTokenizer) {
  dir.write("model/tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})");
  expect_failure(generate({"-p", "x"}), 3, HasSubstr("tokenizer.json"));
  dir.write("model/tokenizer.json", "{");
  expect_failure(generate({"-p", "x"}), 3, HasSubstr("tokenizer.json"));
  std::filesystem::remove(model() + "/tokenizer.json");
  expect_failure(generate({"-p", "x"}), 4, HasSubstr("tokenizer.json"));
}

TEST_F(Errors, PromptOfBytesThatTheVocabularyLacksIsToldSo) {
  dir.write("model/tokenizer.json",
            R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "ByteLevel"},
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})");
  expect_failure(generate({"-p", "\x01x"}), 2,
                 AllOf(HasSubstr("prompt 1 has no tokens"), HasSubstr("all of its 2 bytes (hex 01 78)"),
                       HasSubstr("neither tokens nor an unk_token")));
}

TEST_F(Errors, ChatTemplateProblemsNameTheTemplateAndTheWayOut) {
  dir.write("model/chat_template.jinja", "\n{{ messages | sort }}");
  expect_failure(generate({"-p", "x", "--chat"}), 6,
                 AllOf(HasSubstr("chat_template.jinja"), HasSubstr("line 2"), HasSubstr("the filter sort"),
                       HasSubstr("--chat-template")));
  EXPECT_EQ(generate({"-p", "x", "--chat", "--chat-template", "chatml", "-n", "1"}).exit_code, 0);
  dir.write("model/chat_template.jinja", "{{ raise_exception('no system here') }}");
  expect_failure(generate({"-p", "x", "--chat", "--system", "s"}), 2, HasSubstr("no system here"));
  expect_failure(generate({"-p", "x", "--chat", "--chat-template", dir.file("none.jinja")}), 4,
                 HasSubstr("none.jinja"));
  EXPECT_EQ(generate({"-p", "x", "--chat-template", "chatml"}).exit_code, 2);
}

TEST_F(Errors, UnwritableOutputFileFailsBeforeTheModelLoads) {
  expect_failure(generate({"-p", "x", "-o", dir.file("no/such/folder/out.txt")}), 4, HasSubstr("out.txt"));
  EXPECT_FALSE(std::filesystem::exists(dir.file("no")));
}

TEST_F(Errors, OutputThatIsNoRegularFileStaysWhatItIs) {
  expect_failure(generate({"-p", "x", "-o", dir.path()}), 4, HasSubstr(dir.path()));
  EXPECT_EQ(generate({"-p", "x", "-n", "2", "-o", "/dev/null"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  dir.write("real.txt", "old");
  std::filesystem::create_symlink(dir.file("real.txt"), dir.file("link.txt"));
  EXPECT_EQ(generate({"-p", "x", "-n", "2", "-o", dir.file("link.txt")}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link.txt")));
  EXPECT_NE(std::filesystem::file_size(dir.file("real.txt")), 3U);
}

TEST_F(Errors, FullStandardOutputIsReported) {
  const ProcessResult result = generate({"-p", "x", "-n", "4", "--ignore-eos"}, {.out_path = "/dev/full"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("standard output"), HasSubstr("No space left")));
}

TEST_F(Errors, FailedRunLeavesNoOutputFile) {
  dir.write("model/config.json", "{}");
  expect_failure(generate({"-p", "x", "-o", dir.file("out.txt")}), 3, HasSubstr("config.json"));
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(entry.path().filename(), "model");
  }
}

TEST_F(Errors, BadFlagsAreUsageErrors) {
  EXPECT_EQ(generate({"-p", "x", "--no-such-flag"}).exit_code, 2);
  EXPECT_EQ(metrale({}).exit_code, 2);
  EXPECT_EQ(metrale({"generate"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--tokens", "1"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", ""}).exit_code, 2);
  EXPECT_EQ(generate({"--tokens", "1,x"}).exit_code, 2);
  EXPECT_EQ(generate({"--tokens", "512"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--top-p", "0"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--logit-bias", "5"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--memory", "5X"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--device", "gpu"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "-n", "0"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--top-k", "-1"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--seed", "-1"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--stop-id", "-5"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--memory", "0"}).exit_code, 2);
  EXPECT_EQ(generate({"-p", "x", "--system", "be kind"}).exit_code, 2);
  EXPECT_EQ(generate({"--tokens", "1", "--chat"}).exit_code, 2);
}

TEST_F(Errors, DeviceThatIsNotHereIsUnsupported) {
  expect_failure(generate({"-p", "x", "--device", "cuda:99"}), 6, HasSubstr("CUDA"));
}

TEST_F(Errors, TokenListWithAnEmptyOrBadEntryNamesThePlace) {
  expect_failure(generate({"--tokens", "1,,2"}), 2, AllOf(HasSubstr("entry 2"), HasSubstr("character 3")));
  expect_failure(generate({"--tokens", "1,2,"}), 2, AllOf(HasSubstr("entry 3"), HasSubstr("character 5")));
  expect_failure(generate({"--tokens", ",1"}), 2, AllOf(HasSubstr("entry 1"), HasSubstr("character 1")));
  expect_failure(generate({"--tokens", "1, 2, three"}), 2, AllOf(HasSubstr("'three'"), HasSubstr("entry 3")));
  expect_failure(generate({"--tokens", " "}), 2, HasSubstr("no token ids"));
  EXPECT_EQ(generate({"--tokens", "1, 2 3", "-n", "1"}).exit_code, 0);
}

TEST_F(Errors, BadEnvironmentNamesTheVariable) {
  const ProcessResult result = generate({"-p", "x"}, {.environment = {"METRALE_THREADS=many"}});
  expect_failure(result, 2, AllOf(HasSubstr("METRALE_THREADS"), HasSubstr("many")));
}

TEST_F(Errors, PlacementThatTheMachineDoesNotHaveIsNamed) {
  expect_failure(generate({"-p", "x", "--cpus", "1023"}), 2,
                 AllOf(HasSubstr("CPU 1023"), HasSubstr("usable")));
  expect_failure(generate({"-p", "x", "--cpus", "3-1"}), 2, AllOf(HasSubstr("--cpus"), HasSubstr("3-1")));
  expect_failure(generate({"-p", "x", "--numa", "far"}), 2,
                 AllOf(HasSubstr("--numa"), HasSubstr("interleave")));
  expect_failure(generate({"-p", "x"}, {.environment = {"METRALE_CPUS=x"}}), 2, HasSubstr("METRALE_CPUS"));
  expect_failure(generate({"-p", "x"}, {.environment = {"METRALE_NUMA=far"}}), 2, HasSubstr("METRALE_NUMA"));
}

TEST_F(Errors, BatchFileProblemsNameTheLine) {
  dir.write("bad.jsonl", "{\"prompt\": \"a\"}\n{\"text\": 1}\n");
  expect_failure(generate({"--batch", dir.file("bad.jsonl")}), 3, HasSubstr("line 2"));
  dir.write("empty.txt", "\n\n");
  expect_failure(generate({"--batch", dir.file("empty.txt")}), 3, HasSubstr("no prompts"));
}

TEST_F(Errors, StopTokenBeyondTheVocabularyIsRefused) {
  expect_failure(generate({"-p", "x", "--stop-id", "512"}), 2, HasSubstr("stop token id 512"));
}

TEST_F(Errors, VocabularyTooLargeNamesTheConfiguration) {
  TinyModel huge = tiny_model("tiny_base");
  std::string config = tiny_config_json(huge);
  config.replace(config.find("\"vocab_size\":512"), 16, "\"vocab_size\":2147483647");
  dir.write("model/config.json", config);
  expect_failure(generate({"-p", "x"}), 3, AllOf(HasSubstr("config.json"), HasSubstr("vocab_size")));
}

TEST_F(Errors, UnknownCommandIsNamed) {
  expect_failure(metrale({"frob"}), 2, HasSubstr("'frob'"));
}

TEST_F(Errors, NumbersOutOfRangeNameTheFlag) {
  const std::string above = "18446744073709551616";
  expect_failure(generate({"-p", "x", "--seed", above}), 2, AllOf(HasSubstr("--seed"), HasSubstr(above)));
  expect_failure(generate({"-p", "x", "--top-k", "-1"}), 2,
                 AllOf(HasSubstr("--top-k"), HasSubstr("2147483647")));
  expect_failure(generate({"-p", "x", "--memory", "99999999999T"}), 2, HasSubstr("--memory"));
  expect_failure(generate({"-p", "x", "--numa", "bogus"}), 2, HasSubstr("interleave"));
}

TEST_F(Errors, TemplateThatWritesNothingIsToBlame) {
  dir.write("empty.jinja", "{{ '' }}");
  expect_failure(generate({"-p", "x", "--chat", "--chat-template", dir.file("empty.jinja")}), 2,
                 HasSubstr("the chat template makes nothing of it"));
}

TEST_F(Errors, HelpAndVersionSucceed) {
  EXPECT_EQ(metrale({"--help"}).exit_code, 0);
  EXPECT_THAT(metrale({"--version"}).out, HasSubstr("metrale 0."));
  EXPECT_THAT(metrale({"generate", "--help"}).out, HasSubstr("--max-batch-tokens"));
}

}  // namespace
}  // namespace metrale::test
