// SPDX-License-Identifier: Apache-2.0
#include "batch_line.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace metrale::app {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

BatchLine parse(const std::string& text, std::uint64_t number = 7) {
  engine::Request defaults;
  defaults.sampling.temperature = 0.5F;
  defaults.max_new_tokens = 99;
  defaults.tenant = "house";
  return parse_batch_line(text, number, defaults);
}

// A request that the parser takes.
BatchLine good(const std::string& text) {
  BatchLine line = parse(text);
  EXPECT_FALSE(line.error) << text << ": " << line.error->message;
  return line;
}

std::string error_of(const std::string& text, std::string_view code = kInvalidRequest) {
  const BatchLine line = parse(text);
  if (!line.error) return "no error";
  EXPECT_EQ(line.error->code, code);
  return line.error->message;
}

// A bare request with these fields beside its prompt.
std::string with(const std::string& fields) {
  return R"({"prompt": "p", )" + fields + "}";
}

TEST(BatchLine, EnvelopeOfACompletion) {
  const BatchLine line = good(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "hi"}})");
  EXPECT_EQ(line.number, 7U);
  EXPECT_EQ(line.custom_id, "a");
  EXPECT_EQ(line.model, "m");
  EXPECT_EQ(line.text, "hi");
  EXPECT_FALSE(line.is_chat);
}

TEST(BatchLine, EnvelopeOfAConversation) {
  const BatchLine line = good(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages":
          [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]}})");
  EXPECT_TRUE(line.is_chat);
  ASSERT_EQ(line.messages.size(), 2U);
  EXPECT_EQ(line.messages[0].role, "system");
  EXPECT_EQ(line.messages[1].content, "hi");
  EXPECT_FALSE(line.text);
}

TEST(BatchLine, BareBodyNeedsNoCustomId) {
  EXPECT_EQ(good(R"({"custom_id": "b", "prompt": "x"})").custom_id, "b");
  EXPECT_EQ(good(R"({"prompt": "x"})").custom_id, "line-7");
  EXPECT_THAT(good(R"({"prompt": [1, 2]})").request.prompt, ElementsAre(1, 2));
  EXPECT_THAT(good(R"({"tokens": [3]})").request.prompt, ElementsAre(3));
}

TEST(BatchLine, WhatIsNotSaidIsAsInTheDefaults) {
  const BatchLine line = good(R"({"prompt": "x", "temperature": null})");
  EXPECT_EQ(line.request.sampling.temperature, 0.5F);
  EXPECT_EQ(line.request.max_new_tokens, 99U);
  EXPECT_EQ(line.request.tenant, "house");
  EXPECT_EQ(line.request.n, 1U);
}

TEST(BatchLine, SamplingFields) {
  const auto s =
      good(with(R"("temperature": 1, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": 18446744073709551615,
      "presence_penalty": 0.25, "frequency_penalty": 0.5, "repetition_penalty": 1.5, "logit_bias": {"5": -100},
      "top_n_sigma": 2, "temperature_last": true, "penalty_window": 64, "dry_multiplier": 0.75, "dry_base": 2,
      "dry_allowed_length": 3)"))
          .request.sampling;
  EXPECT_EQ(s.temperature, 1.0F);
  EXPECT_EQ(s.top_p, 0.9F);
  EXPECT_EQ(s.top_k, -1);
  EXPECT_EQ(s.min_p, 0.1F);
  EXPECT_EQ(s.seed, ~std::uint64_t{0});
  EXPECT_EQ(s.presence_penalty, 0.25F);
  EXPECT_EQ(s.frequency_penalty, 0.5F);
  EXPECT_EQ(s.repetition_penalty, 1.5F);
  EXPECT_THAT(s.logit_bias, ElementsAre(Pair(5U, -100.0F)));
  EXPECT_EQ(s.top_n_sigma, 2.0F);
  EXPECT_TRUE(s.temperature_last);
  EXPECT_EQ(s.penalty_window, 64);
  EXPECT_EQ(s.dry_multiplier, 0.75F);
  EXPECT_EQ(s.dry_base, 2.0F);
  EXPECT_EQ(s.dry_allowed_length, 3U);
}

TEST(BatchLine, RequestFields) {
  const auto request =
      good(with(R"("max_tokens": 5, "n": 3, "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": true,
      "priority": -2, "user": "u", "timeout": 1.5, "metadata": {"any": ["thing"]}, "stream": false)"))
          .request;
  EXPECT_EQ(request.max_new_tokens, 5U);
  EXPECT_EQ(request.n, 3U);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_ids, ElementsAre(4));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.tenant, "u");
  EXPECT_EQ(request.timeout, std::chrono::milliseconds(1500));
  EXPECT_THAT(good(with(R"("stop": "end")")).request.stop, ElementsAre("end"));
  EXPECT_EQ(good(with(R"("max_completion_tokens": 6)")).request.max_new_tokens, 6U);
}

