// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/sampling/rng.h>

namespace metrale::replay {
namespace {

// What a number is drawn for: tokens of streams, apart from the sampler's draws.
constexpr std::uint32_t kStreamPurpose = 0x54524143;  // "TRAC"

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// All digits that matter: a time is a whole number of nanoseconds.
std::string seconds_text(Nanoseconds time) {
  constexpr std::int64_t kBillion = 1'000'000'000;
  std::string text = fmt::format("{}.{:09}", time.count() / kBillion, time.count() % kBillion);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string segment_text(const PromptSegment& segment) {
  if (!segment.ids.empty()) return fmt::format(R"({{"tokens":[{}]}})", fmt::join(segment.ids, ","));
  return fmt::format(R"({{"stream":{},"tokens":{}}})", segment.stream, segment.count);
}

std::string request_text(const Trace& trace, const TraceRequest& request) {
  std::string text = fmt::format(R"({{"id":{})", request.id);
  if (!request.parent || request.arrival.count() != 0)
    text += fmt::format(R"(,"arrival":{})", seconds_text(request.arrival));
  if (request.parent) text += fmt::format(R"(,"parent":{})", trace.requests[*request.parent].id);
  if (request.think.count() != 0) text += fmt::format(R"(,"think":{})", seconds_text(request.think));
  if (!request.tenant.empty()) text += fmt::format(R"(,"tenant":{})", quoted(request.tenant));
  if (!request.prompt.empty()) {
    std::vector<std::string> segments;
    for (const PromptSegment& segment : request.prompt) segments.push_back(segment_text(segment));
    text += fmt::format(R"(,"prompt":[{}])", fmt::join(segments, ","));
  }
  text += fmt::format(R"(,"max_tokens":{})", request.max_tokens);
  if (request.n != 1) text += fmt::format(R"(,"n":{})", request.n);
  if (request.temperature != 0) text += fmt::format(R"(,"temperature":{})", request.temperature);
  if (request.priority != 0) text += fmt::format(R"(,"priority":{})", request.priority);
  if (request.timeout) text += fmt::format(R"(,"timeout":{})", seconds_text(*request.timeout));
  if (request.cancel_after) text += fmt::format(R"(,"cancel_after":{})", *request.cancel_after);
  return text + "}\n";
}

}  // namespace

void write_text(const Trace& trace, const std::function<void(std::string_view)>& write) {
  std::string header =
      fmt::format(R"({{"metrale_trace":{},"vocab":{},"seed":{})", kTraceVersion, trace.vocab, trace.seed);
  if (!trace.note.empty()) header += fmt::format(R"(,"note":{})", quoted(trace.note));
  write(header + "}\n");
  for (const TraceRequest& request : trace.requests) write(request_text(trace, request));
}

std::string to_text(const Trace& trace) {
  std::string text;
  write_text(trace, [&](std::string_view line) { text += line; });
  return text;
}

std::int32_t stream_token(std::uint64_t seed, std::uint64_t stream, std::uint64_t position,
                          std::uint32_t vocab) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  const sampling::PhiloxBlock block = sampling::philox4x32(
      {low(position), low(stream), high(stream), kStreamPurpose}, {low(seed), high(seed)});
  const std::uint64_t bits = (std::uint64_t{block[1]} << 32) | block[0];
  return static_cast<std::int32_t>(sampling::uniform_below(bits, vocab));
}

void append_segments(const Trace& trace, const TraceRequest& request, std::vector<std::int32_t>& prompt) {
  for (const PromptSegment& segment : request.prompt) {
    prompt.insert(prompt.end(), segment.ids.begin(), segment.ids.end());
    if (!segment.ids.empty()) continue;
    for (std::uint32_t i = 0; i < segment.count; ++i)
      prompt.push_back(stream_token(trace.seed, segment.stream, i, trace.vocab));
  }
}

std::vector<std::uint64_t> longest_prompts(const std::vector<TraceRequest>& requests) {
  std::vector<std::uint64_t> lengths;
  lengths.reserve(requests.size());
  for (const TraceRequest& request : requests) {
    std::uint64_t length = 0;
    if (request.parent) length = lengths[*request.parent] + requests[*request.parent].max_tokens;
    for (const PromptSegment& segment : request.prompt) length += segment.size();
    lengths.push_back(length);
  }
  return lengths;
}

}  // namespace metrale::replay
