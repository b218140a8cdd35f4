// SPDX-License-Identifier: Apache-2.0
// What an engine is asked and what it answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/base/ids.h>
#include <metrale/prefix/types.h>
#include <metrale/sampling/params.h>

namespace metrale::engine {

using RequestId = Id<struct RequestTag, std::uint64_t>;

// One prompt, and n answers to it.
struct Request {
  std::vector<std::int32_t> prompt{};  // at least one token, fewer than max_seq_len
  sampling::SamplingParams sampling{};
  std::uint32_t max_new_tokens = 256;    // of each answer; cut to what max_seq_len leaves
  std::vector<std::int32_t> stop_ids{};  // beside the model's end-of-text tokens
  std::vector<std::string> stop{};       // texts that end an answer and are not part of it; need a tokenizer
  bool ignore_eos = false;               // the model's end-of-text tokens do not stop it
  std::uint32_t n = 1;                   // answers, which share the prompt; answer i draws with seed + i
  std::int32_t priority = 0;             // higher goes first; see SchedulerConfig::max_overtakes
  std::optional<Nanoseconds> timeout{};  // from submit() on; then what is not finished ends
  std::string tenant{};                  // prefixes are shared within one tenant only
  prefix::Retention retention{};         // of what this request leaves in the prefix cache
};

enum class FinishReason : std::uint8_t {
  kStop,       // a stop token or text, which is not part of the answer
  kLength,     // max_new_tokens, or max_seq_len
  kCancelled,  // cancel()
  kTimeout,    // Request::timeout
  kNoLogits,   // no token had a finite, allowed logit
};
// "stop", "length", "cancelled", "timeout", "no_logits".
[[nodiscard]] std::string_view to_string(FinishReason reason);

// What a step did for one answer: a new token, text, an end, or several of them.
struct StepEvent {
  RequestId request;
  std::uint32_t choice = 0;  // which of the n answers
  std::optional<std::int32_t> token{};
  // With EngineOptions::tokenizer: what can be shown now. Bytes of an unfinished character, and what may turn
  // out to be the start of a stop text, come with a later event.
  std::string text{};
  std::optional<FinishReason> finished{};
  bool request_finished = false;  // this was the last of its answers: take_stats() knows it now
};

struct RequestStats {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;  // of the prompt, not computed because the prefix cache had them
  std::uint32_t output_tokens = 0;  // of all answers
  std::uint32_t preemptions = 0;    // of all answers
  Nanoseconds submitted{0};         // by the engine's clock
  Nanoseconds queued{0};            // submit to the first step
  Nanoseconds ttft{0};              // submit to the first token
  Nanoseconds decode{0};            // first token to the last
};

}  // namespace metrale::engine
