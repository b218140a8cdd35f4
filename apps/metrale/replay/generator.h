// SPDX-License-Identifier: Apache-2.0
// The trace generator: workloads as engines meet them, from a seed. The same options give the same trace on
// every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "draws.h"
#include "trace.h"

namespace metrale::replay {

enum class TraceKind : std::uint8_t {
  kSystem,  // single requests, each a shared prompt and tokens of its own
  kChat,    // conversations: every turn begins with all turns before it
  kAgent,   // loops: as a chat, with more steps and no pauses to speak of
  kFork,    // one request with several answers, then several that go on from its first answer at once
  kMix,     // each session one of these
};

struct TraceOptions {
  TraceKind kind = TraceKind::kMix;
  std::uint64_t seed = 0;
  std::uint32_t requests = 100;
  double rate = 1;  // requests a second in the long run; sessions arrive as a Poisson process
  std::uint32_t vocab = 32'000;
  std::uint32_t prefixes = 4;         // shared prompts to choose from
  std::uint32_t shared_tokens = 512;  // of each; 0: none is shared
  LengthRange own_tokens{16, 128};    // of a request beyond what it shares
  LengthRange output_tokens{16, 128};
  LengthRange turns{2, 6};     // of a chat
  LengthRange steps{4, 12};    // of an agent
  LengthRange branches{2, 4};  // of a fork
  double think = 1;            // mean seconds from an answer to the next turn of its chat
  double tool = 0.05;          // to the next step of its agent
  std::uint32_t tenants = 0;   // 0: all are one
  double cancel_rate = 0;      // share of requests whose client goes before the end
};

// Throws InvalidArgument where the options contradict each other, or ask for a trace beyond what the format
// takes; Cancelled where `interrupted`, asked now and then, says so.
[[nodiscard]] Trace generate_trace(const TraceOptions& options,
                                   const std::function<bool()>& interrupted = {});

}  // namespace metrale::replay
