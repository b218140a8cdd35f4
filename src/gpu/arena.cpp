// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <exception>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/gpu/arena.h>

namespace metrale::gpu {
namespace {

constexpr std::uint64_t kFloat = 4;
constexpr std::uint64_t kSplitRows = 64;
constexpr std::uint64_t kMostSplitBytes = std::uint64_t{64} << 20;
constexpr std::uint32_t kRowPadding = 16;      // block-scaled products work on so many rows at once
constexpr std::uint64_t kMinLogitRows = 160;   // what a batched check of drafted tokens scores
constexpr std::uint32_t kSplitTokens = 512;    // attention splits a context at multiples of it
constexpr std::uint32_t kSplitExtra = 2;       // maximum and sum beside the weighted values
constexpr std::uint32_t kFp8ScaleGroup = 128;  // elements that share a scale

constexpr std::array kFields{
    ArenaFieldName{"residual", &ArenaSizes::residual},
    ArenaFieldName{"hidden_states", &ArenaSizes::hidden_states},
    ArenaFieldName{"norm_output", &ArenaSizes::norm_output},
    ArenaFieldName{"qkv_output", &ArenaSizes::qkv_output},
    ArenaFieldName{"attn_output", &ArenaSizes::attn_output},
    ArenaFieldName{"branch_output", &ArenaSizes::branch_output},
    ArenaFieldName{"attention_workspace", &ArenaSizes::attention_workspace},
    ArenaFieldName{"rope_table", &ArenaSizes::rope_table},
    ArenaFieldName{"mla_kv_latent", &ArenaSizes::mla_kv_latent},
    ArenaFieldName{"mla_q_latent", &ArenaSizes::mla_q_latent},
    ArenaFieldName{"mla_o_latent", &ArenaSizes::mla_o_latent},
    ArenaFieldName{"gate_logits", &ArenaSizes::gate_logits},
    ArenaFieldName{"moe_router_in", &ArenaSizes::moe_router_in},
    ArenaFieldName{"moe_latent", &ArenaSizes::moe_latent},
    ArenaFieldName{"moe_output", &ArenaSizes::moe_output},
    ArenaFieldName{"expert_gate_up_out", &ArenaSizes::expert_gate_up_out},
    ArenaFieldName{"expert_down_out", &ArenaSizes::expert_down_out},
    ArenaFieldName{"shared_gate_out", &ArenaSizes::shared_gate_out},
    ArenaFieldName{"shared_up_out", &ArenaSizes::shared_up_out},
    ArenaFieldName{"ssm_in_proj", &ArenaSizes::ssm_in_proj},
    ArenaFieldName{"ssm_ba", &ArenaSizes::ssm_ba},
    ArenaFieldName{"ssm_deinterleaved", &ArenaSizes::ssm_deinterleaved},
    ArenaFieldName{"ssm_gates", &ArenaSizes::ssm_gates},
    ArenaFieldName{"ssm_conv_out", &ArenaSizes::ssm_conv_out},
    ArenaFieldName{"fp8_activations", &ArenaSizes::fp8_activations},
    ArenaFieldName{"fp8_scales", &ArenaSizes::fp8_scales},
    ArenaFieldName{"fp8_scales_k_major", &ArenaSizes::fp8_scales_k_major},
    ArenaFieldName{"lora_shrink", &ArenaSizes::lora_shrink},
    ArenaFieldName{"lora_row_adapters", &ArenaSizes::lora_row_adapters},
    ArenaFieldName{"linear_workspace", &ArenaSizes::linear_workspace},
    ArenaFieldName{"logits", &ArenaSizes::logits},
    ArenaFieldName{"sampled_tokens", &ArenaSizes::sampled_tokens},
    ArenaFieldName{"step", &ArenaSizes::step},
    ArenaFieldName{"block_tables", &ArenaSizes::block_tables},
};
static_assert(sizeof(ArenaSizes) == kFields.size() * sizeof(std::uint64_t),
              "a buffer is missing from the list");

std::size_t index_of(ArenaField field) {
  const auto found = std::find_if(kFields.begin(), kFields.end(),
                                  [&](const ArenaFieldName& known) { return known.field == field; });
  expects(found != kFields.end(), "no such arena buffer");
  return static_cast<std::size_t>(found - kFields.begin());
}

// Rows of the arena's buffers for one pair of model and limits.
struct Rows {
  std::uint64_t plain;    // M
  std::uint64_t product;  // Mp
  std::uint64_t act;      // bytes of an activation
};

bool is_mla(const ArenaModel& model) {
  return model.mla_kv_lora_rank != 0;
}

// What the splits of one row give.
std::uint64_t split_row_bytes(const ArenaModel& model, const EngineLimits& limits) {
  const std::uint64_t value_width = is_mla(model) ? model.mla_kv_lora_rank : model.head_dim;
  const std::uint64_t splits = ceil_div(limits.max_seq_len, kSplitTokens);
  return checked_mul(model.num_q_heads, splits, value_width + kSplitExtra, kFloat);
}

// What attention kernels touch.
void size_attention(ArenaSizes& sizes, const ArenaModel& model, const EngineLimits& limits,
                    const Rows& rows) {
  const std::uint64_t nq = model.num_q_heads;
  const std::uint64_t q_width = checked_mul(nq, model.head_dim);
  const std::uint64_t kv_width = checked_mul(2, model.num_kv_heads, model.head_dim);
  const std::uint64_t qkv_width =
      checked_add(checked_mul(q_width, model.has_gated_q ? 2 : 1), is_mla(model) ? 0 : kv_width);
  const std::uint64_t latent_width = std::uint64_t{model.mla_kv_lora_rank} + model.mla_rope_dim;
  const std::uint64_t linear_v_width = checked_mul(model.linear_v_heads, model.linear_v_head_dim);
  const std::uint64_t mla_width = is_mla(model) ? checked_mul(nq, latent_width) : 0;
  const std::uint64_t out_width =
      std::max({q_width, std::uint64_t{model.mamba_inner}, linear_v_width, mla_width});

  sizes.qkv_output = checked_mul(rows.product, qkv_width, rows.act);
  sizes.attn_output = checked_mul(rows.product, out_width, rows.act);
  if (nq != 0) {
    sizes.attention_workspace = checked_mul(arena_split_rows(model, limits), split_row_bytes(model, limits));
  }
  sizes.rope_table =
      checked_mul(model.rope_tables, rows.plain, is_mla(model) ? model.mla_rope_dim : model.head_dim, kFloat);
  if (is_mla(model)) {
    sizes.mla_kv_latent = checked_mul(rows.product, latent_width, rows.act);
    sizes.mla_q_latent = checked_mul(rows.product, model.mla_q_lora_rank, rows.act);
    sizes.mla_o_latent = checked_mul(rows.product, nq, model.mla_kv_lora_rank, rows.act);
  }
}

void size_feed_forward(ArenaSizes& sizes, const ArenaModel& model, const Rows& rows) {
  const std::uint64_t experts_width = checked_mul(model.experts_per_token, model.expert_intermediate);
  const std::uint64_t widest = std::max<std::uint64_t>(experts_width, model.intermediate);
  sizes.expert_gate_up_out = checked_mul(2, rows.product, widest, rows.act);
  sizes.shared_gate_out = checked_mul(rows.product, model.shared_intermediate, rows.act);
  sizes.shared_up_out = sizes.shared_gate_out;
  if (model.num_experts == 0) return;
  const std::uint64_t choices = std::uint64_t{model.num_experts} + model.num_zero_experts;
  const std::uint64_t expert_out = model.expert_latent != 0 ? model.expert_latent : model.hidden;
  sizes.gate_logits = checked_mul(rows.product, choices, kFloat);
  sizes.moe_router_in = checked_mul(rows.product, model.hidden, kFloat);
  sizes.moe_latent = checked_mul(rows.product, model.expert_latent, rows.act);
  sizes.moe_output = checked_mul(rows.product, model.hidden, kFloat);
  sizes.expert_down_out = checked_mul(rows.product, model.experts_per_token, expert_out, rows.act);
}

void size_recurrence(ArenaSizes& sizes, const ArenaModel& model, const Rows& rows) {
  const std::uint64_t mixed = std::max(model.linear_qkvz, model.mamba_conv);
  sizes.ssm_in_proj = checked_mul(rows.product, std::max(model.linear_qkvz, model.mamba_in_proj), rows.act);
  sizes.ssm_ba = checked_mul(rows.product, model.linear_ba, rows.act);
  sizes.ssm_deinterleaved = checked_mul(rows.product, mixed, rows.act);
  sizes.ssm_gates = checked_mul(rows.plain, 2, model.linear_v_heads, kFloat);
  sizes.ssm_conv_out = checked_mul(rows.plain, mixed, kFloat);
}

// The widest row that any projection of the model reads.
std::uint64_t widest_projection_input(const ArenaModel& model) {
  const std::uint64_t attention = checked_mul(model.num_q_heads, model.head_dim);
  const std::uint64_t linear_v = checked_mul(model.linear_v_heads, model.linear_v_head_dim);
  const std::uint64_t narrow =
      std::max({model.hidden, model.intermediate, model.expert_intermediate, model.shared_intermediate,
                model.mamba_inner, model.mla_q_lora_rank, model.mla_kv_lora_rank, model.expert_latent});
  return std::max({attention, linear_v, narrow});
}

void size_variants(ArenaSizes& sizes, const ArenaModel& model, const Rows& rows) {
  if (model.has_fp8_activations) {
    const std::uint64_t width = widest_projection_input(model);
    sizes.fp8_activations = checked_mul(rows.product, width);
    sizes.fp8_scales = checked_mul(rows.product, ceil_div<std::uint64_t>(width, kFp8ScaleGroup), kFloat);
    sizes.fp8_scales_k_major = sizes.fp8_scales;
  }
  if (model.adapter_max_rank != 0) {
    sizes.lora_shrink = checked_mul(rows.product, model.adapter_max_rank, kFloat);
    sizes.lora_row_adapters = checked_mul(rows.plain, sizeof(std::uint32_t));
  }
}

}  // namespace

void ArenaModel::validate() const {
  expects(activation_bytes == 2 || activation_bytes == 4, "activation_bytes must be 2 or 4");
  expects(hidden != 0, "hidden must not be 0");
  expects(vocab != 0, "vocab must not be 0");
  expects((num_q_heads == 0) == (head_dim == 0), "num_q_heads and head_dim go together");
  expects(num_q_heads == 0 || (num_kv_heads != 0 && num_q_heads % num_kv_heads == 0),
          "num_q_heads must be a multiple of num_kv_heads");
  expects((mla_kv_lora_rank == 0) == (mla_rope_dim == 0), "mla_kv_lora_rank and mla_rope_dim go together");
  expects((num_experts == 0) == (experts_per_token == 0) && (num_experts == 0) == (expert_intermediate == 0),
          "num_experts, experts_per_token and expert_intermediate go together");
  expects(experts_per_token <= std::uint64_t{num_experts} + num_zero_experts,
          "experts_per_token is more than there are experts");
  expects((mamba_inner == 0) == (mamba_in_proj == 0) && (mamba_inner == 0) == (mamba_conv == 0),
          "mamba_inner, mamba_in_proj and mamba_conv go together");
  expects((linear_qkvz == 0) == (linear_v_heads == 0) && (linear_v_heads == 0) == (linear_v_head_dim == 0),
          "linear_qkvz, linear_v_heads and linear_v_head_dim go together");
}

std::span<const ArenaFieldName> arena_fields() {
  return kFields;
}

std::uint64_t ArenaSizes::total_bytes() const {
  std::uint64_t total = 0;
  for (const ArenaFieldName& known : kFields) total = checked_add(total, this->*known.field);
  return total;
}

std::uint32_t arena_logit_rows(const EngineLimits& limits) {
  const std::uint64_t wanted = std::max(kMinLogitRows, std::uint64_t{limits.max_batch_size} + 1);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(limits.max_batch_tokens, wanted));
}

