// SPDX-License-Identifier: Apache-2.0
// A line of the output of `metrale batch`, in the form of OpenAI's batch results. docs/batch.md has the
// fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "batch_line.h"
#include "id_table.h"

namespace metrale::app {

struct ChoiceResult {
  std::vector<std::int32_t> tokens;
  std::optional<std::string> text;  // absent where the model has no tokenizer
  std::string finish_reason;
};

struct LineResult {
  std::string model;
  std::vector<ChoiceResult> choices;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;  // of the prompt
  std::uint32_t output_tokens = 0;
  std::optional<LineError> error;  // of a request that ran and did not come to its end
};

// Each with its newline. Bytes that are not UTF-8 come out as U+FFFD.
[[nodiscard]] std::string to_result_line(const BatchLine& line, const LineResult& result);
// Of a line that did not run: its error.
[[nodiscard]] std::string to_error_line(const BatchLine& line);

// What a result line of an earlier run is about.
struct KnownResult {
  IdKey key;
  bool has_error = false;
  bool run_again = false;  // it ended for a reason that may be gone
};
// none where the text, a line without its end, is no result.
[[nodiscard]] std::optional<KnownResult> parse_result_line(std::string_view text);
// Whether the text may be the start of a result line that was not written to its end.
[[nodiscard]] bool may_begin_result(std::string_view text);

}  // namespace metrale::app
