// SPDX-License-Identifier: Apache-2.0
#include "batch_fields.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "json_input.h"

namespace metrale::app {
namespace {

using nlohmann::json;

float number_field(std::string_view name, const json& value) {
  // A double beyond float has no float.
  const double number = value.is_number() ? value.get<double>() : HUGE_VAL;
  if (std::abs(number) > std::numeric_limits<float>::max()) fail_field(name, value, "a number");
  return static_cast<float>(number);
}

std::int64_t integer_field(std::string_view name, const json& value, std::int64_t low, std::int64_t high) {
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <=
                                                     std::uint64_t{std::numeric_limits<std::int64_t>::max()}
                                               : value.is_number_integer();
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < low || number > high)
    fail_field(name, value, fmt::format("a whole number from {} to {}", low, high));
  return number;
}

std::int32_t int32_field(std::string_view name, const json& value, std::int32_t low = 0) {
  return static_cast<std::int32_t>(integer_field(name, value, low, std::numeric_limits<std::int32_t>::max()));
}

std::uint32_t count_field(std::string_view name, const json& value, std::uint32_t high) {
  return static_cast<std::uint32_t>(integer_field(name, value, 1, high));
}

bool truth_field(std::string_view name, const json& value) {
  if (!value.is_boolean()) fail_field(name, value, "true or false");
  return value.get<bool>();
}

// A list that every answer of a request is compared with, or keeps a copy of.
void check_limit(std::string_view name, std::size_t count, std::size_t limit, std::string_view what) {
  if (count > limit)
    throw InvalidArgument(fmt::format("\"{}\" has {} {}; the most is {}", name, count, what, limit));
}

std::vector<std::int32_t> token_list(std::string_view name, const json& value) {
  if (!value.is_array()) fail_field(name, value, "an array of token ids");
  std::vector<std::int32_t> ids;
  for (const json& id : value) {
    if (id.is_string() && name == "prompt") fail_field(name, value, "one prompt, since each line has one");
    ids.push_back(int32_field(name, id));
  }
  return ids;
}

std::vector<std::int32_t> stop_id_list(std::string_view name, const json& value) {
  if (value.is_array()) check_limit(name, value.size(), kMaxStopIds, "token ids");
  return token_list(name, value);
}

std::vector<std::string> stop_list(std::string_view name, const json& value) {
  std::vector<std::string> texts;
  if (value.is_string()) {
    texts.push_back(value.get<std::string>());
  } else {
    if (!value.is_array()) fail_field(name, value, "a text, or an array of them");
    check_limit(name, value.size(), kMaxStops, "texts");
    for (const json& text : value) texts.push_back(string_field(name, text));
  }
  for (const std::string& text : texts) {
    if (text.empty()) throw InvalidArgument(fmt::format("\"{}\" has an empty text", name));
    check_limit(name, text.size(), kMaxStopBytes, "bytes in a text");
  }
  return texts;
}

std::vector<std::pair<std::uint32_t, float>> bias_field(std::string_view name, const json& value) {
  if (!value.is_object()) fail_field(name, value, "an object of token ids and numbers");
  std::vector<std::pair<std::uint32_t, float>> biases;
  for (const auto& [key, bias] : value.items()) {
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size())
      throw InvalidArgument(fmt::format("\"{}\": \"{}\" is no token id", name, shown_name(key)));
    biases.emplace_back(id, number_field(name, bias));
  }
  return biases;
}

std::vector<engine::ChatMessage> messages_field(std::string_view name, const json& value) {
  if (!value.is_array() || value.empty()) fail_field(name, value, "an array of messages");
  std::vector<engine::ChatMessage> messages;
  for (const json& each : value) {
    if (!each.is_object()) fail_field(name, each, "messages with role and content");
    for (const auto& [key, part] : each.items()) {
      if (key != "role" && key != "content")
        throw InvalidArgument(fmt::format("unknown field \"{}\" of a message", shown_name(key)));
    }
    if (!each.contains("role") || !each.contains("content"))
      throw InvalidArgument(R"(a message lacks "role" or "content")");
    messages.push_back({string_field("role", each["role"]), string_field("content", each["content"])});
  }
  return messages;
}

