// SPDX-License-Identifier: Apache-2.0
// parse_trace: a line at a time, with every member checked and none unknown.
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>

#include "../json_input.h"
#include "trace.h"

namespace metrale::replay {
namespace {

using app::shown;
using nlohmann::json;

constexpr std::uint64_t kAnyUnsigned = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kMaxVocab = 0x7FFF'FFFF;

// Where the parser stands; makes the errors.
struct Place {
  const std::string* path;
  std::uint64_t offset = 0;  // of the line
  std::size_t number = 0;

  [[noreturn]] void fail(const std::string& why) const {
    throw FormatError(*path, offset, fmt::format("line {}: {}", number, why));
  }
};

// One JSON object; a member that stands there twice is refused, since readers differ on which one counts.
json parse_line(std::string_view line, const Place& place) {
  if (is_too_deep_json(line))
    place.fail(fmt::format("arrays and objects are nested more than {} deep", kMaxJsonDepth));
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return true;
  };
  json value;
  try {
    value = json::parse(line.begin(), line.end(), watch);
  } catch (const json::exception& error) {
    place.fail(fmt::format("not JSON: {}", error.what()));
  }
  if (!twice.empty()) place.fail(fmt::format("member {} stands there twice", shown(twice)));
  if (!value.is_object()) place.fail("a JSON object was expected");
  return value;
}

// Takes members out of an object one by one; what is left at the end is unknown.
class Members {
 public:
  Members(json object, std::string what, const Place& place)
      : object_(std::move(object)), what_(std::move(what)), place_(&place) {}

  [[nodiscard]] bool has(const char* name) const { return object_.contains(name); }

  [[nodiscard]] json take(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) place_->fail(fmt::format("{} has no \"{}\"", what_, name));
    json value = std::move(*found);
    object_.erase(found);
    return value;
  }

  [[nodiscard]] std::uint64_t whole(const char* name, std::uint64_t low, std::uint64_t high) {
    const json value = take(name);
    const std::uint64_t number = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
    if (!value.is_number_unsigned() || number < low || number > high) {
      refuse(name, value,
             high == kAnyUnsigned ? "a whole number below 2^64"
                                  : fmt::format("a whole number from {} to {}", low, high));
    }
    return number;
  }
  [[nodiscard]] std::uint32_t count(const char* name, std::uint32_t low, std::uint64_t high) {
    return static_cast<std::uint32_t>(whole(name, low, high));
  }
  [[nodiscard]] double number(const char* name, double high) {
    const json value = take(name);
    const double result = value.is_number() ? value.get<double>() : -1;
    if (!(result >= 0 && result <= high)) refuse(name, value, fmt::format("a number from 0 to {}", high));
    return result;
  }
  [[nodiscard]] Nanoseconds seconds(const char* name) {
    return Nanoseconds(std::llround(number(name, kMaxSeconds) * 1e9));
  }
  [[nodiscard]] std::string text(const char* name) {
    const json value = take(name);
    if (!value.is_string()) refuse(name, value, "a string");
    return value.get<std::string>();
  }

  void expect_empty() const {
    if (!object_.empty())
      place_->fail(fmt::format("{} has an unknown member {}", what_, shown(object_.begin().key())));
  }
  [[noreturn]] void refuse(const char* name, const json& value, const std::string& expected) const {
    place_->fail(fmt::format("\"{}\" is {}; expected {}", name, shown(value), expected));
  }

 private:
  json object_;
  std::string what_;
  const Place* place_;
};

Trace parse_header(std::string_view line, const Place& place) {
  json object = parse_line(line, place);
  if (!object.contains("metrale_trace"))
    place.fail(R"(no trace: the first line of one is {"metrale_trace": 1, "vocab": …, "seed": …})");
  Members members(std::move(object), "the header", place);
  const std::uint64_t version = members.whole("metrale_trace", 0, kAnyUnsigned - 1);
  if (version != kTraceVersion)
    place.fail(fmt::format("version {} of the format; this program reads {}", version, kTraceVersion));
  Trace trace;
  trace.vocab = members.count("vocab", 1, kMaxVocab);
  trace.seed = members.whole("seed", 0, kAnyUnsigned);
  if (members.has("note")) trace.note = members.text("note");
  members.expect_empty();
  return trace;
}

std::vector<std::int32_t> parse_ids(const json& array, std::uint32_t vocab, const Place& place) {
  std::vector<std::int32_t> ids;
  for (const json& id : array) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocab)
      place.fail(fmt::format("\"tokens\" has {}; expected token ids below {}", shown(id), vocab));
    ids.push_back(id.get<std::int32_t>());
  }
  if (ids.empty()) place.fail("\"tokens\" is an empty list");
  return ids;
}

