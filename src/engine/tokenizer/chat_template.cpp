// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/engine/chat_template.h>

#include "engine/tokenizer/jinja/ast.h"
#include "engine/tokenizer/jinja/render.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;
constexpr std::string_view kWayOut =
    "choose another with --chat-template (chatml, llama3, mistral, none or a file)";

struct BuiltIn {
  std::string_view name;
  std::string_view source;
  // A vocabulary with all of these speaks it.
  std::array<std::string_view, 3> tokens;
  std::string_view bos;  // where tokenizer_config.json does not say
  std::string_view eos;
};

constexpr std::string_view kChatml =
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr std::string_view kLlama3 =
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content | trim ~ "
    "'<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
// A system message stands before the first user message, in the same turn.
constexpr std::string_view kMistral =
    "{{ bos_token }}{% set turn = namespace(before='') %}{% for message in messages %}"
    "{% if message.role == 'system' %}{% set turn.before = message.content ~ '\n\n' %}"
    "{% elif message.role == 'user' %}[INST] {{ turn.before ~ message.content }} [/INST]{% set turn.before = "
    "'' %}"
    "{% elif message.role == 'assistant' %}{{ message.content ~ eos_token }}"
    "{% else %}{{ raise_exception('the role ' ~ message.role ~ ' is not system, user or assistant') }}{% "
    "endif %}{% endfor %}";
constexpr std::string_view kNone = "{% for message in messages %}{{ message.content }}{% endfor %}";

constexpr std::array<BuiltIn, 4> kBuiltIns = {{
    {"chatml", kChatml, {"<|im_start|>", "<|im_end|>", "<|im_end|>"}, "", "<|im_end|>"},
    {"llama3",
     kLlama3,
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     "<|begin_of_text|>",
     "<|eot_id|>"},
    {"mistral", kMistral, {"[INST]", "[/INST]", "</s>"}, "<s>", "</s>"},
    {"none", kNone, {}, "", ""},
}};

using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

// The template's own errors as the library's.
[[noreturn]] void rethrow(const jinja::FailureAt& error, const std::string& origin) {
  const std::string& message = error.failure.message;
  switch (error.failure.kind) {
    case jinja::Failure::Kind::kRefused:
      throw InvalidArgument(
          fmt::format("the chat template {} refuses this conversation: {}", origin, message));
    case jinja::Failure::Kind::kWrong:
      throw FormatError(origin, 0,
                        fmt::format("line {} of the chat template: {}; {}", error.line, message, kWayOut));
    default:
      throw Unsupported(fmt::format("the reader of chat templates ('{}', line {})", origin, error.line),
                        fmt::format("{}; {}", message, kWayOut));
  }
}

bool has_tokens_of(const BuiltIn& form, const Tokenizer& tokenizer) {
  return std::all_of(form.tokens.begin(), form.tokens.end(), [&](std::string_view token) {
    const auto id = tokenizer.token_id(token);
    return id && tokenizer.is_special(*id);
  });
}

// The ranges that came with the conversation.
std::vector<TextRange> given_ranges(const jinja::Text& text) {
  std::vector<TextRange> ranges;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!text.is_given(at)) continue;
    if (!ranges.empty() && ranges.back().end == at) {
      ++ranges.back().end;
    } else {
      ranges.push_back({at, at + 1});
    }
  }
  return ranges;
}

}  // namespace

struct ChatTemplateParts {
  std::string origin;
  SpecialTokens special_tokens;
  jinja::NodePtr tree;
  bool frames = false;  // the tokenizer's frame is the prompt's

