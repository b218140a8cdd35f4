// SPDX-License-Identifier: Apache-2.0
// fuzz-deps: replay
// Any bytes as a trace: refused with FormatError, or a trace that holds together and that its own text gives
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <replay/trace.h>
#include <set>
#include <string_view>

#include <metrale/base/error.h>

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace metrale::replay;
  try {
    const Trace trace = parse_trace({reinterpret_cast<const char*>(data), size}, "input");
    require(!trace.requests.empty() && trace.vocab > 0);
    const auto lengths = longest_prompts(trace.requests);
    std::set<std::uint64_t> ids;
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const TraceRequest& request = trace.requests[i];
      require(ids.insert(request.id).second);
      require(!request.parent || *request.parent < i);
      require(lengths[i] > 0 && lengths[i] + request.max_tokens <= kMaxTokens);
      require(request.n > 0 && request.n <= kMaxAnswers && request.arrival.count() >= 0);
      for (const PromptSegment& segment : request.prompt) {
        for (const std::int32_t id : segment.ids)
          require(id >= 0 && static_cast<std::uint32_t>(id) < trace.vocab);
      }
    }
    require(parse_trace(to_text(trace), "again") == trace);
  } catch (const metrale::FormatError& error) {
    require(error.offset() <= size && !error.problem().empty());
  }
  return 0;
}
