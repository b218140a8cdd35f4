// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/engine/decoder.h>
#include <metrale/kernels/attention.h>
#include <metrale/kernels/flashinfer.h>

#include "engine/decoder_kernels.h"
#include "engine/kv_constants.h"

namespace metrale::engine {

using gpu::ArenaSizes;
using quant::ElementType;

namespace {

constexpr std::uint32_t kNoBlock = ~std::uint32_t{0};

void check_kv_format(const gpu::GpuBackend& gpu, quant::KvFormat format, std::uint32_t head_dim) {
  const std::string why = why_no_kv_format(format, head_dim, gpu.capabilities().host_memory_is_device_memory);
  if (!why.empty())
    throw Unsupported("the engine", fmt::format("the KV format {}: {}", quant::to_string(format), why));
}

void check_flashinfer(const gpu::GpuBackend& gpu, const ModelConfig& config, const kv::PagedKvCache& cache,
                      const DecoderOptions& options) {
  const auto refuse = [](const std::string& what) { throw Unsupported("FlashInfer's attention", what); };
  if (!gpu.has_module(kernels::kFlashInferDecode.module)) {
    refuse(fmt::format("backend '{}': a CUDA device in a build with METRALE_PEERS has it", gpu.name()));
  }
  if (!options.use_graphs) refuse("decoding without graphs");
  if (options.compute != ElementType::kBf16) refuse("computing in FP32: it has BF16");
  if (cache.dtype() != quant::KvDtype{}) {
    refuse(fmt::format("the KV dtype {}: it has bf16", quant::to_string(cache.dtype())));
  }
  const std::uint32_t group = config.num_q_heads / config.num_kv_heads;
  if (!kernels::flashinfer_serves(config.head_dim, group)) {
    refuse(fmt::format("head_dim {} with {} query heads a KV head", config.head_dim, group));
  }
}

// A step of single tokens runs the smallest captured size that holds it.
std::uint32_t bucket_for(std::uint32_t rows, std::uint32_t max_batch_size) {
  return std::min(std::bit_ceil(rows), max_batch_size);
}

}  // namespace

gpu::ArenaModel arena_model(const ModelConfig& config, ElementType compute,
                            std::uint64_t linear_workspace_bytes) {
  gpu::ArenaModel model;
  model.activation_bytes = quant::element_bytes(compute);
  model.hidden = config.hidden_size;
  model.num_q_heads = config.num_q_heads;
  model.num_kv_heads = config.num_kv_heads;
  model.head_dim = config.head_dim;
  model.rope_tables = config.local_rope ? 2 : 1;
  model.intermediate = config.intermediate_size;
  model.vocab = config.vocab_size;
  model.linear_workspace_bytes = linear_workspace_bytes;
  return model;
}

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> constants = rope_inverse_frequencies(config.rope, config.head_dim);
  if (config.local_rope) {
    const std::vector<float> local = rope_inverse_frequencies(*config.local_rope, config.head_dim);
    constants.insert(constants.end(), local.begin(), local.end());
  }
  return constants;
}

std::uint64_t decoder_constant_bytes(const ModelConfig& config) {
  const KvConstantsLayout layout(config.num_kv_heads, config.head_dim);
  return (rope_frequencies(config).size() + config.num_layers * layout.layer_floats) * sizeof(float);
}

kernels::StepLayout largest_step(const gpu::EngineLimits& limits) {
  // Each sequence may begin a block in any step, and a prompt chunk fills many.
  const std::uint32_t deltas = limits.max_batch_size + ceil_div(limits.max_batch_tokens, limits.block_size);
  return kernels::step_layout(limits.max_batch_tokens, limits.max_batch_size, deltas);
}

std::string why_no_kv_format(quant::KvFormat format, std::uint32_t head_dim, bool on_cpu) {
  const quant::KvFormatInfo& info = quant::kv_format_info(format);
  if (!quant::kv_format_takes(format, head_dim))
    return fmt::format("it has no vectors of head_dim {}", head_dim);
  if (!info.on_cuda && !on_cpu) return "the CPU alone has kernels for it";
  return {};
}

kv::KvCacheConfig kv_config(const ModelConfig& config, std::uint32_t block_size, quant::KvDtype dtype,
                            std::vector<quant::KvDtype> layers) {
  return {.block_size = block_size,
          .num_layers = config.num_layers,
          .dims = {.num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim},
          .dtype = dtype,
          .layer_dims = {},
          .layer_dtypes = std::move(layers),
          .cache_blocks_per_seq = {}};
}

