// SPDX-License-Identifier: Apache-2.0
// Trace: requests to replay, when each arrives and what it asks. docs/formats/trace.md has the file format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/clock.h>

namespace metrale::replay {

inline constexpr std::uint64_t kTraceVersion = 1;
inline constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 24;  // of one sequence, prompt and answer
inline constexpr std::uint32_t kMaxAnswers = 1024;                   // of one request
inline constexpr double kMaxSeconds = 1e6;                           // of any time in a trace

// A part of a prompt: the first `count` tokens of a seeded stream, or, where there are any, these ids.
struct PromptSegment {
  std::uint64_t stream = 0;
  std::uint32_t count = 0;
  std::vector<std::int32_t> ids;

  [[nodiscard]] std::uint64_t size() const { return ids.empty() ? count : ids.size(); }
  friend bool operator==(const PromptSegment&, const PromptSegment&) = default;
};

struct TraceRequest {
  std::uint64_t id = 0;
  Nanoseconds arrival{0};             // from the beginning; of a request with a parent: not earlier
  std::optional<std::size_t> parent;  // its place in Trace::requests, before this one's
  Nanoseconds think{0};               // from the parent's end
  std::vector<PromptSegment> prompt;  // with a parent: what follows its prompt and its first answer
  std::uint32_t max_tokens = 1;       // of each answer
  std::uint32_t n = 1;
  float temperature = 0;
  std::int32_t priority = 0;
  std::string tenant;
  std::optional<Nanoseconds> timeout;
  std::optional<std::uint32_t> cancel_after;  // once so many tokens have come, of all answers together

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

struct Trace {
  std::uint32_t vocab = 1;  // token ids lie below
  std::uint64_t seed = 0;   // of the streams
  std::string note;         // what the trace is, in words
  std::vector<TraceRequest> requests;

  friend bool operator==(const Trace&, const Trace&) = default;
};

// Throws FormatError naming the file, the line and what was expected there.
[[nodiscard]] Trace parse_trace(std::string_view text, const std::string& path);
// The file's text, a line at a time: parse_trace() of it gives the same trace. What `write` throws passes
// through.
void write_text(const Trace& trace, const std::function<void(std::string_view)>& write);
[[nodiscard]] std::string to_text(const Trace& trace);

// Token `position` of a stream: the definition in docs/formats/trace.md.
[[nodiscard]] std::int32_t stream_token(std::uint64_t seed, std::uint64_t stream, std::uint64_t position,
                                        std::uint32_t vocab);
// The request's own segments, after what `prompt` holds.
void append_segments(const Trace& trace, const TraceRequest& request, std::vector<std::int32_t>& prompt);
// Of each request the longest prompt it can have: its own, after its parent's longest and that one's answer.
[[nodiscard]] std::vector<std::uint64_t> longest_prompts(const std::vector<TraceRequest>& requests);

}  // namespace metrale::replay
