// SPDX-License-Identifier: Apache-2.0
// Engine::Sequence: one request while it is queued or running.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <metrale/engine/engine.h>

namespace metrale::engine {

struct Engine::Sequence {
  Sequence(RequestId request_id, Request asked, const ModelConfig& config, Nanoseconds now)
      : id(request_id),
        request(std::move(asked)),
        tokens(request.prompt),
        stop_ids(request.stop_ids),
        sampler(request.sampling, config.vocab_size),
        takes_argmax(is_plain_greedy(request.sampling)),
        submitted_at(now) {
    if (!request.ignore_eos) stop_ids.insert(stop_ids.end(), config.eos_ids.begin(), config.eos_ids.end());
    stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  }

  // Nothing edits the logits, so the device's argmax is the sampler's answer.
  [[nodiscard]] static bool is_plain_greedy(const sampling::SamplingParams& p) {
    return p.is_greedy() && p.logit_bias.empty() && p.repetition_penalty == 1 && p.frequency_penalty == 0 &&
           p.presence_penalty == 0 && p.dry_multiplier == 0 && p.lz_penalty == 0 && !p.logprobs;
  }

  [[nodiscard]] bool is_decoding() const { return cached + 1 == tokens.size() && stats.output_tokens > 0; }
  [[nodiscard]] bool stops_at(std::int32_t token) const {
    return std::ranges::find(stop_ids, token) != stop_ids.end();
  }

  // Token ids are never negative here: the signed and unsigned views read the same values.
  [[nodiscard]] sampling::TokenHistory history() const {
    const auto* all = reinterpret_cast<const std::uint32_t*>(tokens.data());
    const std::size_t prompt = request.prompt.size();
    return {{all, prompt}, {all + prompt, tokens.size() - prompt}};
  }

  [[nodiscard]] RequestStats final_stats() const {
    RequestStats result = stats;
    if (started_at.count() != 0) result.queued = started_at - submitted_at;
    if (first_token_at.count() != 0) {
      result.ttft = first_token_at - submitted_at;
      result.decode = last_token_at - first_token_at;
    }
    return result;
  }

  RequestId id;
  Request request;
  std::vector<std::int32_t> tokens;  // prompt, then output
  std::vector<std::int32_t> stop_ids;
  sampling::Sampler sampler;
  bool takes_argmax;
  bool cancelled = false;
  bool finished = false;
  std::uint32_t cached = 0;   // tokens whose keys and values are in the cache
  std::uint32_t in_step = 0;  // tokens that the current step adds
  std::optional<std::uint32_t> table_row;
  std::vector<BlockId> blocks;
  RequestStats stats;
  Nanoseconds submitted_at;
  Nanoseconds started_at{0};
  Nanoseconds first_token_at{0};
  Nanoseconds last_token_at{0};
};

}  // namespace metrale::engine