Decoder::Decoder(gpu::GpuBackend& gpu, const ModelConfig& config, const ModelWeights& weights,
                 const gpu::EngineLimits& limits, kv::PagedKvCache& cache, const DecoderOptions& options)
    : gpu_(&gpu),
      config_(&config),
      weights_(&weights),
      limits_(limits),
      cache_(&cache),
      options_(options),
      largest_(largest_step(limits)),
      arena_(gpu,
             gpu::arena_sizes(arena_model(config, options.compute, gpu.capabilities().linear_workspace_bytes),
                              limits, largest_.total_bytes)),
      table_stride_(limits.blocks_per_seq()),
      max_logit_rows_(gpu::arena_logit_rows(limits)),
      split_rows_(gpu::arena_split_rows(arena_model(config, options.compute), limits)) {
  if (options.compute == ElementType::kF16) {
    throw Unsupported("the decoder", "FP16 computation (it has FP32 and BF16)");
  }
  options_.use_graphs = options.use_graphs && gpu.capabilities().graphs;
  if (options.attention == AttentionKernel::kFlashInfer) check_flashinfer(gpu, config, cache, options_);
  std::vector<quant::KvDtype> dtypes;
  for (std::uint32_t i = 0; i < cache.num_layers(); ++i) {
    dtypes.push_back(cache.dtype_for_layer(LayerId(static_cast<LayerId::Value>(i))));
    check_kv_format(gpu, dtypes.back().k, config.head_dim);
    check_kv_format(gpu, dtypes.back().v, config.head_dim);
  }
  const KvCalibration* calibration = options.kv_calibration;
  if (calibration != nullptr) calibration->check_fits(config);
  if (calibration == nullptr && needs_kv_scales(dtypes)) {
    throw InvalidArgument("the decoder: fp8 and nvfp4 need a KV calibration, whose ranges make their scales");
  }
  host_step_ = gpu::PinnedBuffer(gpu, largest_.total_bytes);
  host_tokens_ = gpu::PinnedBuffer(gpu, std::size_t{max_logit_rows_} * 4);
  host_logits_ = gpu::PinnedBuffer(gpu, arena_.sizes().logits);
  host_tables_.assign(std::size_t{limits.max_batch_size} * table_stride_, kNoBlock);
  stream_ = gpu::make_stream(gpu);
  kernels_ = std::make_unique<Kernels>(gpu, options);
  std::vector<float> constants = rope_frequencies(config);
  const std::vector<float> of_kv = kv_constants(config, dtypes, calibration);
  kv_constants_at_ = constants.size();
  has_kv_mean_ = calibration != nullptr;
  kv_fingerprint_ = engine::kv_fingerprint(config, limits.block_size, dtypes, of_kv);
  constants.insert(constants.end(), of_kv.begin(), of_kv.end());
  constants_ = gpu::DeviceBuffer(gpu, constants.size() * sizeof(float));
  gpu.copy_h2d_blocking(constants_.ptr(), std::as_bytes(std::span(constants)));
}

Decoder::~Decoder() = default;

void Decoder::set_blocks(std::uint32_t table_row, std::uint32_t first, std::span<const BlockId> blocks) {
  if (table_row >= limits_.max_batch_size || first + blocks.size() > table_stride_) {
    throw InvalidArgument(fmt::format("blocks {}..{} of row {}: the tables have {} rows of {}", first,
                                      first + blocks.size(), table_row, limits_.max_batch_size,
                                      table_stride_));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    host_tables_[std::size_t{table_row} * table_stride_ + first + i] = blocks[i].value();
  }
  if (!blocks.empty()) deltas_.push_back({table_row, first, static_cast<std::uint32_t>(blocks.size())});
}

void Decoder::copy_block(BlockId from, BlockId to) {
  for (std::uint32_t i = 0; i < cache_->num_layers(); ++i) {
    const LayerId layer(static_cast<LayerId::Value>(i));
    gpu_->copy_d2d_async(cache_->k_cache_ptr(layer, to), cache_->k_cache_ptr(layer, from),
                         cache_->k_block_stride_bytes_for_layer(layer), stream_.ref());
    gpu_->copy_d2d_async(cache_->v_cache_ptr(layer, to), cache_->v_cache_ptr(layer, from),
                         cache_->v_block_stride_bytes_for_layer(layer), stream_.ref());
  }
}