std::uint32_t arena_split_rows(const ArenaModel& model, const EngineLimits& limits) {
  if (model.num_q_heads == 0) return limits.max_batch_size;
  const std::uint64_t affordable = kMostSplitBytes / split_row_bytes(model, limits);
  const std::uint64_t wanted = std::min({kSplitRows, affordable, std::uint64_t{limits.max_batch_tokens}});
  return std::max(limits.max_batch_size, static_cast<std::uint32_t>(wanted));
}

ArenaSizes arena_sizes(const ArenaModel& model, const EngineLimits& limits, std::uint64_t step_bytes) {
  model.validate();
  limits.validate();
  const Rows rows{.plain = limits.max_batch_tokens,
                  .product = round_up<std::uint64_t>(limits.max_batch_tokens, kRowPadding),
                  .act = model.activation_bytes};
  const std::uint64_t logit_rows = arena_logit_rows(limits);
  const std::uint64_t normalised = std::max(model.hidden, model.mamba_inner);

  ArenaSizes sizes;
  sizes.residual = checked_mul(rows.plain, model.hidden, kFloat);
  sizes.hidden_states = checked_mul(rows.product, model.hidden, rows.act);
  sizes.norm_output = checked_mul(rows.product, normalised, rows.act);
  sizes.branch_output = checked_mul(rows.product, model.hidden, kFloat);
  size_attention(sizes, model, limits, rows);
  size_feed_forward(sizes, model, rows);
  size_recurrence(sizes, model, rows);
  size_variants(sizes, model, rows);
  sizes.linear_workspace = model.linear_workspace_bytes;
  sizes.logits = checked_mul(logit_rows, model.vocab, kFloat);
  sizes.sampled_tokens = checked_mul(logit_rows, sizeof(std::int32_t));
  sizes.step = step_bytes;
  sizes.block_tables = checked_mul(limits.max_batch_size, limits.blocks_per_seq(), sizeof(std::uint32_t));
  return sizes;
}

