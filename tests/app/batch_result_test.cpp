// SPDX-License-Identifier: Apache-2.0
#include "batch_result.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace metrale::app {
namespace {

using nlohmann::json;

BatchLine line_of(const std::string& text, std::uint64_t number = 3) {
  return parse_batch_line(text, number, {});
}

LineResult two_answers() {
  return {.model = "m",
          .choices = {{.tokens = {1, 2}, .text = "a\nb", .finish_reason = "stop"},
                      {.tokens = {}, .text = std::nullopt, .finish_reason = "length"}},
          .prompt_tokens = 10,
          .cached_tokens = 8,
          .output_tokens = 2,
          .error = std::nullopt};
}

TEST(BatchResult, CompletionHasTheFormOfOpenAis) {
  const std::string text = to_result_line(line_of(R"({"custom_id": "c", "prompt": "x"})"), two_answers());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  EXPECT_EQ(json::parse(text), json::parse(R"({"id": "batch_req_3", "custom_id": "c", "error": null,
    "response": {"status_code": 200, "body": {"object": "text_completion", "model": "m",
      "choices": [{"index": 0, "text": "a\nb", "tokens": [1, 2], "finish_reason": "stop"},
                  {"index": 1, "text": null, "tokens": [], "finish_reason": "length"}],
      "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 8}}}}})"));
}

TEST(BatchResult, ConversationHasAMessage) {
  const BatchLine line = line_of(R"({"messages": [{"role": "user", "content": "x"}]})");
  const json body = json::parse(to_result_line(line, two_answers()))["response"]["body"];
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"], json::parse(R"({"role": "assistant", "content": "a\nb"})"));
  EXPECT_FALSE(body["choices"][0].contains("text"));
}

TEST(BatchResult, LineThatDidNotRunHasAnErrorAlone) {
  const json result = json::parse(to_error_line(line_of(R"({"custom_id": "c", "prompt": 1})")));
  EXPECT_EQ(result["custom_id"], "c");
  EXPECT_TRUE(result["response"].is_null());
  EXPECT_EQ(result["error"]["code"], kInvalidRequest);
}

TEST(BatchResult, TimeoutHasItsErrorAndWhatThereIs) {
  LineResult result = two_answers();
  result.error = {std::string(kTimeout), "late"};
  const json line = json::parse(to_result_line(line_of(R"({"prompt": "x"})"), result));
  EXPECT_EQ(line["response"]["status_code"], 408);
  EXPECT_EQ(line["response"]["body"]["choices"][0]["text"], "a\nb");
  EXPECT_EQ(line["error"], json::parse(R"({"code": "timeout", "message": "late"})"));
}

TEST(BatchResult, BytesThatAreNoTextStillGiveALine) {
  LineResult result = two_answers();
  result.model = "\xff\n";
  EXPECT_TRUE(json::accept(to_result_line(line_of(R"({"prompt": "x"})"), result)));
}

TEST(BatchResult, LaterRunKnowsWhatALineIsAbout) {
  const BatchLine line = line_of(R"({"custom_id": "c", "prompt": "x"})");
  const auto known = parse_result_line(to_result_line(line, two_answers()));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->key, id_key("c"));
  EXPECT_FALSE(known->has_error);
  EXPECT_FALSE(known->run_again);

  const auto failed = parse_result_line(to_error_line(line_of("{", 9)));
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->key, id_key("line-9"));
  EXPECT_TRUE(failed->has_error);
  EXPECT_FALSE(failed->run_again);
}

TEST(BatchResult, TimeoutIsToRunAgain) {
  LineResult result = two_answers();
  result.error = {std::string(kTimeout), "late"};
  EXPECT_TRUE(parse_result_line(to_result_line(line_of(R"({"prompt": "x"})"), result))->run_again);
}

TEST(BatchResult, LineWithoutMemoryIsToRunAgain) {
  BatchLine line = line_of(R"({"custom_id": "c", "prompt": "x"})");
  line.error = out_of_memory();
  const auto known = parse_result_line(to_error_line(line));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->key, id_key("c"));
  EXPECT_TRUE(known->run_again);
}

TEST(BatchResult, RepeatedIdIsKnownByItsLine) {
  BatchLine line = line_of(R"({"custom_id": "c", "prompt": "x"})", 41);
  line.error = {std::string(kDuplicateId), "again"};
  EXPECT_EQ(parse_result_line(to_error_line(line))->key, repeated_id_key(41));
  EXPECT_FALSE(repeated_id_key(41) == id_key("41"));
}

TEST(BatchResult, OtherTextsAreNoResults) {
  for (const char* text : {"", "{}", "[]", "{\"custom_id\": \"a\"}", "hello",
                           R"({"id": "x", "custom_id": "a", "response": null, "error": null})",
                           R"({"id": "batch_req_1", "custom_id": "a", "response": null, "error": 3})"}) {
    EXPECT_FALSE(parse_result_line(text)) << text;
  }
}

TEST(BatchResult, EveryBeginningOfAResultMayBeOne) {
  const std::string text = to_result_line(line_of(R"({"prompt": "x"})"), two_answers());
  for (std::size_t size = 0; size < text.size(); ++size) EXPECT_TRUE(may_begin_result(text.substr(0, size)));
  EXPECT_FALSE(may_begin_result("# notes"));
}

TEST(IdTable, TellsNewMetAndDoneApart) {
  IdTable table;
  table.add_result(id_key("done"));
  table.add_result(id_key("done"));
  table.add_result(id_key("never asked for"));

  EXPECT_EQ(table.meet(id_key("new")), IdTable::Found::kNew);
  EXPECT_EQ(table.meet(id_key("new")), IdTable::Found::kAgain);
  EXPECT_EQ(table.meet(id_key("done")), IdTable::Found::kResult);
  EXPECT_EQ(table.meet(id_key("done")), IdTable::Found::kAgain);
  EXPECT_EQ(table.unmet_results(), 1U);
}

TEST(IdTable, KeepsEveryIdAsItGrows) {
  IdTable table;
  constexpr int kIds = 50'000;
  for (int i = 0; i < kIds; i += 2) table.add_result(id_key(std::to_string(i)));
  for (int i = 0; i < kIds; ++i) {
    const auto expected = i % 2 == 0 ? IdTable::Found::kResult : IdTable::Found::kNew;
    ASSERT_EQ(table.meet(id_key(std::to_string(i))), expected) << i;
  }
  for (int i = 0; i < kIds; ++i)
    ASSERT_EQ(table.meet(id_key(std::to_string(i))), IdTable::Found::kAgain) << i;
  EXPECT_EQ(table.unmet_results(), 0U);
}

}  // namespace
}  // namespace metrale::app
