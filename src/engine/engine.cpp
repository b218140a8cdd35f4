// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/engine/engine.h>
#include <metrale/gpu/resource.h>
#include <metrale/prefix/no_prefix_caching.h>
#include <metrale/prefix/radix_tree.h>

#include "engine/answer.h"
#include "engine/checkpoint.h"
#include "engine/engine_metrics.h"
#include "engine/kv_load_scales.h"

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

std::unique_ptr<prefix::PrefixCache> make_prefix_cache(bool enabled, const kv::PagedKvCache& cache,
                                                       const Clock& clock) {
  if (!enabled) return std::make_unique<prefix::NoPrefixCaching>(cache.block_size());
  std::random_device random;
  const std::uint64_t seed = (std::uint64_t{random()} << 32) | random();
  return std::make_unique<prefix::RadixTree>(
      prefix::RadixTreeConfig{
          .block_size = cache.block_size(), .num_blocks = cache.num_blocks(), .hash_seed = seed},
      clock);
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
    case FinishReason::kTimeout:
      return "timeout";
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
      tokenizer_(options.tokenizer),
      door_(std::make_unique<Door>()) {
  const weights::ModelDirectory directory = weights::ModelDirectory::open(model_directory);
  compute_ = options.compute.value_or(default_compute(config_, directory));
  weights_ = std::make_unique<ModelWeights>(gpu, config_, directory, compute_, options.load);
  calibration_ = options.kv_calibration;
  if (calibration_) calibration_->check_fits(config_);
  const std::vector<quant::KvDtype> kv_dtypes = resolve_kv_dtypes(
      config_.num_layers, options.kv_dtype_calibrated ? std::nullopt : std::optional(options.kv_dtype),
      options.kv_high_precision, calibration_ ? &*calibration_ : nullptr);
  if (!calibration_ && needs_kv_scales(kv_dtypes)) {
    calibration_ = measure_kv_ranges({gpu, config_, *weights_, compute_}, model_directory, tokenizer_);
  }
  cache_ = std::make_unique<kv::PagedKvCache>(
      kv_config(config_, limits_.block_size,
                options.kv_dtype_calibrated ? kv_dtypes.front() : options.kv_dtype, kv_dtypes),
      resolve_kv_blocks(options, limits_), gpu);
  decoder_ =
      std::make_unique<Decoder>(gpu, config_, *weights_, limits_, *cache_,
                                DecoderOptions{.compute = compute_,
                                               .use_graphs = options.use_graphs,
                                               .fast = options.fast,
                                               .attention = options.attention,
                                               .kv_calibration = calibration_ ? &*calibration_ : nullptr});
  prefixes_ = make_prefix_cache(options.prefix_caching, *cache_, clock);
  scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.limits = limits_,
                                                           .max_prompt_chunk = options.max_prompt_chunk,
                                                           .max_overtakes = options.max_overtakes,
                                                           .preempted = options.preempted},
                                           *cache_, *prefixes_);
  if (options.metrics != nullptr) metrics_ = std::make_unique<Metrics>(*options.metrics);
}

Engine::~Engine() = default;

void Engine::close() {
  answers_.clear();
  groups_.clear();
  if (!decoder_) return;
  decoder_->wait();
  scheduler_.reset();
  gpu::Teardown teardown;
  teardown.add(*weights_);
  teardown.add(*cache_);
  teardown.add(decoder_->arena());
  teardown.release_all(*gpu_);
}

std::uint32_t Engine::max_tokens(const Request& request) const {
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  return prompt + std::min(request.max_new_tokens, limits_.max_seq_len - prompt);
}

