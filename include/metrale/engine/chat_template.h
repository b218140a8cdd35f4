// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: a conversation as the prompt that a model was trained on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/tokenizer.h>

namespace metrale::engine {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatTemplateParts;

// A Jinja template as transformers renders it, with messages, add_generation_prompt, bos_token, eos_token and
// the other special tokens of tokenizer_config.json (tools and documents are none). What the templates of
// public models use is there: loops, conditions, macros, namespaces, filters, tests and methods of strings;
// any other part is refused when the template is loaded or rendered, never passed over. Immutable: every call
// may be made from many threads at once. Move-only.
class ChatTemplate {
 public:
  // The template of the model in `directory`: chat_template.jinja, else chat_template of
  // tokenizer_config.json, else the built-in form whose special tokens the vocabulary has. `choice`, where
  // not empty, takes another: "chatml", "llama3", "mistral", "none" (contents one after another, framed as a
  // plain text is) or the path of a Jinja file.
  //
  // Throws IoError, FormatError (a broken tokenizer_config.json), Unsupported (no template, or one with parts
  // that are not there: the message names part and line).
  [[nodiscard]] static ChatTemplate load(const std::string& directory, const Tokenizer& tokenizer,
                                         const std::string& choice = {});
  // The same from memory; `special_tokens` are variables such as {"bos_token", "<s>"}, `origin` stands for
  // the path in messages.
  [[nodiscard]] static ChatTemplate parse(
      std::string_view source, const std::string& origin,
      std::vector<std::pair<std::string, std::string>> special_tokens = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // Where the template comes from: a path, "built-in chatml" or the like.
  [[nodiscard]] const std::string& origin() const noexcept;

  // The prompt as text, to show. With `add_generation_prompt` it ends where the model's answer begins.
  // Throws InvalidArgument where the template refuses the conversation (roles that do not alternate),
  // FormatError where it does what it may not (an item of an undefined value, endless work), Unsupported.
  [[nodiscard]] std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  // The prompt as ids: those of render's text without the tokenizer's own frame, except that special tokens
  // spelled in a role or a content are read as plain text, so that no message can forge a turn.
  [[nodiscard]] std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                            bool add_generation_prompt) const;

 private:
  explicit ChatTemplate(std::unique_ptr<const ChatTemplateParts> parts) noexcept;
  std::unique_ptr<const ChatTemplateParts> parts_;
};

}  // namespace metrale::engine
