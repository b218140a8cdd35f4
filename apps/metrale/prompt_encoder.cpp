// SPDX-License-Identifier: Apache-2.0
#include "prompt_encoder.h"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::app {
namespace {

void require(const engine::Tokenizer* tokenizer) {
  expects(tokenizer != nullptr, "a text prompt needs a model directory with a tokenizer.json");
}

std::string no_tokens_message(const std::string& text) {
  constexpr std::size_t kShownBytes = 8;
  std::string bytes;
  for (const char c : text.substr(0, kShownBytes))
    bytes += fmt::format(" {:02x}", static_cast<unsigned char>(c));
  return fmt::format(
      "the tokenizer drops all of its {} bytes (hex{}{}), for which its vocabulary has neither tokens nor an "
      "unk_token",
      text.size(), bytes, text.size() > kShownBytes ? " …" : "");
}

}  // namespace

std::optional<engine::Tokenizer> load_tokenizer(const std::string& model, bool needed) {
  const std::string path = (std::filesystem::path(model) / "tokenizer.json").string();
  if (!needed && !std::filesystem::exists(path)) return std::nullopt;
  return engine::Tokenizer::load(path);
}

PromptEncoder::PromptEncoder(std::string model, const engine::Tokenizer* tokenizer, std::string chat_template)
    : model_(std::move(model)), tokenizer_(tokenizer), chosen_template_(std::move(chat_template)) {
  if (!chosen_template_.empty() && tokenizer_ != nullptr)
    template_ = engine::ChatTemplate::load(model_, *tokenizer_, chosen_template_);
}

std::vector<std::int32_t> PromptEncoder::text(const std::string& prompt, std::string_view subject) const {
  require(tokenizer_);
  std::vector<std::int32_t> ids = tokenizer_->encode(prompt);
  if (ids.empty())
    throw InvalidArgument(fmt::format("{} has no tokens: {}", subject, no_tokens_message(prompt)));
  return ids;
}

std::vector<std::int32_t> PromptEncoder::chat(std::span<const engine::ChatMessage> messages,
                                              std::string_view subject) {
  require(tokenizer_);
  if (!template_) template_ = engine::ChatTemplate::load(model_, *tokenizer_);
  std::vector<std::int32_t> ids = template_->encode(*tokenizer_, messages, /*add_generation_prompt=*/true);
  if (ids.empty()) {
    throw InvalidArgument(fmt::format(
        "{} has no tokens: the chat template makes nothing of it; --chat-template takes another", subject));
  }
  return ids;
}

}  // namespace metrale::app
