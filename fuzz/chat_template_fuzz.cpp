// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: engine_text
// A chat template and the content of a message, divided by the first NUL byte. A template is refused with a
// typed error or renders, and what it renders holds no byte more than the limits allow.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/engine/chat_template.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using metrale::engine::ChatMessage;
  using metrale::engine::ChatTemplate;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t divider = input.find('\0');
  const std::string content(divider == std::string_view::npos ? std::string_view("Hi")
                                                              : input.substr(divider + 1));
  const std::vector<ChatMessage> messages = {{"system", "Be kind."}, {"user", content}, {"assistant", "Yes"}};
  try {
    const ChatTemplate chat =
        ChatTemplate::parse(input.substr(0, divider), "fuzz", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    constexpr std::size_t kMostBytes = std::size_t{64} << 20;
    for (const bool prompt : {false, true}) {
      if (chat.render(messages, prompt).size() > kMostBytes) std::abort();
    }
  } catch (const metrale::FormatError&) {
    return 0;
  } catch (const metrale::Unsupported&) {
    return 0;
  } catch (const metrale::InvalidArgument&) {  // the template refuses the conversation
    return 0;
  }
  return 0;
}