  [[nodiscard]] jinja::Text text(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
    std::vector<jinja::Value> list;
    for (const ChatMessage& message : messages) {
      list.push_back(jinja::make_dict(
          {{"role", jinja::Text::given(message.role)}, {"content", jinja::Text::given(message.content)}}));
    }
    std::vector<std::pair<std::string, jinja::Value>> variables = {
        {"messages", jinja::make_list(std::move(list))},
        {"add_generation_prompt", add_generation_prompt},
        {"tools", jinja::None{}},
        {"documents", jinja::None{}}};
    for (const auto& [name, token] : special_tokens) variables.emplace_back(name, jinja::Text(token));
    try {
      return jinja::render(*tree, std::move(variables), std::time(nullptr));
    } catch (const jinja::FailureAt& error) {
      rethrow(error, origin);
    }
  }
};

namespace {

std::unique_ptr<ChatTemplateParts> read_template(std::string_view source, const std::string& origin,
                                                 SpecialTokens special_tokens) {
  auto parts = std::make_unique<ChatTemplateParts>();
  parts->origin = origin;
  parts->special_tokens = std::move(special_tokens);
  if (source.size() > kMaxTemplateBytes)
    throw FormatError(origin, 0, fmt::format("a chat template of {} bytes; 1 MiB at most", source.size()));
  try {
    parts->tree = jinja::parse(source);
  } catch (const jinja::FailureAt& error) {
    rethrow(error, origin);
  }
  return parts;
}

std::unique_ptr<ChatTemplateParts> read_built_in(const BuiltIn& form, SpecialTokens special_tokens) {
  const auto add_missing = [&](const char* name, std::string_view token) {
    const bool is_there = std::any_of(special_tokens.begin(), special_tokens.end(),
                                      [&](const auto& each) { return each.first == name; });
    if (!is_there) special_tokens.emplace_back(name, token);
  };
  add_missing("bos_token", form.bos);
  add_missing("eos_token", form.eos);
  auto parts = read_template(form.source, fmt::format("built-in {}", form.name), std::move(special_tokens));
  parts->frames = form.name == "none";
  return parts;
}

std::unique_ptr<ChatTemplateParts> read_file(const std::string& path, SpecialTokens special_tokens) {
  return read_template(read_text_file(path, kMaxTemplateBytes), path, std::move(special_tokens));
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const ChatTemplateParts> parts) noexcept
    : parts_(std::move(parts)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& origin,
                                 SpecialTokens special_tokens) {
  return ChatTemplate(read_template(source, origin, std::move(special_tokens)));
}

ChatTemplate ChatTemplate::load(const std::string& directory, const Tokenizer& tokenizer,
                                const std::string& choice) {
  const std::filesystem::path folder(directory);
  const std::string config_path = (folder / "tokenizer_config.json").string();
  TokenizerConfig config = read_tokenizer_config(config_path);
  for (const BuiltIn& form : kBuiltIns) {
    if (choice == form.name) return ChatTemplate(read_built_in(form, std::move(config.special_tokens)));
  }
  if (!choice.empty()) return ChatTemplate(read_file(choice, std::move(config.special_tokens)));
  const std::string own = (folder / "chat_template.jinja").string();
  if (std::filesystem::exists(own)) return ChatTemplate(read_file(own, std::move(config.special_tokens)));
  if (config.chat_template)
    return parse(*config.chat_template, config_path, std::move(config.special_tokens));
  for (const BuiltIn& form : kBuiltIns) {
    if (form.name != "none" && has_tokens_of(form, tokenizer))
      return ChatTemplate(read_built_in(form, std::move(config.special_tokens)));
  }
  throw Unsupported(
      fmt::format("the model '{}'", directory),
      fmt::format("chat: it has no chat_template, and no special tokens of a known form; {}", kWayOut));
}

const std::string& ChatTemplate::origin() const noexcept {
  return parts_->origin;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  return parts_->text(messages, add_generation_prompt).bytes();
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const {
  const jinja::Text text = parts_->text(messages, add_generation_prompt);
  const std::vector<TextRange> plain = given_ranges(text);
  return tokenizer.encode(text.bytes(),
                          {.add_special_tokens = parts_->frames, .parse_special = true, .plain = plain});
}

}  // namespace metrale::engine
