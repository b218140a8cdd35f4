// SPDX-License-Identifier: Apache-2.0
// Decoder: a decoder-only model on a backend. One call runs one step over a ragged batch: any mix of prompt
// chunks and single decode tokens. A step of single tokens is one graph, captured once for each batch bucket:
// it takes the step's metadata to the device, changes the block tables, computes and brings the greedy tokens
// back.
//
// A sequence's logits are bit-equal whatever it is batched with and however its prompt is cut into chunks.
// Threads: one caller. Everything runs on one stream of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/ids.h>
#include <metrale/engine/attention_probe.h>
#include <metrale/engine/kv_calibration.h>
#include <metrale/engine/model_config.h>
#include <metrale/engine/model_weights.h>
#include <metrale/gpu/arena.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/stream.h>
#include <metrale/kernels/step.h>
#include <metrale/kv/paged_cache.h>

namespace metrale::engine {

// One sequence's part of a step.
struct StepSequence {
  std::uint32_t table_row = 0;           // its row of the block tables, below max_batch_size
  std::uint32_t start = 0;               // tokens of it that are in the cache already
  std::span<const std::int32_t> tokens;  // the next ones, at least one
  std::uint32_t logit_rows = 1;          // logits of so many of the last tokens are wanted
};

enum class AttentionKernel : std::uint8_t {
  kNative,
  kFlashInfer,  // decode steps (replayed graphs) by FlashInfer's kernel, where a layer sees its whole
                // context; BF16, heads of 64 or 128, builds with METRALE_PEERS
};

struct DecoderOptions {
  quant::ElementType compute = quant::ElementType::kBf16;  // activations; kF32 or kBf16
  bool use_graphs = true;                                  // where the backend has them
  // Prompts may be computed in an order that depends on their chunks: logits are no longer bit-equal whatever
  // the batch.
  bool fast = false;
  AttentionKernel attention = AttentionKernel::kNative;
  // Scales, equaliser and mean of the cache's formats; read at construction. fp8 and nvfp4 need one.
  const KvCalibration* kv_calibration = nullptr;
};

// The sizes that a decoder of this model takes from its arena. `linear_workspace_bytes` as the backend's
// capabilities say.
[[nodiscard]] gpu::ArenaModel arena_model(const ModelConfig& config, quant::ElementType compute,
                                          std::uint64_t linear_workspace_bytes = 0);
// What the decoder keeps on the device beside its arena: float[1 or 2][head_dim / 2], the frequencies of the
// rotary embedding, then those of layers with angles of their own.
[[nodiscard]] std::vector<float> rope_frequencies(const ModelConfig& config);
// All of it: the frequencies, and for each layer the scales, diagonals and means of its cache's formats.
[[nodiscard]] std::uint64_t decoder_constant_bytes(const ModelConfig& config);
// What says to the device what a step does, for the largest step within these limits.
[[nodiscard]] kernels::StepLayout largest_step(const gpu::EngineLimits& limits);
// Why the decoder cannot keep keys or values in a format; empty where it can.
[[nodiscard]] std::string why_no_kv_format(quant::KvFormat format, std::uint32_t head_dim, bool on_cpu);
// The KV cache that this model needs; `layers` overrides `dtype` where it has an entry a layer.
[[nodiscard]] kv::KvCacheConfig kv_config(const ModelConfig& config, std::uint32_t block_size,
                                          quant::KvDtype dtype, std::vector<quant::KvDtype> layers = {});

class Decoder {
 public:
  // Keeps references to all of them. Throws OutOfMemory, InvalidArgument, Unsupported.
  Decoder(gpu::GpuBackend& gpu, const ModelConfig& config, const ModelWeights& weights,
          const gpu::EngineLimits& limits, kv::PagedKvCache& cache, const DecoderOptions& options);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Names the blocks [first, first + blocks.size()) of a sequence; sent to the device before the next step.
  void set_blocks(std::uint32_t table_row, std::uint32_t first, std::span<const BlockId> blocks);

  // Enqueues the copy of a block's keys and values in every layer, before the next step.
  void copy_block(BlockId from, BlockId to);

  // Enqueues one step. The keys and values of every token are written to the cache and its logit rows
  // computed, in the order of `batch`. Throws InvalidArgument where a limit is passed or a block is not set;
  // nothing is enqueued then.
  void run(std::span<const StepSequence> batch);

  // Blocking: waits for the last step. Throws what failed in it.
  void wait();
  // Blocking: the greedy token of each logit row of the last step, -1 where no logit is finite.
  [[nodiscard]] std::span<const std::int32_t> read_greedy_tokens();
  // Blocking: [logit row][vocab_size], valid until the next run.
  [[nodiscard]] std::span<const float> read_logits();

  // From the next step on, `probe` sees what attention works on, and steps are launched kernel by kernel,
  // each waited for in every layer. Null: no more. It outlives its use.
  void set_probe(AttentionProbe* probe) { probe_ = probe; }

