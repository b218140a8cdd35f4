// SPDX-License-Identifier: Apache-2.0
#include "batch_line.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>

#include "batch_fields.h"
#include "json_input.h"

namespace metrale::app {
namespace {

using nlohmann::json;

constexpr std::string_view kCompletions = "/v1/completions";
constexpr std::string_view kChatCompletions = "/v1/chat/completions";
// Of the parser's messages, which repeat what they met.
constexpr std::size_t kMaxMessageBytes = 400;
// Of a line. A parsed value takes eight times its text, and no prompt has so many tokens.
constexpr std::size_t kMaxValues = std::size_t{1} << 22;

std::string cut(std::string text) {
  if (text.size() <= kMaxMessageBytes) return text;
  return text.substr(0, kMaxMessageBytes) + "...";
}

// The members of {"custom_id", "method", "url", "body"}; returns the url, if any.
std::optional<std::string> check_envelope(const json& envelope) {
  std::optional<std::string> url;
  for (const auto& [name, value] : envelope.items()) {
    if (name == "custom_id" || name == "body") continue;
    if (name != "method" && name != "url") {
      throw InvalidArgument(fmt::format("unknown field \"{}\" beside \"body\"", shown_name(name)));
    }
    const std::string text = string_field(name, value);
    if (name == "method" && text != "POST") fail_field(name, value, "\"POST\"");
    if (name == "url" && text != kCompletions && text != kChatCompletions) {
      fail_field(name, value, fmt::format("\"{}\" or \"{}\"", kCompletions, kChatCompletions));
    }
    if (name == "url") url = text;
  }
  return url;
}

// Exactly one of prompt, tokens and messages, which is the url's.
void check_source(const json& body, const std::optional<std::string>& url, BatchLine& line) {
  const auto has = [&](const char* name) { return body.contains(name) && !body[name].is_null(); };
  const int sources = (has("prompt") ? 1 : 0) + (has("tokens") ? 1 : 0) + (has("messages") ? 1 : 0);
  if (sources != 1) throw InvalidArgument(R"(give one of "prompt", "messages" and "tokens")");
  line.is_chat = has("messages");
  if (url && line.is_chat != (*url == kChatCompletions)) {
    throw InvalidArgument(
        fmt::format("\"url\" {} goes with \"{}\"", *url, line.is_chat ? "prompt" : "messages"));
  }
  if (has("max_tokens") && has("max_completion_tokens"))
    throw InvalidArgument(R"(give one of "max_tokens" and "max_completion_tokens")");
}

void read_line(const json& root, BatchLine& line) {
  if (!root.is_object()) throw InvalidArgument("a JSON object was expected");
  if (const auto id = root.find("custom_id"); id != root.end() && !id->is_null()) {
    std::string text = string_field("custom_id", *id);
    if (text.empty()) throw InvalidArgument("\"custom_id\" is empty");
    line.custom_id = std::move(text);
  }
  const auto body = root.find("body");
  if (body == root.end()) {
    if (root.contains("url") || root.contains("method"))
      throw InvalidArgument("\"body\" is absent, which goes with \"method\" and \"url\"");
    read_body(root, /*is_bare=*/true, line);
    return check_source(root, std::nullopt, line);
  }
  if (!body->is_object()) fail_field("body", *body, "an object");
  const std::optional<std::string> url = check_envelope(root);
  read_body(*body, /*is_bare=*/false, line);
  check_source(*body, url, line);
}

}  // namespace

LineError out_of_memory() {
  return {std::string(kNoMemory),
          "out of memory: the line is too large, or too many are under way; give it fewer answers or "
          "lower --max-in-flight"};
}

std::string default_custom_id(std::uint64_t number) {
  return fmt::format("line-{}", number);
}

BatchLine parse_batch_line(std::string_view text, std::uint64_t number, const engine::Request& defaults) {
  BatchLine line{.number = number,
                 .custom_id = default_custom_id(number),
                 .is_chat = false,
                 .model = {},
                 .text = std::nullopt,
                 .messages = {},
                 .request = defaults,
                 .error = std::nullopt};
  try {
    if (is_too_deep_json(text))
      throw InvalidArgument(fmt::format("arrays and objects are nested more than {} deep", kMaxJsonDepth));
    if (has_more_commas(text, kMaxValues))
      throw InvalidArgument(fmt::format("the line has more than {} values", kMaxValues));
    read_line(json::parse(text), line);
  } catch (const json::exception& error) {
    line.error = {std::string(kInvalidJson), cut(error.what())};
  } catch (const InvalidArgument& error) {
    line.error = {std::string(kInvalidRequest), cut(error.what())};
  } catch (const std::bad_alloc&) {
    line.error = out_of_memory();
  }
  return line;
}

}  // namespace metrale::app