void Decoder::check(std::span<const StepSequence> batch) const {
  if (batch.empty()) throw InvalidArgument("a step needs at least one sequence");
  if (batch.size() > limits_.max_batch_size) {
    throw InvalidArgument(
        fmt::format("{} sequences in a step, max_batch_size is {}", batch.size(), limits_.max_batch_size));
  }
  std::uint64_t tokens = 0;
  std::uint64_t rows = 0;
  for (const StepSequence& sequence : batch) {
    if (sequence.tokens.empty()) throw InvalidArgument("a sequence of a step has no tokens");
    if (sequence.table_row >= limits_.max_batch_size) {
      throw InvalidArgument(
          fmt::format("block table row {} of {}", sequence.table_row, limits_.max_batch_size));
    }
    if (sequence.start + sequence.tokens.size() > limits_.max_seq_len) {
      throw InvalidArgument(fmt::format("a sequence of {} tokens, max_seq_len is {}",
                                        sequence.start + sequence.tokens.size(), limits_.max_seq_len));
    }
    if (sequence.logit_rows > sequence.tokens.size()) throw InvalidArgument("more logit rows than tokens");
    const std::size_t blocks =
        ceil_div<std::size_t>(sequence.start + sequence.tokens.size(), limits_.block_size);
    const auto table =
        host_tables_.begin() + static_cast<std::ptrdiff_t>(std::size_t{sequence.table_row} * table_stride_);
    if (std::find(table, table + static_cast<std::ptrdiff_t>(blocks), kNoBlock) !=
        table + static_cast<std::ptrdiff_t>(blocks)) {
      throw InvalidArgument(fmt::format("row {} lacks a block for its first {} tokens", sequence.table_row,
                                        sequence.start + sequence.tokens.size()));
    }
    for (const std::int32_t token : sequence.tokens) {
      if (token < 0 || static_cast<std::uint32_t>(token) >= config_->vocab_size) {
        throw InvalidArgument(
            fmt::format("token id {} outside the vocabulary of {}", token, config_->vocab_size));
      }
    }
    tokens += sequence.tokens.size();
    rows += sequence.logit_rows;
  }
  if (tokens > limits_.max_batch_tokens) {
    throw InvalidArgument(
        fmt::format("{} tokens in a step, max_batch_tokens is {}", tokens, limits_.max_batch_tokens));
  }
  if (rows > max_logit_rows_) {
    throw InvalidArgument(fmt::format("{} logit rows in a step, at most {} fit", rows, max_logit_rows_));
  }
}

void Decoder::fill_step(std::span<const StepSequence> batch) {
  std::byte* base = host_step_.data();
  const auto array = [base](std::size_t offset, auto type) {
    return reinterpret_cast<decltype(type)*>(base + offset);
  };
  auto* token_ids = array(layout_.token_ids, std::int32_t{});
  auto* positions = array(layout_.positions, std::uint32_t{});
  auto* slots = array(layout_.slots, std::int64_t{});
  auto* query_starts = array(layout_.query_starts, std::uint32_t{});
  auto* context_lens = array(layout_.context_lens, std::uint32_t{});
  auto* table_rows = array(layout_.table_rows, std::uint32_t{});
  auto* logit_rows = array(layout_.logit_rows, std::uint32_t{});
  kernels::StepCounts counts;
  query_starts[0] = 0;
  for (const StepSequence& sequence : batch) {
    const std::uint32_t* table = &host_tables_[std::size_t{sequence.table_row} * table_stride_];
    const auto length = static_cast<std::uint32_t>(sequence.tokens.size());
    for (std::uint32_t i = 0; i < length; ++i) {
      const std::uint32_t row = counts.num_tokens + i;
      const std::uint32_t position = sequence.start + i;
      token_ids[row] = sequence.tokens[i];
      positions[row] = position;
      slots[row] = std::int64_t{table[position / limits_.block_size]} * limits_.block_size +
                   position % limits_.block_size;
    }
    for (std::uint32_t i = 0; i < sequence.logit_rows; ++i) {
      logit_rows[counts.num_logit_rows++] = counts.num_tokens + length - sequence.logit_rows + i;
    }
    counts.num_tokens += length;
    context_lens[counts.num_seqs] = sequence.start + length;
    table_rows[counts.num_seqs] = sequence.table_row;
    query_starts[++counts.num_seqs] = counts.num_tokens;
  }
  counts.num_table_deltas = fill_table_deltas();
  std::memcpy(base + layout_.counts, &counts, sizeof counts);
  logit_rows_ = counts.num_logit_rows;
}

