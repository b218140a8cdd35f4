// SPDX-License-Identifier: Apache-2.0
// A request inside the engine, and each of its answers.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <metrale/base/error.h>
#include <metrale/engine/detokenizer.h>
#include <metrale/engine/engine.h>
#include <metrale/sampling/sampler.h>

#include "engine/stop_text.h"

namespace metrale::engine {

struct Engine::Answer {
  Group* group = nullptr;
  std::uint32_t choice = 0;
  // Of one that runs or waits.
  [[nodiscard]] SequenceId id() const {
    if (!sequence) throw InvalidArgument("an answer without a sequence");
    return *sequence;
  }

  // None before it is forked off the first answer, and once it is over.
  std::optional<SequenceId> sequence;
  bool finished = false;
  std::uint32_t output_tokens = 0;
  std::optional<sampling::Sampler> sampler;  // a vocabulary of memory: made for the first token
  std::optional<Detokenizer> detokenizer;
  StopText stop;
  Nanoseconds last_token_at{0};
};

struct Engine::Group {
  Group(RequestId request_id, Request&& asked, const ModelConfig& config, const Tokenizer* tokenizer,
        Nanoseconds now)
      : id(request_id),
        request(std::move(asked)),
        num_prompt_tokens(static_cast<std::uint32_t>(request.prompt.size())),
        stop_ids(request.stop_ids),
        takes_argmax(is_plain_greedy(request.sampling)),
        unfinished(request.n) {
    if (!request.ignore_eos) stop_ids.insert(stop_ids.end(), config.eos_ids.begin(), config.eos_ids.end());
    stats.prompt_tokens = num_prompt_tokens;
    stats.submitted = now;
    // One that lies beyond the end of the clock never comes.
    if (request.timeout && *request.timeout <= Nanoseconds::max() - now) deadline = now + *request.timeout;
    answers.resize(request.n);
    for (std::uint32_t i = 0; i < request.n; ++i) {
      answers[i].group = this;
      answers[i].choice = i;
      if (tokenizer != nullptr) answers[i].detokenizer.emplace(*tokenizer);
      answers[i].stop = StopText(request.stop);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() = default;

  // Nothing edits the logits, so the device's argmax is the sampler's answer.
  [[nodiscard]] static bool is_plain_greedy(const sampling::SamplingParams& p) {
    return p.is_greedy() && p.logit_bias.empty() && p.repetition_penalty == 1 && p.frequency_penalty == 0 &&
           p.presence_penalty == 0 && p.dry_multiplier == 0 && p.lz_penalty == 0 && !p.logprobs;
  }
  [[nodiscard]] bool stops_at(std::int32_t token) const {
    return std::ranges::find(stop_ids, token) != stop_ids.end();
  }

  RequestId id;
  Request request;  // the prompt's tokens go to the scheduler
  std::uint32_t num_prompt_tokens;
  std::vector<std::int32_t> stop_ids;
  bool takes_argmax;
  std::uint32_t unfinished;  // answers
  std::optional<Nanoseconds> deadline;
  bool started = false;
  std::vector<Answer> answers;
  RequestStats stats;
  std::optional<Nanoseconds> first_token_at;
  Nanoseconds last_token_at{0};
};

// What other threads hand over, and what they ask for.
struct Engine::Door {
  std::mutex mutex;
  std::condition_variable work;
  std::uint64_t next_id = 1;
  std::vector<std::unique_ptr<Group>> submitted;
  std::vector<RequestId> cancelled;
  std::size_t unfinished = 0;  // requests
  std::map<RequestId, RequestStats> stats;
  EngineCounts counts;  // as of the last step
};

}  // namespace metrale::engine