TEST(BatchLine, UnknownFieldIsNamed) {
  EXPECT_THAT(error_of(with(R"("temprature": 0)")), HasSubstr("\"temprature\""));
  EXPECT_THAT(error_of(R"({"custom_id": "a", "ur1": "x", "body": {"prompt": "p"}})"), HasSubstr("\"ur1\""));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "x", "nme": 1}]})"),
              HasSubstr("\"nme\""));
  EXPECT_THAT(error_of(R"({"custom_id": "a", "body": {"prompt": "p", "custom_id": "b"}})"),
              HasSubstr("\"custom_id\""));
}

TEST(BatchLine, ErrorKeepsTheIdThatTheLineHas) {
  const BatchLine line = parse(R"({"custom_id": "mine", "prompt": 3})");
  ASSERT_TRUE(line.error);
  EXPECT_EQ(line.custom_id, "mine");
}

TEST(BatchLine, FieldOfAWrongTypeOrRangeIsNamedWithItsValue) {
  EXPECT_THAT(error_of(with(R"("temperature": "hot")")), AllOf(HasSubstr("temperature"), HasSubstr("hot")));
  EXPECT_THAT(error_of(with(R"("temperature": 1e300)")), HasSubstr("temperature"));
  EXPECT_THAT(error_of(with(R"("max_tokens": 0)")), AllOf(HasSubstr("max_tokens"), HasSubstr("from 1")));
  EXPECT_THAT(error_of(with(R"("max_tokens": 1.5)")), HasSubstr("1.5"));
  EXPECT_THAT(error_of(with(R"("n": 0)")), AllOf(HasSubstr("\"n\""), HasSubstr("from 1")));
  EXPECT_THAT(error_of(with(R"("seed": -1)")), HasSubstr("2^64"));
  EXPECT_THAT(error_of(with(R"("stop": [""])")), HasSubstr("empty"));
  EXPECT_THAT(error_of(with(R"("stop": [1])")), HasSubstr("stop"));
  EXPECT_THAT(error_of(with(R"("logit_bias": {"x": 1})")), HasSubstr("\"x\""));
  EXPECT_THAT(error_of(with(R"("logit_bias": [1])")), HasSubstr("an array"));
  EXPECT_THAT(error_of(with(R"("timeout": 0)")), HasSubstr("timeout"));
  EXPECT_THAT(error_of(with(R"("stream": true)")), HasSubstr("stream"));
  EXPECT_THAT(error_of(with(R"("priority": 3000000000)")), HasSubstr("priority"));
  EXPECT_THAT(error_of(R"({"prompt": ["a", "b"]})"), HasSubstr("one prompt"));
  EXPECT_THAT(error_of(R"({"tokens": [-1]})"), HasSubstr("-1"));
  EXPECT_THAT(error_of(R"({"messages": []})"), HasSubstr("messages"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user"}]})"), HasSubstr("content"));
  EXPECT_THAT(error_of(R"({"custom_id": 4, "prompt": "x"})"), HasSubstr("custom_id"));
  EXPECT_THAT(error_of(R"({"custom_id": "", "prompt": "x"})"), HasSubstr("empty"));
}

