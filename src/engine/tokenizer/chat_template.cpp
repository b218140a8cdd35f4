// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/engine/chat_template.h>

namespace metrale::engine {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

// Calls marker(text) for what the template writes as a special token, text(text) for the rest, in order.
template <class Marker, class Text>
void walk(std::span<const ChatMessage> messages, bool add_generation_prompt, std::string_view default_system,
          Marker marker, Text text) {
  const auto message = [&](std::string_view role, std::string_view content) {
    marker(kStart);
    text(fmt::format("{}\n{}", role, content));
    marker(kEnd);
    text("\n");
  };
  const bool lacks_system = !messages.empty() && messages.front().role != "system";
  if (lacks_system && !default_system.empty()) message("system", default_system);
  for (const ChatMessage& each : messages) message(each.role, each.content);
  if (add_generation_prompt) {
    marker(kStart);
    text("assistant\n");
  }
}

}  // namespace

bool uses_chatml(const Tokenizer& tokenizer) {
  return tokenizer.token_id(kStart).has_value() && tokenizer.token_id(kEnd).has_value();
}

std::string render_chatml(std::span<const ChatMessage> messages, bool add_generation_prompt,
                          std::string_view default_system) {
  std::string prompt;
  const auto append = [&](std::string_view part) { prompt += part; };
  walk(messages, add_generation_prompt, default_system, append, append);
  return prompt;
}

std::vector<TokenId> encode_chatml(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                   bool add_generation_prompt, std::string_view default_system) {
  if (!uses_chatml(tokenizer)) {
    throw InvalidArgument(
        "the tokenizer has no <|im_start|> and <|im_end|>: use a plain prompt for this model");
  }
  std::vector<TokenId> ids;
  const auto append_marker = [&](std::string_view marker) { ids.push_back(*tokenizer.token_id(marker)); };
  const auto append_text = [&](std::string_view text) {
    const std::vector<TokenId> part =
        tokenizer.encode(text, {.add_special_tokens = false, .parse_special = false});
    ids.insert(ids.end(), part.begin(), part.end());
  };
  walk(messages, add_generation_prompt, default_system, append_marker, append_text);
  return ids;
}

}  // namespace metrale::engine
