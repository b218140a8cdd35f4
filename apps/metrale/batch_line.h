// SPDX-License-Identifier: Apache-2.0
// A line of the input of `metrale batch`: what it asks for, or what is wrong with it. docs/batch.md has the
// fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/chat_template.h>
#include <metrale/engine/request.h>

namespace metrale::app {

// What goes into a result's "error".
struct LineError {
  std::string code;  // one of those below
  std::string message;
};
inline constexpr std::string_view kInvalidJson = "invalid_json";
inline constexpr std::string_view kInvalidRequest = "invalid_request";
inline constexpr std::string_view kLineTooLong = "line_too_long";
inline constexpr std::string_view kDuplicateId = "duplicate_custom_id";
inline constexpr std::string_view kTimeout = "timeout";
inline constexpr std::string_view kNoLogits = "no_logits";
inline constexpr std::string_view kNoMemory = "out_of_memory";

struct BatchLine {
  std::uint64_t number = 0;  // from 1
  std::string custom_id;     // "line-N" where the line has none, or where it cannot be read
  bool is_chat = false;
  std::string model;                // as the line names it
  std::optional<std::string> text;  // the prompt, unless it is the messages or the request's own token ids
  std::vector<engine::ChatMessage> messages;
  engine::Request request;
  std::optional<LineError> error;  // then the rest does not count, except number and custom_id
};

// Of a line that asks for more memory than there is.
[[nodiscard]] LineError out_of_memory();

// "line-N".
[[nodiscard]] std::string default_custom_id(std::uint64_t number);

// `text` is a line without its end. What it does not say is as in `defaults`. Never throws for what is in the
// text.
[[nodiscard]] BatchLine parse_batch_line(std::string_view text, std::uint64_t number,
                                         const engine::Request& defaults);

}  // namespace metrale::app
