// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/engine/engine.h>
#include <metrale/gpu/resource.h>

#include "engine/checkpoint.h"
#include "engine/sequence.h"

namespace metrale::engine {
namespace {

gpu::EngineLimits resolve_limits(const EngineOptions& options, const ModelConfig& config) {
  const gpu::EngineLimits limits{.max_seq_len = config.resolve_max_seq_len(options.max_seq_len),
                                 .max_batch_size = options.max_batch_size,
                                 .max_batch_tokens = options.max_batch_tokens,
                                 .block_size = options.block_size};
  limits.validate();
  return limits;
}

std::uint32_t resolve_kv_blocks(const EngineOptions& options, const gpu::EngineLimits& limits) {
  if (options.kv_blocks != 0) return options.kv_blocks;
  return narrow<std::uint32_t>(
      checked_mul(ceil_div(limits.max_seq_len, limits.block_size), limits.max_batch_size),
      "max_batch_size sequences of max_seq_len need more KV blocks than there can be");
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kNoLogits:
      return "no_logits";
  }
  return "unknown";
}

Engine::Engine(gpu::GpuBackend& gpu, const std::string& model_directory, const EngineOptions& options,
               const Clock& clock)
    : gpu_(&gpu),
      clock_(&clock),
      config_(load_model_config(model_directory)),
      limits_(resolve_limits(options, config_)),
      max_prompt_chunk_(options.max_prompt_chunk == 0 ? limits_.max_batch_tokens : options.max_prompt_chunk) {
  const weights::ModelDirectory directory = weights::ModelDirectory::open(model_directory);
  compute_ = options.compute.value_or(default_compute(config_, directory));
  weights_ = std::make_unique<ModelWeights>(gpu, config_, directory, compute_, options.progress);
  cache_ = std::make_unique<kv::PagedKvCache>(kv_config(config_, limits_.block_size, options.kv_dtype),
                                              resolve_kv_blocks(options, limits_), gpu);
  decoder_ = std::make_unique<Decoder>(gpu, config_, *weights_, limits_, *cache_,
                                       DecoderOptions{.compute = compute_,
                                                      .use_graphs = options.use_graphs,
                                                      .fast = options.fast,
                                                      .attention = options.attention});
  for (std::uint32_t row = limits_.max_batch_size; row-- > 0;) free_rows_.push_back(row);
}

Engine::~Engine() = default;

void Engine::close() {
  waiting_.clear();
  running_.clear();
  if (!decoder_) return;
  gpu::Teardown teardown;
  teardown.add(*weights_);
  teardown.add(*cache_);
  teardown.add(decoder_->arena());
  teardown.release_all(*gpu_);
}

std::uint32_t Engine::blocks_for(const Request& request) const {
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  const std::uint32_t tokens = prompt + std::min(request.max_new_tokens, limits_.max_seq_len - prompt);
  return ceil_div(tokens, limits_.block_size);
}

RequestId Engine::submit(Request request) {
  if (request.prompt.empty()) throw InvalidArgument("the prompt has no tokens");
  if (request.prompt.size() >= limits_.max_seq_len) {
    throw InvalidArgument(fmt::format("a prompt of {} tokens leaves no room for an answer: max_seq_len is {}",
                                      request.prompt.size(), limits_.max_seq_len));
  }
  if (request.max_new_tokens == 0) throw InvalidArgument("max_new_tokens is 0; it must be at least 1");
  const auto check_ids = [this](std::span<const std::int32_t> ids, std::string_view what) {
    for (const std::int32_t id : ids) {
      if (id >= 0 && static_cast<std::uint32_t>(id) < config_.vocab_size) continue;
      throw InvalidArgument(
          fmt::format("{} token id {} outside the vocabulary of {}", what, id, config_.vocab_size));
    }
  };
  check_ids(request.prompt, "prompt");
  check_ids(request.stop_ids, "stop");
  if (blocks_for(request) > cache_->num_blocks()) {
    throw InvalidArgument(fmt::format(
        "the request needs {} KV blocks of {} tokens, the cache has {}: raise --kv-blocks, or ask "
        "for fewer tokens",
        blocks_for(request), limits_.block_size, cache_->num_blocks()));
  }
  auto sequence = std::make_unique<Sequence>(RequestId(next_id_), std::move(request), config_, clock_->now());
  waiting_.push_back(std::move(sequence));
  return RequestId(next_id_++);
}

void Engine::cancel(RequestId request) {
  for (auto& sequence : waiting_) {
    if (sequence->id == request) sequence->cancelled = true;
  }
  for (auto& sequence : running_) {
    if (sequence->id == request) sequence->cancelled = true;
  }
}

std::vector<StepEvent> Engine::step() {
  std::vector<StepEvent> events;
  drop_cancelled(events);
  admit();
  if (running_.empty()) return events;
  std::vector<StepSequence> batch;
  std::vector<Sequence*> members;
  plan(batch, members);
  decoder_->run(batch);
  take_tokens(members, events);
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  return events;
}

void Engine::drop_cancelled(std::vector<StepEvent>& events) {
  const auto end = [&](std::unique_ptr<Sequence>& sequence) {
    if (!sequence->cancelled) return false;
    events.push_back({sequence->id, std::nullopt, FinishReason::kCancelled});
    finish(*sequence, FinishReason::kCancelled);
    return true;
  };
  std::erase_if(waiting_, end);
  std::erase_if(running_, end);
}

void Engine::admit() {
  // First come, first served: a request that does not fit yet holds back those behind it.
  while (!waiting_.empty() && !free_rows_.empty()) {
    Sequence& sequence = *waiting_.front();
    const std::uint32_t blocks = blocks_for(sequence.request);
    if (blocks > cache_->num_free_blocks()) return;
    sequence.table_row = free_rows_.back();
    free_rows_.pop_back();
    for (std::uint32_t i = 0; i < blocks; ++i) sequence.blocks.push_back(cache_->alloc_block());
    decoder_->set_blocks(*sequence.table_row, 0, sequence.blocks);
    sequence.started_at = clock_->now();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::plan(std::vector<StepSequence>& batch, std::vector<Sequence*>& members) {
  std::uint32_t budget = limits_.max_batch_tokens;
  const auto add = [&](Sequence& sequence, std::uint32_t length) {
    sequence.in_step = length;
    const bool reaches_end = sequence.cached + length == sequence.tokens.size();
    batch.push_back(
        {.table_row = *sequence.table_row,
         .start = sequence.cached,
         .tokens = std::span<const std::int32_t>(sequence.tokens).subspan(sequence.cached, length),
         .logit_rows = reaches_end ? 1U : 0U});
    members.push_back(&sequence);
    budget -= length;
  };
  // Decoding first: a running answer never waits for somebody's prompt.
  for (auto& sequence : running_) {
    if (sequence->is_decoding() && budget > 0) add(*sequence, 1);
  }
  for (auto& sequence : running_) {
    if (sequence->is_decoding() || budget == 0) continue;
    const auto left = static_cast<std::uint32_t>(sequence->tokens.size()) - sequence->cached;
    add(*sequence, std::min({left, budget, max_prompt_chunk_}));
  }
}

void Engine::take_tokens(std::span<Sequence* const> members, std::vector<StepEvent>& events) {
  const bool all_greedy = std::ranges::all_of(members, [](const Sequence* s) { return s->takes_argmax; });
  std::span<const float> logits;
  std::span<const std::int32_t> greedy;
  if (all_greedy) {
    greedy = decoder_->read_greedy_tokens();
  } else {
    logits = decoder_->read_logits();
  }
  std::size_t row = 0;
  for (Sequence* sequence : members) {
    sequence->cached += sequence->in_step;
    if (sequence->cached < sequence->tokens.size()) continue;
    const auto own =
        all_greedy ? std::span<const float>{} : logits.subspan(row * config_.vocab_size, config_.vocab_size);
    accept(*sequence, choose(*sequence, own, all_greedy ? greedy[row] : -1), events);
    ++row;
  }
}

std::optional<std::int32_t> Engine::choose(Sequence& sequence, std::span<const float> logits,
                                           std::int32_t greedy) {
  if (logits.empty()) return greedy >= 0 ? std::optional(greedy) : std::nullopt;
  const sampling::SampleResult result =
      sequence.sampler.sample(logits, sequence.history(), sequence.tokens.size());
  if (result.status != sampling::SampleStatus::kOk) return std::nullopt;
  return static_cast<std::int32_t>(result.token);
}

void Engine::accept(Sequence& sequence, std::optional<std::int32_t> token, std::vector<StepEvent>& events) {
  const Nanoseconds now = clock_->now();
  if (sequence.stats.output_tokens == 0) sequence.first_token_at = now;
  sequence.last_token_at = now;
  const auto end = [&](FinishReason reason, std::optional<std::int32_t> last) {
    events.push_back({sequence.id, last, reason});
    finish(sequence, reason);
  };
  if (!token) return end(FinishReason::kNoLogits, std::nullopt);
  if (sequence.stops_at(*token)) return end(FinishReason::kStop, std::nullopt);
  ++sequence.stats.output_tokens;
  sequence.tokens.push_back(*token);
  const bool full = sequence.tokens.size() >= limits_.max_seq_len ||
                    sequence.stats.output_tokens >= sequence.request.max_new_tokens;
  if (full) return end(FinishReason::kLength, token);
  events.push_back({sequence.id, token, std::nullopt});
}

void Engine::finish(Sequence& sequence, FinishReason) {
  sequence.finished = true;
  cache_->free_blocks(sequence.blocks);
  sequence.blocks.clear();
  if (sequence.table_row) free_rows_.push_back(*sequence.table_row);
  sequence.table_row.reset();
  finished_[sequence.id] = sequence.final_stats();
}

RequestStats Engine::take_stats(RequestId request) {
  const auto found = finished_.find(request);
  if (found == finished_.end()) {
    throw InvalidArgument(fmt::format("request {} has not ended, or was asked for already", request.value()));
  }
  const RequestStats stats = found->second;
  finished_.erase(found);
  return stats;
}

}  // namespace metrale::engine