BufferArena::BufferArena(GpuBackend& gpu, const ArenaSizes& sizes) : sizes_(sizes) {
  buffers_.reserve(kFields.size());
  for (const ArenaFieldName& known : kFields) {
    const std::uint64_t bytes = sizes.*known.field;
    try {
      buffers_.emplace_back(gpu, bytes);
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(error.tier(), bytes, error.free_bytes(),
                        fmt::format("for '{}' of the buffer arena, which takes {} bytes in all; lower "
                                    "max_batch_tokens, max_batch_size or max_seq_len",
                                    known.name, sizes.total_bytes()));
    }
  }
}

DevicePtr BufferArena::ptr(ArenaField field) const {
  return buffers_[index_of(field)].ptr();
}

DevicePtr BufferArena::require(ArenaField field) const {
  const std::size_t index = index_of(field);
  const DevicePtr found = buffers_[index].ptr();
  if (found.is_null()) {
    throw InvalidArgument(
        fmt::format("the arena has no buffer '{}' (not for this model, or released)", kFields[index].name));
  }
  return found;
}

void BufferArena::do_release(GpuBackend&) {
  std::exception_ptr first;
  for (DeviceBuffer& buffer : buffers_) {
    try {
      buffer.release();
    } catch (...) {
      // Kept and rethrown below, once the rest is free too.
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace metrale::gpu
