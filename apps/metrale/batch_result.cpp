// SPDX-License-Identifier: Apache-2.0
#include "batch_result.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace metrale::app {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kIdPrefix = "batch_req_";
// How every result line begins: to_string() puts the id first.
constexpr std::string_view kLineStart = R"({"id":"batch_req_)";

int status_of(const std::optional<LineError>& error) {
  constexpr int kOk = 200;
  constexpr int kRequestTimeout = 408;
  constexpr int kServerError = 500;
  if (!error) return kOk;
  return error->code == kTimeout ? kRequestTimeout : kServerError;
}

ordered_json error_json(const std::optional<LineError>& error) {
  if (!error) return nullptr;
  return {{"code", error->code}, {"message", error->message}};
}

ordered_json choice_json(std::size_t index, const ChoiceResult& choice, bool is_chat) {
  ordered_json result{{"index", index}};
  const ordered_json text = choice.text ? ordered_json(*choice.text) : ordered_json(nullptr);
  if (is_chat) {
    result["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    result["text"] = text;
  }
  result["tokens"] = choice.tokens;
  result["finish_reason"] = choice.finish_reason;
  return result;
}

ordered_json body_json(const LineResult& result, bool is_chat) {
  ordered_json choices = ordered_json::array();
  for (const ChoiceResult& choice : result.choices)
    choices.push_back(choice_json(choices.size(), choice, is_chat));
  return {{"object", is_chat ? "chat.completion" : "text_completion"},
          {"model", result.model},
          {"choices", std::move(choices)},
          {"usage",
           {{"prompt_tokens", result.prompt_tokens},
            {"completion_tokens", result.output_tokens},
            {"total_tokens", result.prompt_tokens + result.output_tokens},
            {"prompt_tokens_details", {{"cached_tokens", result.cached_tokens}}}}}};
}

std::string to_string(const BatchLine& line, ordered_json response, const std::optional<LineError>& error) {
  const ordered_json whole{{"id", fmt::format("{}{}", kIdPrefix, line.number)},
                           {"custom_id", line.custom_id},
                           {"response", std::move(response)},
                           {"error", error_json(error)}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// The text of a member; empty where it is absent or no text.
std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<std::uint64_t> number_of(std::string_view id) {
  if (!id.starts_with(kIdPrefix)) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(id.data() + kIdPrefix.size(), id.data() + id.size(), number);
  return error == std::errc{} && end == id.data() + id.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string to_result_line(const BatchLine& line, const LineResult& result) {
  return to_string(line,
                   {{"status_code", status_of(result.error)}, {"body", body_json(result, line.is_chat)}},
                   result.error);
}

std::string to_error_line(const BatchLine& line) {
  return to_string(line, nullptr, line.error);
}

std::optional<KnownResult> parse_result_line(std::string_view text) {
  const json line = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("response") || !line.contains("error")) return std::nullopt;
  const std::string custom_id = text_of(line, "custom_id");
  const std::optional<std::uint64_t> number = number_of(text_of(line, "id"));
  if (custom_id.empty() || !number) return std::nullopt;
  KnownResult known{.key = id_key(custom_id)};
  const json& error = line["error"];
  if (error.is_null()) return known;
  if (!error.is_object()) return std::nullopt;
  const std::string code = text_of(error, "code");
  known.has_error = true;
  known.run_again = code == kTimeout || code == kNoMemory;
  if (code == kDuplicateId) known.key = repeated_id_key(*number);
  return known;
}

bool may_begin_result(std::string_view text) {
  return kLineStart.starts_with(text.substr(0, kLineStart.size()));
}

}  // namespace metrale::app
