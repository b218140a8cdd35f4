// SPDX-License-Identifier: Apache-2.0
// Engine: requests in, tokens out. Owns a model on a backend (weights, KV cache, decoder), its prefix cache
// and its scheduler: each step takes every running answer's next token and fills what is left of the token
// budget with prompt chunks.
//
// Threads: submit, cancel, idle, wait_for_work and take_stats may be called from any thread; everything else,
// step() first, from one. A request's tokens depend on its own prompt, parameters and seed only, never on its
// batch-mates, nor on what the prefix cache held.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/base/metrics.h>
#include <metrale/engine/decoder.h>
#include <metrale/engine/kv_calibration.h>
#include <metrale/engine/model_config.h>
#include <metrale/engine/model_weights.h>
#include <metrale/engine/request.h>
#include <metrale/engine/scheduler.h>
#include <metrale/engine/tokenizer.h>
#include <metrale/kv/paged_cache.h>
#include <metrale/prefix/prefix_cache.h>
#include <metrale/weights/loader.h>

namespace metrale::engine {

inline constexpr std::uint32_t kMaxAnswers = 1024;  // of one request

struct EngineCounts {
  std::uint64_t requests_submitted = 0;
  std::uint64_t requests_finished = 0;
  std::uint64_t prompt_tokens = 0;  // of submitted requests
  std::uint64_t output_tokens = 0;
  std::size_t waiting = 0;  // sequences, now
  std::size_t running = 0;
  std::size_t free_blocks = 0;  // now
  std::size_t cached_blocks = 0;
  std::size_t held_blocks = 0;  // by running sequences; some are cached too
  SchedulerCounters scheduler;
  prefix::PrefixCounters prefix;
};

struct EngineOptions {
  std::uint32_t max_seq_len = 0;  // 0: the model's max_position_embeddings
  std::uint32_t max_batch_size = 1;
  std::uint32_t max_batch_tokens = 512;
  std::uint32_t block_size = 16;
  quant::KvDtype kv_dtype;
  bool kv_dtype_calibrated = false;  // each layer's as kv_calibration says, instead
  KvHighPrecision kv_high_precision;
  // Of this model. Without one, the ranges that fp8 and nvfp4 need are measured on a built-in text of 512
  // tokens as the model loads.
  std::optional<KvCalibration> kv_calibration;
  std::uint32_t kv_blocks = 0;                // 0: enough for max_batch_size sequences of max_seq_len
  std::optional<quant::ElementType> compute;  // none: FP32 for FP32 and FP16 checkpoints, else BF16
  std::uint32_t max_prompt_chunk = 0;         // 0: what the token budget leaves
  bool use_graphs = true;
  bool fast = false;  // as DecoderOptions
  AttentionKernel attention = AttentionKernel::kNative;
  bool prefix_caching = false;       // share the keys and values of equal prefixes
  std::uint32_t max_overtakes = 64;  // as SchedulerConfig
  PreemptionStore* preempted =
      nullptr;  // where a preempted answer's keys and values go; null: computed again
  const Tokenizer* tokenizer = nullptr;  // for StepEvent::text and Request::stop; outlives the engine
  MetricsRegistry* metrics = nullptr;    // outlives the engine; docs/metrics.md names what it finds there
  weights::LoadOptions load;             // of the weights: path, staging memory, progress
};

class Engine {
 public:
  // Blocking: loads the model. The backend and the clock outlive the engine. Throws what the parts throw;
  // nothing stays allocated on the backend then.
  Engine(gpu::GpuBackend& gpu, const std::string& model_directory, const EngineOptions& options,
         const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws InvalidArgument: an empty prompt, one beyond max_seq_len or the KV cache, a token id or a sampling
  // parameter out of range, max_new_tokens or n 0, an empty stop text, or one without a tokenizer.
  RequestId submit(Request request);
  // Ends all answers of a request at the next step; nothing for one that has ended.
  void cancel(RequestId request);
  // Nothing is queued or running.
  [[nodiscard]] bool idle() const;
  // Blocking: until something is queued or running, or the time is over. Whether there is work.
  bool wait_for_work(Nanoseconds timeout);
  // Blocking: one step. Empty where idle. When the device fails, its requests stay as they were before the
  // step and the next one takes them again, with the events of those that had ended. When anything else
  // fails, such as host memory, the engine has lost its place: this and every later step throws it, and
  // close() is what is left.
  std::vector<StepEvent> step();
  // Of a request all of whose answers have ended; forgets it. Throws InvalidArgument for any other.
  [[nodiscard]] RequestStats take_stats(RequestId request);

  // Since the engine was made, except what is now.
  [[nodiscard]] EngineCounts counts() const;
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const gpu::EngineLimits& limits() const { return limits_; }
  [[nodiscard]] quant::ElementType compute() const { return compute_; }
  [[nodiscard]] gpu::GpuBackend& gpu() { return *gpu_; }
  [[nodiscard]] const ModelWeights& weights() const { return *weights_; }
  [[nodiscard]] const kv::PagedKvCache& cache() const { return *cache_; }
  [[nodiscard]] std::uint64_t weight_bytes() const { return weights_->size_bytes(); }
  [[nodiscard]] std::uint64_t arena_bytes() const { return decoder_->arena_bytes(); }
  // For callers that schedule by themselves (scoring, tests). Not while requests run.
  [[nodiscard]] Decoder& decoder() { return *decoder_; }
  [[nodiscard]] kv::PagedKvCache& cache() { return *cache_; }

  // Blocking. Releases device memory in the reverse order of allocation, whatever fails; then throws the
  // first failure. The engine can only be destroyed afterwards.
  void close();

  [[nodiscard]] const Scheduler& scheduler() const { return *scheduler_; }

 private:
  struct Group;
  struct Answer;
  struct Metrics;
  struct Door;
  void check(const Request& request) const;
  void take_arrivals(std::vector<StepEvent>& events);
  void take_submitted(std::vector<std::unique_ptr<Group>> submitted);
  void end_cancelled(std::span<const RequestId> cancelled, std::vector<StepEvent>& events);
  // Runs what must not fail half-way.
  template <class Body>
  void keeping_place(const Body& body);
  // Rows of the step's ends: logits, or the tokens with the largest ones where nobody asks for more.
  struct StepLogits {
    std::span<const float> all{};
    std::span<const std::int32_t> greedy{};
  };
  StepLogits run(const StepPlan& plan);
  void take_tokens(const StepPlan& plan, const StepLogits& logits, std::vector<StepEvent>& events);
  // `logits` is empty where the device's argmax was asked for.
  void take_answer(Answer& answer, std::span<const float> logits, std::int32_t greedy,
                   std::vector<StepEvent>& events);
  [[nodiscard]] std::optional<std::int32_t> choose(Answer& answer, std::span<const float> logits,
                                                   std::int32_t greedy);
  void accept(Answer& answer, std::optional<std::int32_t> token, std::vector<StepEvent>& events);
  void add_text(Answer& answer, std::int32_t token, std::string& text) const;
  void finish(Answer& answer, FinishReason reason, StepEvent event, std::vector<StepEvent>& events);
  void forget(Group& group);
  void update_counts(Nanoseconds step_begin, std::size_t step_tokens);
  [[nodiscard]] std::uint32_t max_tokens(const Request& request) const;

  gpu::GpuBackend* gpu_;
  const Clock* clock_;
  ModelConfig config_;
  gpu::EngineLimits limits_;
  quant::ElementType compute_ = quant::ElementType::kBf16;
  const Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<ModelWeights> weights_;
  std::optional<KvCalibration> calibration_;
  std::unique_ptr<kv::PagedKvCache> cache_;
  std::unique_ptr<Decoder> decoder_;

  std::unique_ptr<prefix::PrefixCache> prefixes_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, std::unique_ptr<Group>> groups_;  // taken in, and not over
  std::map<SequenceId, Answer*> answers_;
  std::vector<StepEvent> events_;  // until a step returns
  std::exception_ptr lost_place_;  // what step() throws from then on
  std::uint64_t finished_requests_ = 0;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t output_tokens_ = 0;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Door> door_;
};

}  // namespace metrale::engine