Nanoseconds timeout_field(std::string_view name, const json& value) {
  constexpr double kMaxSeconds = 1e9;
  const double seconds = value.is_number() ? value.get<double>() : -1;
  if (!(seconds > 0 && seconds <= kMaxSeconds)) fail_field(name, value, "seconds above 0, up to 1e9");
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

void prompt_field(BatchLine& line, std::string_view name, const json& value) {
  if (value.is_array()) {
    line.request.prompt = token_list(name, value);
  } else {
    line.text = string_field(name, value);
  }
}

constexpr std::uint32_t kMaxCount = 1U << 30;

void max_tokens_field(BatchLine& line, std::string_view name, const json& value) {
  line.request.max_new_tokens = count_field(name, value, kMaxCount);
}

using sampling::SamplingParams;

template <float SamplingParams::* Member>
void sampling_number(BatchLine& line, std::string_view name, const json& value) {
  line.request.sampling.*Member = number_field(name, value);
}
// -1 is off, as 0 is.
template <std::int32_t SamplingParams::* Member>
void sampling_integer(BatchLine& line, std::string_view name, const json& value) {
  line.request.sampling.*Member = int32_field(name, value, -1);
}

using Read = void (*)(BatchLine& line, std::string_view name, const json& value);
using Fields = std::map<std::string_view, Read>;

// What is asked: the prompt, how many answers, where they end.
const Fields kRequestFields{
    {"prompt", prompt_field},
    {"tokens",
     [](BatchLine& line, auto name, const json& value) { line.request.prompt = token_list(name, value); }},
    {"messages",
     [](BatchLine& line, auto name, const json& value) { line.messages = messages_field(name, value); }},
    {"model", [](BatchLine& line, auto name, const json& value) { line.model = string_field(name, value); }},
    {"max_tokens", max_tokens_field},
    {"max_completion_tokens", max_tokens_field},
    {"n", [](BatchLine& line, auto name,
             const json& value) { line.request.n = count_field(name, value, kMaxCount); }},
    {"stop",
     [](BatchLine& line, auto name, const json& value) { line.request.stop = stop_list(name, value); }},
    {"stop_token_ids", [](BatchLine& line, auto name,
                          const json& value) { line.request.stop_ids = stop_id_list(name, value); }},
    {"ignore_eos", [](BatchLine& line, auto name,
                      const json& value) { line.request.ignore_eos = truth_field(name, value); }},
    {"priority",
     [](BatchLine& line, auto name, const json& value) {
       line.request.priority = int32_field(name, value, std::numeric_limits<std::int32_t>::min());
     }},
    {"user",
     [](BatchLine& line, auto name, const json& value) { line.request.tenant = string_field(name, value); }},
    {"timeout", [](BatchLine& line, auto name,
                   const json& value) { line.request.timeout = timeout_field(name, value); }},
    {"metadata", [](BatchLine&, auto, const json&) {}},  // the caller's own
    {"stream",
     [](BatchLine&, auto name, const json& value) {
       if (truth_field(name, value)) fail_field(name, value, "false, since a result is one line");
     }},
};

// Their ranges are the engine's to check, as that of n is.
const Fields kSamplingFields{
    {"temperature", sampling_number<&SamplingParams::temperature>},
    {"temperature_last",
     [](BatchLine& line, auto name, const json& value) {
       line.request.sampling.temperature_last = truth_field(name, value);
     }},
    {"top_k", sampling_integer<&SamplingParams::top_k>},
    {"top_p", sampling_number<&SamplingParams::top_p>},
    {"min_p", sampling_number<&SamplingParams::min_p>},
    {"top_n_sigma", sampling_number<&SamplingParams::top_n_sigma>},
    {"repetition_penalty", sampling_number<&SamplingParams::repetition_penalty>},
    {"presence_penalty", sampling_number<&SamplingParams::presence_penalty>},
    {"frequency_penalty", sampling_number<&SamplingParams::frequency_penalty>},
    {"penalty_window", sampling_integer<&SamplingParams::penalty_window>},
    {"dry_multiplier", sampling_number<&SamplingParams::dry_multiplier>},
    {"dry_base", sampling_number<&SamplingParams::dry_base>},
    {"dry_allowed_length",
     [](BatchLine& line, auto name, const json& value) {
       line.request.sampling.dry_allowed_length = count_field(name, value, kMaxCount);
     }},
    {"logit_bias", [](BatchLine& line, auto name,
                      const json& value) { line.request.sampling.logit_bias = bias_field(name, value); }},
    {"seed",
     [](BatchLine& line, auto name, const json& value) {
       if (!value.is_number_unsigned()) fail_field(name, value, "a whole number from 0 to 2^64 - 1");
       line.request.sampling.seed = value.get<std::uint64_t>();
     }},
};

Read reader_of(std::string_view name) {
  for (const auto* fields : {&kRequestFields, &kSamplingFields}) {
    if (const auto found = fields->find(name); found != fields->end()) return found->second;
  }
  return nullptr;
}

}  // namespace

void read_body(const json& body, bool is_bare, BatchLine& line) {
  for (const auto& [name, value] : body.items()) {
    if (is_bare && name == "custom_id") continue;
    const Read read = reader_of(name);
    if (read == nullptr) throw InvalidArgument(fmt::format("unknown field \"{}\"", shown_name(name)));
    if (!value.is_null()) read(line, name, value);
  }
}

std::string string_field(std::string_view name, const json& value) {
  if (!value.is_string()) fail_field(name, value, "a text");
  return value.get<std::string>();
}

void fail_field(std::string_view name, const json& value, std::string_view expected) {
  throw InvalidArgument(fmt::format("\"{}\" is {}; expected: {}", name, shown(value), expected));
}

}  // namespace metrale::app
