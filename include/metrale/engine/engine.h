// SPDX-License-Identifier: Apache-2.0
// Engine: requests in, tokens out. Owns a model on a backend (weights, KV cache, decoder) and schedules
// requests: each step takes every running sequence's next token and fills what is left of the token budget
// with prompt chunks.
//
// Threads: one caller. A request's tokens depend on its own prompt, parameters and seed only, never on its
// batch-mates.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/base/ids.h>
#include <metrale/engine/decoder.h>
#include <metrale/engine/model_config.h>
#include <metrale/engine/model_weights.h>
#include <metrale/kv/paged_cache.h>
#include <metrale/sampling/sampler.h>
#include <metrale/weights/model_directory.h>

namespace metrale::engine {

using RequestId = Id<struct RequestTag, std::uint64_t>;

struct Request {
  std::vector<std::int32_t> prompt;  // at least one token, fewer than max_seq_len
  sampling::SamplingParams sampling;
  std::uint32_t max_new_tokens = 256;  // cut to what max_seq_len leaves
  std::vector<std::int32_t> stop_ids;  // beside the model's end-of-text tokens
  bool ignore_eos = false;             // the model's end-of-text tokens do not stop it
};

enum class FinishReason : std::uint8_t {
  kStop,       // a stop token, which is not part of the output
  kLength,     // max_new_tokens, or max_seq_len
  kCancelled,  // cancel()
  kNoLogits,   // no token had a finite, allowed logit
};
// "stop", "length", "cancelled", "no_logits".
[[nodiscard]] std::string_view to_string(FinishReason reason);

// What a step did for one request: a new token, an end, or both.
struct StepEvent {
  RequestId request;
  std::optional<std::int32_t> token;
  std::optional<FinishReason> finished;
};

struct RequestStats {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;
  Nanoseconds queued{0};  // submit to the first step
  Nanoseconds ttft{0};    // submit to the first token
  Nanoseconds decode{0};  // first token to the last
};

struct EngineOptions {
  std::uint32_t max_seq_len = 0;  // 0: the model's max_position_embeddings
  std::uint32_t max_batch_size = 1;
  std::uint32_t max_batch_tokens = 512;
  std::uint32_t block_size = 16;
  quant::KvDtype kv_dtype;
  std::uint32_t kv_blocks = 0;                // 0: enough for max_batch_size sequences of max_seq_len
  std::optional<quant::ElementType> compute;  // none: FP32 for FP32 and FP16 checkpoints, else BF16
  std::uint32_t max_prompt_chunk = 0;         // 0: what the token budget leaves
  bool use_graphs = true;
  bool fast = false;  // as DecoderOptions
  AttentionKernel attention = AttentionKernel::kNative;
  ModelWeights::Progress progress;
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
  // parameter out of range, max_new_tokens 0.
  RequestId submit(Request request);
  // Ends a request at the next step; nothing for one that has ended.
  void cancel(RequestId request);
  // Nothing is queued or running.
  [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }
  // Blocking: one step. Empty where idle. When it throws, the step's requests stay as they were before it.
  std::vector<StepEvent> step();
  // Of a request that has ended; forgets it. Throws InvalidArgument for any other.
  [[nodiscard]] RequestStats take_stats(RequestId request);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const gpu::EngineLimits& limits() const { return limits_; }
  [[nodiscard]] quant::ElementType compute() const { return compute_; }
  [[nodiscard]] const kv::PagedKvCache& cache() const { return *cache_; }
  [[nodiscard]] std::uint64_t weight_bytes() const { return weights_->size_bytes(); }
  [[nodiscard]] std::uint64_t arena_bytes() const { return decoder_->arena_bytes(); }
  // For callers that schedule by themselves (scoring, tests). Not while requests run.
  [[nodiscard]] Decoder& decoder() { return *decoder_; }
  [[nodiscard]] kv::PagedKvCache& cache() { return *cache_; }

  // Blocking. Releases device memory in the reverse order of allocation, whatever fails; then throws the
  // first failure. The engine can only be destroyed afterwards.
  void close();

 private:
  struct Sequence;
  void admit();
  void drop_cancelled(std::vector<StepEvent>& events);
  void plan(std::vector<StepSequence>& batch, std::vector<Sequence*>& members);
  void take_tokens(std::span<Sequence* const> members, std::vector<StepEvent>& events);
  [[nodiscard]] std::optional<std::int32_t> choose(Sequence& sequence, std::span<const float> logits,
                                                   std::int32_t greedy);
  void accept(Sequence& sequence, std::optional<std::int32_t> token, std::vector<StepEvent>& events);
  void finish(Sequence& sequence, FinishReason reason);
  [[nodiscard]] std::uint32_t blocks_for(const Request& request) const;

  gpu::GpuBackend* gpu_;
  const Clock* clock_;
  ModelConfig config_;
  gpu::EngineLimits limits_;
  quant::ElementType compute_ = quant::ElementType::kBf16;
  std::uint32_t max_prompt_chunk_ = 0;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<kv::PagedKvCache> cache_;
  std::unique_ptr<Decoder> decoder_;

  std::uint64_t next_id_ = 1;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  std::vector<std::uint32_t> free_rows_;            // of the block tables
  std::map<RequestId, RequestStats> finished_;
};

}  // namespace metrale::engine