// Each answer compares with all of them: a line of a megabyte with many answers would take the machine's
// memory.
TEST(BatchLine, StopsHaveLimits) {
  const auto list = [](std::size_t count, const std::string& item) {
    std::string text = "[" + item;
    for (std::size_t i = 1; i < count; ++i) text += "," + item;
    return text + "]";
  };
  const auto text = [](std::size_t size) { return '"' + std::string(size, 'x') + '"'; };
  EXPECT_EQ(good(with("\"stop\": " + list(64, text(1024)))).request.stop.size(), 64U);
  EXPECT_EQ(good(with("\"stop_token_ids\": " + list(1024, "7"))).request.stop_ids.size(), 1024U);
  EXPECT_THAT(error_of(with("\"stop\": " + list(65, text(1)))),
              AllOf(HasSubstr("\"stop\""), HasSubstr("65"), HasSubstr("64")));
  EXPECT_THAT(error_of(with("\"stop\": " + text(1025))),
              AllOf(HasSubstr("\"stop\""), HasSubstr("1025"), HasSubstr("1024")));
  EXPECT_THAT(error_of(with("\"stop_token_ids\": " + list(1025, "7"))),
              AllOf(HasSubstr("\"stop_token_ids\""), HasSubstr("1025"), HasSubstr("1024")));
}

TEST(BatchLine, SourceMustBeOneAndTheUrls) {
  EXPECT_THAT(error_of(R"({"max_tokens": 3})"), HasSubstr("one of"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "tokens": [1]})"), HasSubstr("one of"));
  EXPECT_THAT(error_of(with(R"("max_tokens": 1, "max_completion_tokens": 1)")), HasSubstr("one of"));
  EXPECT_THAT(error_of(R"({"url": "/v1/chat/completions", "body": {"prompt": "x"}})"), HasSubstr("url"));
  EXPECT_THAT(error_of(R"({"url": "/v1/embeddings", "body": {"prompt": "x"}})"), HasSubstr("/v1/embeddings"));
  EXPECT_THAT(error_of(R"({"method": "GET", "body": {"prompt": "x"}})"), HasSubstr("POST"));
  EXPECT_THAT(error_of(R"({"method": "POST", "prompt": "x"})"), HasSubstr("body"));
  EXPECT_THAT(error_of(R"({"body": "x"})"), HasSubstr("an object"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("JSON object"));
}

TEST(BatchLine, WhatIsNoJsonHasTheLinesNumberForAnId) {
  EXPECT_EQ(parse("{", 12).custom_id, "line-12");
  EXPECT_THAT(error_of("{", kInvalidJson), HasSubstr("parse error"));
  EXPECT_THAT(error_of("{\"prompt\": \"\xff\"}", kInvalidJson), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of(R"({"seed": 1e999})", kInvalidJson), HasSubstr("range"));
  EXPECT_LT(error_of("\"" + std::string(100'000, 'x'), kInvalidJson).size(), 1000U);
}

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(BatchLine, NestingHasALimit) {
  good(with("\"metadata\": " + nested(63)));  // and the line's object
  EXPECT_THAT(error_of(with("\"metadata\": " + nested(64))), HasSubstr("64 deep"));
  EXPECT_THAT(error_of(with("\"temperature\": " + nested(200'000))), HasSubstr("64 deep"));
  // Many beside one another are not deep, and neither is a text.
  good(with("\"metadata\": [[], " + nested(40) + ", " + nested(40) + "]"));
  good(with("\"metadata\": \"\\\"" + std::string(100, '[') + "\\\\\""));
}

TEST(BatchLine, ValuesHaveALimit) {
  std::string ids = "[1";
  for (int i = 0; i < 5'000'000; ++i) ids += ",1";
  EXPECT_THAT(error_of(R"({"tokens": )" + ids + "]}"), HasSubstr("4194304 values"));
  good(with("\"metadata\": \"" + std::string(5'000'000, ',') + '"'));
}

TEST(BatchLine, LargeValueIsRefusedWithoutBeingShown) {
  EXPECT_THAT(error_of(with("\"temperature\": " + nested(20))), HasSubstr("an array"));
  EXPECT_THAT(error_of(with("\"temperature\": \"" + std::string(100'000, 'x') + '"')),
              HasSubstr("a long text"));
}

}  // namespace
}  // namespace metrale::app
