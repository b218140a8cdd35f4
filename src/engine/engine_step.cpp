// SPDX-License-Identifier: Apache-2.0
// Engine: one step, from the plan to the events.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <metrale/engine/engine.h>

#include "engine/answer.h"
#include "engine/engine_metrics.h"

namespace metrale::engine {
namespace {

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

// Both under one lock: whoever cancels what was just submitted cancels it.
void Engine::take_arrivals(std::vector<StepEvent>& events) {
  std::vector<std::unique_ptr<Group>> submitted;
  std::vector<RequestId> cancelled;
  {
    const std::scoped_lock lock(door_->mutex);
    submitted.swap(door_->submitted);
    cancelled.swap(door_->cancelled);
  }
  take_submitted(std::move(submitted));
  end_cancelled(cancelled, events);
}

void Engine::take_submitted(std::vector<std::unique_ptr<Group>> submitted) {
  for (auto& group : submitted) {
    const std::uint32_t limit = max_tokens(group->request);
    const SequenceId sequence = scheduler_->add({.tokens = std::exchange(group->request.prompt, {}),
                                                 .max_tokens = limit,
                                                 .priority = group->request.priority,
                                                 .tenant = group->request.tenant,
                                                 .retention = group->request.retention});
    group->answers.front().sequence = sequence;
    answers_.emplace(sequence, &group->answers.front());
    prompt_tokens_ += group->num_prompt_tokens;
    const RequestId id = group->id;
    groups_.emplace(id, std::move(group));
  }
}

void Engine::end_cancelled(std::span<const RequestId> cancelled, std::vector<StepEvent>& events) {
  const auto end = [&](Group& group, FinishReason reason) {
    for (std::uint32_t i = 0, left = group.unfinished; left > 0; ++i) {
      Answer& answer = group.answers[i];
      if (answer.finished) continue;
      --left;
      finish(answer, reason, {.request = group.id, .choice = i}, events);
    }
  };
  for (const RequestId id : cancelled) {
    const auto found = groups_.find(id);
    if (found != groups_.end()) end(*found->second, FinishReason::kCancelled);
  }
  const Nanoseconds now = clock_->now();
  for (auto at = groups_.begin(); at != groups_.end();) {
    Group& group = *(at++)->second;  // finish() forgets it
    if (group.deadline && now >= *group.deadline) end(group, FinishReason::kTimeout);
  }
}

Engine::StepLogits Engine::run(const StepPlan& plan) {
  for (const TableUpdate& update : plan.tables) {
    decoder_->set_blocks(update.table_row, update.first, update.blocks);
  }
  for (const BlockCopy& copy : plan.copies) decoder_->copy_block(copy.from, copy.to);
  std::vector<StepSequence> batch;
  batch.reserve(plan.items.size());
  const Nanoseconds now = clock_->now();
  for (const StepItem& item : plan.items) {
    batch.push_back({.table_row = item.table_row,
                     .start = item.start,
                     .tokens = item.tokens,
                     .logit_rows = item.reaches_end ? 1U : 0U});
    Group& group = *answers_.at(item.sequence)->group;
    if (!std::exchange(group.started, true)) group.stats.queued = now - group.stats.submitted;
  }
  decoder_->run(batch);
  const bool all_greedy = std::ranges::all_of(plan.items, [this](const StepItem& item) {
    return !item.reaches_end || answers_.at(item.sequence)->group->takes_argmax;
  });
  if (all_greedy) return {.all = {}, .greedy = decoder_->read_greedy_tokens()};
  return {.all = decoder_->read_logits(), .greedy = {}};
}

// Everything that can fail on the device is over: the step counts.
void Engine::take_tokens(const StepPlan& plan, const StepLogits& logits, std::vector<StepEvent>& events) {
  std::vector<Answer*> ends;
  for (const StepItem& item : plan.items) {
    if (item.reaches_end) ends.push_back(answers_.at(item.sequence));
  }
  scheduler_->complete();
  for (std::size_t row = 0; row < ends.size(); ++row) {
    const bool greedy = logits.all.empty();
    take_answer(
        *ends[row],
        greedy ? std::span<const float>{} : logits.all.subspan(row * config_.vocab_size, config_.vocab_size),
        greedy ? logits.greedy[row] : -1, events);
  }
}

// The end of a prompt is the beginning of all its answers.
void Engine::take_answer(Answer& answer, std::span<const float> logits, std::int32_t greedy,
                         std::vector<StepEvent>& events) {
  Group& group = *answer.group;
  if (answer.output_tokens == 0 && answer.choice == 0) {
    for (std::uint32_t i = 1; i < group.request.n; ++i) {
      Answer& other = group.answers[i];
      other.sequence = scheduler_->fork(answer.id());
      answers_.emplace(other.id(), &other);
    }
    // The last one first: the first one's end may end the request.
    for (std::uint32_t i = group.request.n; i-- > 1;) {
      accept(group.answers[i], choose(group.answers[i], logits, greedy), events);
    }
  }
  accept(answer, choose(answer, logits, greedy), events);
}

std::optional<std::int32_t> Engine::choose(Answer& answer, std::span<const float> logits,
                                           std::int32_t greedy) {
  if (logits.empty()) return greedy >= 0 ? std::optional(greedy) : std::nullopt;
  const Group& group = *answer.group;
  if (!answer.sampler) {
    sampling::SamplingParams params = group.request.sampling;
    params.seed += answer.choice;
    answer.sampler.emplace(std::move(params), config_.vocab_size);
  }
  // Token ids are never negative here: the signed and unsigned views read the same values.
  const std::span<const std::int32_t> tokens = scheduler_->tokens(answer.id());
  const auto* all = reinterpret_cast<const std::uint32_t*>(tokens.data());
  const std::size_t prompt = group.num_prompt_tokens;
  const sampling::SampleResult result =
      answer.sampler->sample(logits, {{all, prompt}, {all + prompt, tokens.size() - prompt}}, tokens.size());
  if (result.status != sampling::SampleStatus::kOk) return std::nullopt;
  return static_cast<std::int32_t>(result.token);
}

void Engine::accept(Answer& answer, std::optional<std::int32_t> token, std::vector<StepEvent>& events) {
  Group& group = *answer.group;
  const Nanoseconds now = clock_->now();
  if (!group.first_token_at) {
    group.first_token_at = now;
    group.stats.cached_tokens =
        std::min(scheduler_->info(answer.id()).cached_tokens, group.num_prompt_tokens);
  }
  group.last_token_at = now;
  if (metrics_ && answer.output_tokens > 0)
    metrics_->inter_token.observe(seconds(now - answer.last_token_at));
  answer.last_token_at = now;
  StepEvent event{.request = group.id, .choice = answer.choice};
  if (!token) return finish(answer, FinishReason::kNoLogits, std::move(event), events);
  if (group.stops_at(*token)) return finish(answer, FinishReason::kStop, std::move(event), events);
  event.token = token;
  ++answer.output_tokens;
  ++group.stats.output_tokens;
  ++output_tokens_;
  add_text(answer, *token, event.text);
  if (answer.stop.found()) return finish(answer, FinishReason::kStop, std::move(event), events);
  const bool full = group.num_prompt_tokens + answer.output_tokens >= limits_.max_seq_len ||
                    answer.output_tokens >= group.request.max_new_tokens;
  if (full) return finish(answer, FinishReason::kLength, std::move(event), events);
  scheduler_->append(answer.id(), *token);
  events.push_back(std::move(event));
}

void Engine::add_text(Answer& answer, std::int32_t token, std::string& text) const {
  // Ids beyond the tokenizer's are padding of the model's vocabulary.
  if (!answer.detokenizer || static_cast<std::size_t>(token) >= tokenizer_->vocab_size()) return;
  text += answer.stop.push(answer.detokenizer->push(token));
}

void Engine::finish(Answer& answer, FinishReason reason, StepEvent event, std::vector<StepEvent>& events) {
  Group& group = *answer.group;
  if (answer.detokenizer && !answer.stop.found()) {
    event.text += answer.stop.push(answer.detokenizer->finish());
    event.text += answer.stop.finish();
  }
  if (answer.sequence) {
    group.stats.preemptions += scheduler_->info(*answer.sequence).preemptions;
    scheduler_->remove(*answer.sequence);
    answers_.erase(*answer.sequence);
    answer.sequence.reset();
  }
  answer.finished = true;
  answer.sampler.reset();
  if (metrics_) metrics_->requests(reason).add();
  event.finished = reason;
  event.request_finished = --group.unfinished == 0;
  events.push_back(std::move(event));
  if (group.unfinished == 0) forget(group);
}

void Engine::forget(Group& group) {
  if (group.first_token_at) {
    group.stats.ttft = *group.first_token_at - group.stats.submitted;
    group.stats.decode = group.last_token_at - *group.first_token_at;
  }
  if (metrics_ && group.started) {
    metrics_->queue.observe(seconds(group.stats.queued));
    if (group.first_token_at) metrics_->ttft.observe(seconds(group.stats.ttft));
  }
  ++finished_requests_;
  const std::scoped_lock lock(door_->mutex);
  door_->stats[group.id] = group.stats;
  --door_->unfinished;
  groups_.erase(group.id);
}

void Engine::update_counts(Nanoseconds step_begin, std::size_t step_tokens) {
  EngineCounts counts;
  counts.requests_finished = finished_requests_;
  counts.prompt_tokens = prompt_tokens_;
  counts.output_tokens = output_tokens_;
  counts.waiting = scheduler_->num_waiting();
  counts.running = scheduler_->num_running();
  counts.free_blocks = cache_->num_free_blocks();
  counts.cached_blocks = prefixes_->cached_blocks();
  counts.held_blocks = scheduler_->held_blocks();
  counts.scheduler = scheduler_->counters();
  counts.prefix = prefixes_->counters();
  if (metrics_) metrics_->update(counts, seconds(clock_->now() - step_begin), step_tokens);
  const std::scoped_lock lock(door_->mutex);
  door_->counts = counts;
}

}  // namespace metrale::engine