void Engine::check(const Request& request) const {
  if (request.prompt.empty()) throw InvalidArgument("the prompt has no tokens");
  if (request.prompt.size() >= limits_.max_seq_len) {
    throw InvalidArgument(fmt::format("a prompt of {} tokens leaves no room for an answer: max_seq_len is {}",
                                      request.prompt.size(), limits_.max_seq_len));
  }
  if (request.max_new_tokens == 0) throw InvalidArgument("max_new_tokens is 0; it must be at least 1");
  if (request.n == 0 || request.n > kMaxAnswers) {
    throw InvalidArgument(fmt::format("n is {}; it must be 1 to {}", request.n, kMaxAnswers));
  }
  const auto check_ids = [this](std::span<const std::int32_t> ids, std::string_view what) {
    for (const std::int32_t id : ids) {
      if (id >= 0 && static_cast<std::uint32_t>(id) < config_.vocab_size) continue;
      throw InvalidArgument(
          fmt::format("{} token id {} outside the vocabulary of {}", what, id, config_.vocab_size));
    }
  };
  check_ids(request.prompt, "prompt");
  check_ids(request.stop_ids, "stop");
  if (!request.stop.empty() && tokenizer_ == nullptr) {
    throw InvalidArgument("a stop text needs a tokenizer, and the engine has none");
  }
  if (std::ranges::any_of(request.stop, &std::string::empty)) throw InvalidArgument("a stop text is empty");
  if (request.timeout && *request.timeout <= Nanoseconds{0}) {
    throw InvalidArgument(fmt::format("a timeout of {} ns; it must be above 0", request.timeout->count()));
  }
  if (request.retention.priority >= prefix::kPriorityClasses) {
    throw InvalidArgument(fmt::format("retention priority {}; it must be below {}",
                                      request.retention.priority, prefix::kPriorityClasses));
  }
  sampling::validate(request.sampling, config_.vocab_size);
  const std::uint32_t blocks = ceil_div(max_tokens(request), limits_.block_size);
  if (blocks > cache_->num_blocks()) {
    throw InvalidArgument(fmt::format(
        "the request needs {} KV blocks of {} tokens, the cache has {}: raise --kv-blocks, or ask "
        "for fewer tokens",
        blocks, limits_.block_size, cache_->num_blocks()));
  }
}

RequestId Engine::submit(Request request) {
  check(request);
  const std::scoped_lock lock(door_->mutex);
  const RequestId id(door_->next_id);
  door_->submitted.push_back(
      std::make_unique<Group>(id, std::move(request), config_, tokenizer_, clock_->now()));
  ++door_->next_id;
  ++door_->unfinished;
  door_->work.notify_all();
  return id;
}

void Engine::cancel(RequestId request) {
  const std::scoped_lock lock(door_->mutex);
  door_->cancelled.push_back(request);
}

bool Engine::idle() const {
  const std::scoped_lock lock(door_->mutex);
  return door_->unfinished == 0;
}

bool Engine::wait_for_work(Nanoseconds timeout) {
  std::unique_lock lock(door_->mutex);
  return door_->work.wait_for(lock, timeout, [this] { return door_->unfinished > 0; });
}

RequestStats Engine::take_stats(RequestId request) {
  const std::scoped_lock lock(door_->mutex);
  const auto found = door_->stats.find(request);
  if (found == door_->stats.end()) {
    throw InvalidArgument(fmt::format("request {} has not ended, or was asked for already", request.value()));
  }
  const RequestStats stats = found->second;
  door_->stats.erase(found);
  return stats;
}

EngineCounts Engine::counts() const {
  const std::scoped_lock lock(door_->mutex);
  EngineCounts counts = door_->counts;
  counts.requests_submitted = door_->next_id - 1;
  return counts;
}

template <class Body>
void Engine::keeping_place(const Body& body) {
  try {
    body();
  } catch (...) {
    lost_place_ = std::current_exception();
    throw;
  }
}

std::vector<StepEvent> Engine::step() {
  if (lost_place_) std::rethrow_exception(lost_place_);
  const Nanoseconds begin = clock_->now();
  const StepPlan* plan = nullptr;
  std::size_t tokens = 0;
  keeping_place([&] {
    take_arrivals(events_);
    plan = &scheduler_->plan();
    for (const StepItem& item : plan->items) tokens += item.tokens.size();
  });
  StepLogits logits;
  if (tokens > 0) logits = run(*plan);
  keeping_place([&] {
    if (tokens > 0) take_tokens(*plan, logits, events_);
    update_counts(begin, tokens);
  });
  return std::exchange(events_, {});
}

}  // namespace metrale::engine