PromptSegment parse_segment(const json& value, std::uint32_t vocab, const Place& place) {
  if (!value.is_object()) place.fail(fmt::format("\"prompt\" has {}; expected objects", shown(value)));
  Members members(value, "a part of the prompt", place);
  PromptSegment segment;
  if (members.has("stream")) {
    segment.stream = members.whole("stream", 0, kAnyUnsigned);
    segment.count = members.count("tokens", 1, kMaxTokens);
  } else {
    const json ids = members.take("tokens");
    if (!ids.is_array()) place.fail("\"tokens\" without \"stream\" is a list of token ids");
    segment.ids = parse_ids(ids, vocab, place);
  }
  members.expect_empty();
  return segment;
}

// Reads requests in order, knowing those before.
class RequestReader {
 public:
  explicit RequestReader(Trace& trace) : trace_(&trace) {}

  void read(std::string_view line, const Place& place) {
    Members members(parse_line(line, place), "the request", place);
    TraceRequest request;
    request.id = members.whole("id", 0, kAnyUnsigned);
    if (!places_.emplace(request.id, trace_->requests.size()).second)
      place.fail(fmt::format("\"id\" {} is that of an earlier request", request.id));
    read_start(members, request, place);
    if (members.has("prompt")) read_prompt(members, request, place);
    read_wishes(members, request);
    members.expect_empty();
    check_length(request, place);
    trace_->requests.push_back(std::move(request));
  }

 private:
  void read_start(Members& members, TraceRequest& request, const Place& place) const {
    if (members.has("parent")) {
      const std::uint64_t parent = members.whole("parent", 0, kAnyUnsigned);
      const auto found = places_.find(parent);
      if (found == places_.end() || parent == request.id)
        place.fail(fmt::format("\"parent\" {} is no earlier request", parent));
      request.parent = found->second;
      if (members.has("think")) request.think = members.seconds("think");
    } else if (members.has("think")) {
      place.fail("\"think\" is the time after a parent, and there is no \"parent\"");
    }
    if (!request.parent || members.has("arrival")) request.arrival = members.seconds("arrival");
  }

  void read_prompt(Members& members, TraceRequest& request, const Place& place) const {
    const json prompt = members.take("prompt");
    if (!prompt.is_array()) members.refuse("prompt", prompt, "a list of parts");
    for (const json& part : prompt) request.prompt.push_back(parse_segment(part, trace_->vocab, place));
  }

  static void read_wishes(Members& members, TraceRequest& request) {
    request.max_tokens = members.count("max_tokens", 1, kMaxTokens);
    if (members.has("n")) request.n = members.count("n", 1, kMaxAnswers);
    if (members.has("temperature"))
      request.temperature = static_cast<float>(members.number("temperature", 100));
    if (members.has("priority")) {
      const json value = members.take("priority");
      constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
      const bool fits = value.is_number_unsigned()
                            ? value.get<std::uint64_t>() <= kMost
                            : value.is_number_integer() && value.get<std::int64_t>() >= -kMost;
      if (!fits)
        members.refuse("priority", value, fmt::format("a whole number from {} to {}", -kMost, kMost));
      request.priority = value.get<std::int32_t>();
    }
    if (members.has("tenant")) request.tenant = members.text("tenant");
    if (members.has("timeout")) request.timeout = members.seconds("timeout");
    if (members.has("cancel_after")) request.cancel_after = members.count("cancel_after", 0, 0xFFFF'FFFF);
  }

  // As longest_prompts() counts.
  void check_length(const TraceRequest& request, const Place& place) {
    std::uint64_t length = 0;
    if (request.parent) length = lengths_[*request.parent] + trace_->requests[*request.parent].max_tokens;
    for (const PromptSegment& segment : request.prompt) length += segment.size();
    if (length == 0) place.fail("the prompt has no tokens");
    if (length + request.max_tokens > kMaxTokens) {
      place.fail(fmt::format("{} tokens of prompt and {} of answer; at most {} together", length,
                             request.max_tokens, kMaxTokens));
    }
    lengths_.push_back(length);
  }

  Trace* trace_;
  std::unordered_map<std::uint64_t, std::size_t> places_;
  std::vector<std::uint64_t> lengths_;
};

}  // namespace

Trace parse_trace(std::string_view text, const std::string& path) {
  Trace trace;
  RequestReader reader(trace);
  Place place{.path = &path};
  bool has_header = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    place.offset = begin;
    ++place.number;
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (has_header) {
      reader.read(line, place);
    } else {
      trace = parse_header(line, place);
      has_header = true;
    }
  }
  if (trace.requests.empty())
    throw FormatError(path, 0, "no requests: a header, and one a line was expected");
  return trace;
}

}  // namespace metrale::replay