// Changed entries go with the step where they fit, else ahead of it.
std::uint32_t Decoder::fill_table_deltas() {
  std::uint64_t pending = 0;
  for (const BlockDelta& delta : deltas_) pending += delta.count;
  if (pending > layout_.max_deltas) {
    for (const BlockDelta& delta : deltas_) {
      const std::size_t at = std::size_t{delta.table_row} * table_stride_ + delta.first;
      gpu_->copy_h2d_async(arena_.ptr(&ArenaSizes::block_tables).offset(at * 4),
                           std::as_bytes(std::span(&host_tables_[at], delta.count)), stream_.ref());
    }
    return 0;
  }
  auto* entries = reinterpret_cast<std::uint32_t*>(host_step_.data() + layout_.delta_entries);
  auto* blocks = reinterpret_cast<std::uint32_t*>(host_step_.data() + layout_.delta_blocks);
  std::uint32_t count = 0;
  for (const BlockDelta& delta : deltas_) {
    for (std::uint32_t i = 0; i < delta.count; ++i, ++count) {
      entries[count] = delta.table_row * table_stride_ + delta.first + i;
      blocks[count] = host_tables_[entries[count]];
    }
  }
  return count;
}

void Decoder::run(std::span<const StepSequence> batch) {
  check(batch);
  wait();  // the last step's copy reads the staging buffer
  const bool single_tokens = std::ranges::all_of(
      batch, [](const StepSequence& s) { return s.tokens.size() == 1 && s.logit_rows == 1; });
  has_tokens_ = single_tokens && options_.use_graphs && probe_ == nullptr;
  in_flight_ = true;
  if (has_tokens_) {
    run_graph(batch);
  } else {
    run_kernels(batch);
  }
  // Only now: what a step that failed did not bring to the device goes with the next one.
  deltas_.clear();
}

void Decoder::run_graph(std::span<const StepSequence> batch) {
  const std::uint32_t bucket = bucket_for(static_cast<std::uint32_t>(batch.size()), limits_.max_batch_size);
  layout_ = kernels::step_layout(bucket, bucket, bucket);
  fill_step(batch);
  launch_graph(bucket);
}

void Decoder::run_kernels(std::span<const StepSequence> batch) {
  std::uint32_t tokens = 0;
  for (const StepSequence& sequence : batch) tokens += static_cast<std::uint32_t>(sequence.tokens.size());
  layout_ = kernels::step_layout(tokens, static_cast<std::uint32_t>(batch.size()), largest_.max_deltas);
  fill_step(batch);
  launch_step(round_up(tokens, kRowTile), std::min(round_up(logit_rows_, kRowTile), max_logit_rows_));
}

void Decoder::wait() {
  if (!in_flight_) return;
  gpu_->synchronize(stream_.ref());
  in_flight_ = false;
}

std::span<const std::int32_t> Decoder::read_greedy_tokens() {
  const std::span<std::byte> out = host_tokens_.span().first(std::size_t{logit_rows_} * sizeof(std::int32_t));
  if (out.empty()) {
    wait();
    return {};
  }
  if (has_tokens_) {
    wait();
  } else {
    gpu_->copy_d2h_on_stream(out, arena_.ptr(&ArenaSizes::sampled_tokens), stream_.ref());
    in_flight_ = false;
  }
  return {reinterpret_cast<const std::int32_t*>(out.data()), logit_rows_};
}

std::span<const float> Decoder::read_logits() {
  const std::size_t count = std::size_t{logit_rows_} * config_->vocab_size;
  const std::span<std::byte> out = host_logits_.span().first(count * sizeof(float));
  if (out.empty()) {
    wait();
    return {};
  }
  gpu_->copy_d2h_on_stream(out, arena_.ptr(&ArenaSizes::logits), stream_.ref());
  in_flight_ = false;
  return {reinterpret_cast<const float*>(out.data()), count};
}

}  // namespace metrale::engine
