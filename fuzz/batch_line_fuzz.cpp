// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: batch_lines
// A line of the input of `metrale batch`: a request or an error, never an exception, and either way a result
// that is one line, which a later run knows by the same id. The bytes themselves may be a result of an
// earlier run.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "batch_line.h"
#include "batch_result.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace app = metrale::app;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const app::BatchLine line = app::parse_batch_line(input, 5, {});
  const bool has_prompt = line.text || line.is_chat;
  if (!line.error && has_prompt && !line.request.prompt.empty()) std::abort();
  if (!line.error && line.is_chat != !line.messages.empty()) std::abort();
  if (line.custom_id.empty()) std::abort();

  const app::LineResult result{.model = line.model,
                               .choices = {{.tokens = {1}, .text = line.text, .finish_reason = "stop"}},
                               .error = {}};
  for (const std::string& text : {app::to_result_line(line, result), app::to_error_line(line)}) {
    if (text.find('\n') != text.size() - 1) std::abort();
    const auto known = app::parse_result_line(std::string_view(text).substr(0, text.size() - 1));
    if (!known || !(known->key == app::id_key(line.custom_id))) std::abort();
  }
  static_cast<void>(app::parse_result_line(input));
  return 0;
}