  // Equal where blocks of two caches mean the same by the same bytes.
  [[nodiscard]] std::uint64_t kv_fingerprint() const { return kv_fingerprint_; }
  // Most logit rows that one step can give.
  [[nodiscard]] std::uint32_t max_logit_rows() const { return max_logit_rows_; }
  [[nodiscard]] std::uint64_t arena_bytes() const { return arena_.sizes().total_bytes(); }
  [[nodiscard]] gpu::ModelResource& arena() { return arena_; }
  // Graphs captured so far, one a batch bucket.
  [[nodiscard]] std::size_t num_graphs() const { return graphs_.size(); }

 private:
  struct Kernels;
  // Entries of the block tables that changed since the device saw them.
  struct BlockDelta {
    std::uint32_t table_row;
    std::uint32_t first;
    std::uint32_t count;
  };

  void check(std::span<const StepSequence> batch) const;
  void run_graph(std::span<const StepSequence> batch);
  void run_kernels(std::span<const StepSequence> batch);
  void fill_step(std::span<const StepSequence> batch);
  [[nodiscard]] std::uint32_t fill_table_deltas();
  void launch_graph(std::uint32_t bucket);
  void launch_step(std::uint32_t max_rows, std::uint32_t max_logit_rows);
  void launch_table_deltas();
  void launch_layers(std::uint32_t max_rows);
  void launch_rope_tables(std::uint32_t max_rows);
  void launch_layer(std::size_t layer, DevicePtr next_norm, std::uint32_t max_rows);
  void launch_mlp(const LayerWeights& weights, std::uint32_t max_rows);
  void launch_rope(std::size_t layer, DevicePtr q, DevicePtr k, std::uint32_t max_rows);
  void launch_attention(std::size_t layer, std::uint32_t max_rows);
  void launch_head_norm(DevicePtr heads, std::uint32_t num_heads, DevicePtr weight, std::uint32_t max_rows);
  void launch_branch_add(DevicePtr post_norm, DevicePtr next_norm, std::uint32_t max_rows);
  void launch_head(std::uint32_t max_logit_rows);
  // `in_stride` 0: the rows of `in` follow each other.
  void launch_linear(std::uint64_t rows, DevicePtr in, const LinearWeights& weights, DevicePtr out,
                     quant::ElementType out_type, std::uint32_t max_rows, std::uint32_t in_stride = 0);
  void launch_norm(std::uint64_t rows, DevicePtr in, DevicePtr weight, DevicePtr out,
                   quant::ElementType out_type, std::uint32_t max_rows);
  void launch_rotation(DevicePtr heads, DevicePtr diagonal, std::uint32_t stride, bool inverse,
                       std::uint32_t max_rows);
  void launch_kv_write(std::size_t layer, DevicePtr k, DevicePtr v, std::uint32_t max_rows);
  void show_probe(std::size_t layer);
  [[nodiscard]] DevicePtr local_rope_table() const;
  // The layer's own of src/engine/kv_constants.h, `offset` floats in.
  [[nodiscard]] DevicePtr kv_constant(std::size_t layer, std::size_t offset) const;
  [[nodiscard]] std::uint64_t step_address(std::size_t offset) const {
    return arena_.ptr(&gpu::ArenaSizes::step).address() + offset;
  }

  gpu::GpuBackend* gpu_;
  const ModelConfig* config_;
  const ModelWeights* weights_;
  gpu::EngineLimits limits_;
  kv::PagedKvCache* cache_;
  DecoderOptions options_;
  kernels::StepLayout largest_;  // of any step
  kernels::StepLayout layout_;   // of the current step
  gpu::BufferArena arena_;
  gpu::DeviceBuffer constants_;      // decoder_constant_bytes()
  std::size_t kv_constants_at_ = 0;  // floats before the first layer's
  bool has_kv_mean_ = false;
  std::uint64_t kv_fingerprint_ = 0;
  AttentionProbe* probe_ = nullptr;
  std::vector<float> probed_;  // scratch of it
  gpu::PinnedBuffer host_step_;
  gpu::PinnedBuffer host_tokens_;
  gpu::PinnedBuffer host_logits_;
  gpu::Stream stream_;
  std::unique_ptr<Kernels> kernels_;
  std::uint32_t table_stride_;
  std::uint32_t max_logit_rows_;
  std::uint32_t split_rows_;                // of the attention workspace
  std::uint32_t logit_rows_ = 0;            // of the last step
  bool in_flight_ = false;                  // the last step has not been waited for
  bool has_tokens_ = false;                 // host_tokens_ are those of the last step once it is over
  std::vector<std::uint32_t> host_tables_;  // mirror of the device's
  std::vector<BlockDelta> deltas_;
  std::map<std::uint32_t, gpu::Graph> graphs_;  // by bucket; destroyed before the buffers they use
};

}  // namespace metrale::engine
