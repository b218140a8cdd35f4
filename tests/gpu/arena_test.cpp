// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/arena.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>

namespace metrale::gpu {
namespace {

void expect_sizes(const ArenaSizes& sizes, const ArenaSizes& expected) {
  for (const ArenaFieldName& known : arena_fields()) {
    EXPECT_EQ(sizes.*known.field, expected.*known.field) << known.name;
  }
}

constexpr EngineLimits kSmallLimits{
    .max_seq_len = 64, .max_batch_size = 2, .max_batch_tokens = 17, .block_size = 16};

ArenaModel small_model() {
  return {.hidden = 32, .vocab = 100, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8, .intermediate = 64};
}

// Llama-3-8B: hidden 4096, 32 query and 8 KV heads of 128, feed-forward 14336, vocabulary 128256.
TEST(ArenaSizes, OfADenseModel) {
  const ArenaModel model{.hidden = 4096,
                         .vocab = 128256,
                         .num_q_heads = 32,
                         .num_kv_heads = 8,
                         .head_dim = 128,
                         .intermediate = 14336};
  const EngineLimits limits{
      .max_seq_len = 8192, .max_batch_size = 16, .max_batch_tokens = 2048, .block_size = 16};

  const ArenaSizes sizes = arena_sizes(model, limits, 100'000);

  expect_sizes(sizes, {
                          .residual = 33'554'432,             // 2048 x 4096 x 4
                          .hidden_states = 16'777'216,        // 2048 x 4096 x 2
                          .norm_output = 16'777'216,          // 2048 x 4096 x 2
                          .qkv_output = 25'165'824,           // 2048 x (32 + 2 x 8) x 128 x 2
                          .attn_output = 16'777'216,          // 2048 x 32 x 128 x 2
                          .branch_output = 33'554'432,        // 2048 x 4096 x 4
                          .attention_workspace = 17'039'360,  // 64 x 32 x 16 splits x 130 x 4
                          .rope_table = 1'048'576,            // 2048 x 128 x 4
                          .expert_gate_up_out = 117'440'512,  // 2 x 2048 x 14336 x 2
                          .logits = 82'083'840,               // 160 rows x 128256 x 4
                          .sampled_tokens = 640,
                          .step = 100'000,
                          .block_tables = 32'768,  // 16 x 512 blocks x 4
                      });
}

// Qwen3-30B-A3B: hidden 2048, 32 query and 4 KV heads of 128, 128 experts of 768, 8 a token. 1000 rows are
// padded to 1008 where products touch them.
TEST(ArenaSizes, OfAMixtureOfExperts) {
  const ArenaModel model{.hidden = 2048,
                         .vocab = 151936,
                         .num_q_heads = 32,
                         .num_kv_heads = 4,
                         .head_dim = 128,
                         .num_experts = 128,
                         .experts_per_token = 8,
                         .expert_intermediate = 768};
  const EngineLimits limits{
      .max_seq_len = 4096, .max_batch_size = 8, .max_batch_tokens = 1000, .block_size = 32};

  const ArenaSizes sizes = arena_sizes(model, limits, 0);

  expect_sizes(sizes, {
                          .residual = 8'192'000,             // 1000 x 2048 x 4
                          .hidden_states = 4'128'768,        // 1008 x 2048 x 2
                          .norm_output = 4'128'768,          // 1008 x 2048 x 2
                          .qkv_output = 10'321'920,          // 1008 x (32 + 2 x 4) x 128 x 2
                          .attn_output = 8'257'536,          // 1008 x 32 x 128 x 2
                          .branch_output = 8'257'536,        // 1008 x 2048 x 4
                          .attention_workspace = 8'519'680,  // 64 x 32 x 8 splits x 130 x 4
                          .rope_table = 512'000,             // 1000 x 128 x 4
                          .gate_logits = 516'096,            // 1008 x 128 x 4
                          .moe_router_in = 8'257'536,        // 1008 x 2048 x 4
                          .moe_output = 8'257'536,           // 1008 x 2048 x 4
                          .expert_gate_up_out = 24'772'608,  // 2 x 1008 x 8 x 768 x 2
                          .expert_down_out = 33'030'144,     // 1008 x 8 x 2048 x 2
                          .logits = 97'239'040,              // 160 rows x 151936 x 4
                          .sampled_tokens = 640,
                          .block_tables = 4'096,  // 8 x 128 blocks x 4
                      });
}

// Qwen3-Next-80B-A3B: gated attention with 16 query and 2 KV heads of 256 beside gated delta net layers (16
// key and 32 value heads of 128: q 2048, k 2048, v 4096, z 4096), 512 experts of 512, 10 a token, one shared.
TEST(ArenaSizes, OfAHybrid) {
  const ArenaModel model{.hidden = 2048,
                         .vocab = 151936,
                         .num_q_heads = 16,
                         .num_kv_heads = 2,
                         .head_dim = 256,
                         .has_gated_q = true,
                         .num_experts = 512,
                         .experts_per_token = 10,
                         .expert_intermediate = 512,
                         .shared_intermediate = 512,
                         .linear_qkvz = 12288,
                         .linear_ba = 64,
                         .linear_v_heads = 32,
                         .linear_v_head_dim = 128};
  const EngineLimits limits{
      .max_seq_len = 262'144, .max_batch_size = 4, .max_batch_tokens = 64, .block_size = 64};

  const ArenaSizes sizes = arena_sizes(model, limits, 4'096);

  expect_sizes(sizes,
               {
                   .residual = 524'288,                // 64 x 2048 x 4
                   .hidden_states = 262'144,           // 64 x 2048 x 2
                   .norm_output = 262'144,             // 64 x 2048 x 2
                   .qkv_output = 1'179'648,            // 64 x (2 x 16 + 2 x 2) x 256 x 2
                   .attn_output = 524'288,             // 64 x 16 x 256 (= 32 x 128) x 2
                   .branch_output = 524'288,           // 64 x 2048 x 4
                   .attention_workspace = 59'179'008,  // 7 (what 64 MiB hold) x 16 x 512 splits x 258 x 4
                   .rope_table = 65'536,               // 64 x 256 x 4
                   .gate_logits = 131'072,             // 64 x 512 x 4
                   .moe_router_in = 524'288,           // 64 x 2048 x 4
                   .moe_output = 524'288,              // 64 x 2048 x 4
                   .expert_gate_up_out = 1'310'720,    // 2 x 64 x 10 x 512 x 2
                   .expert_down_out = 2'621'440,       // 64 x 10 x 2048 x 2
                   .shared_gate_out = 65'536,          // 64 x 512 x 2
                   .shared_up_out = 65'536,
                   .ssm_in_proj = 1'572'864,        // 64 x 12288 x 2
                   .ssm_ba = 8'192,                 // 64 x 64 x 2
                   .ssm_deinterleaved = 1'572'864,  // 64 x 12288 x 2
                   .ssm_gates = 16'384,             // 64 x 2 x 32 x 4
                   .ssm_conv_out = 3'145'728,       // 64 x 12288 x 4
                   .logits = 38'895'616,            // 64 rows x 151936 x 4
                   .sampled_tokens = 256,
                   .step = 4'096,
                   .block_tables = 65'536,  // 4 x 4096 blocks x 4
               });
}

// DeepSeek-V2-Lite in FP32: 16 heads of 128 + 64, latent 512, one dense layer of 10944, 64 experts of 1408, 6
// a token, two shared.
TEST(ArenaSizes, OfLatentAttention) {
  const ArenaModel model{.activation_bytes = 4,
                         .hidden = 2048,
                         .vocab = 102400,
                         .num_q_heads = 16,
                         .num_kv_heads = 16,
                         .head_dim = 192,
                         .mla_kv_lora_rank = 512,
                         .mla_rope_dim = 64,
                         .intermediate = 10944,
                         .num_experts = 64,
                         .experts_per_token = 6,
                         .expert_intermediate = 1408,
                         .shared_intermediate = 2816};
  const EngineLimits limits{
      .max_seq_len = 32'768, .max_batch_size = 32, .max_batch_tokens = 512, .block_size = 64};

  const ArenaSizes sizes = arena_sizes(model, limits, 0);

  expect_sizes(sizes, {
                          .residual = 4'194'304,              // 512 x 2048 x 4
                          .hidden_states = 4'194'304,         // 512 x 2048 x 4
                          .norm_output = 4'194'304,           // 512 x 2048 x 4
                          .qkv_output = 6'291'456,            // 512 x 16 x 192 x 4
                          .attn_output = 18'874'368,          // 512 x 16 x (512 + 64) x 4
                          .branch_output = 4'194'304,         // 512 x 2048 x 4
                          .attention_workspace = 67'371'008,  // 32 x 16 x 64 splits x 514 x 4
                          .rope_table = 131'072,              // 512 x 64 x 4
                          .mla_kv_latent = 1'179'648,         // 512 x (512 + 64) x 4
                          .mla_o_latent = 16'777'216,         // 512 x 16 x 512 x 4
                          .gate_logits = 131'072,             // 512 x 64 x 4
                          .moe_router_in = 4'194'304,         // 512 x 2048 x 4
                          .moe_output = 4'194'304,            // 512 x 2048 x 4
                          .expert_gate_up_out = 44'826'624,   // 2 x 512 x 10944 (more than 6 x 1408) x 4
                          .expert_down_out = 25'165'824,      // 512 x 6 x 2048 x 4
                          .shared_gate_out = 5'767'168,       // 512 x 2816 x 4
                          .shared_up_out = 5'767'168,
                          .logits = 65'536'000,  // 160 rows x 102400 x 4
                          .sampled_tokens = 640,
                          .block_tables = 65'536,  // 32 x 512 blocks x 4
                      });
}

TEST(ArenaSizes, OfMambaLayersWithFp8ActivationsAndAdapters) {
  ArenaModel model = small_model();
  model.mamba_inner = 96;
  model.mamba_in_proj = 240;
  model.mamba_conv = 128;
  model.num_experts = 4;
  model.num_zero_experts = 2;
  model.experts_per_token = 3;
  model.expert_intermediate = 300;
  model.expert_latent = 16;
  model.mla_q_lora_rank = 12;
  model.has_fp8_activations = true;
  model.adapter_max_rank = 8;

  const ArenaSizes sizes = arena_sizes(model, kSmallLimits, 0);

  EXPECT_EQ(sizes.norm_output, 32U * 96 * 2);
  EXPECT_EQ(sizes.attn_output, 32U * 96 * 2);
  EXPECT_EQ(sizes.ssm_in_proj, 32U * 240 * 2);
  EXPECT_EQ(sizes.ssm_deinterleaved, 32U * 128 * 2);
  EXPECT_EQ(sizes.ssm_conv_out, 17U * 128 * 4);
  EXPECT_EQ(sizes.ssm_ba, 0U);
  EXPECT_EQ(sizes.gate_logits, 32U * 6 * 4);
  EXPECT_EQ(sizes.moe_latent, 32U * 16 * 2);
  EXPECT_EQ(sizes.expert_down_out, 32U * 3 * 16 * 2);
  EXPECT_EQ(sizes.mla_q_latent, 0U) << "without a KV latent there is no latent attention";
  EXPECT_EQ(sizes.fp8_activations, 32U * 300);
  EXPECT_EQ(sizes.fp8_scales, 32U * 3 * 4);
  EXPECT_EQ(sizes.fp8_scales_k_major, 32U * 3 * 4);
  EXPECT_EQ(sizes.lora_shrink, 32U * 8 * 4);
  EXPECT_EQ(sizes.lora_row_adapters, 17U * 4);
}

TEST(ArenaSizes, ProductsOfLibrariesGetTheWorkspaceThatTheyAskFor) {
  ArenaModel model = small_model();
  EXPECT_EQ(arena_sizes(model, kSmallLimits, 0).linear_workspace, 0U);

  model.linear_workspace_bytes = 12345;

  EXPECT_EQ(arena_sizes(model, kSmallLimits, 0).linear_workspace, 12345U);
}

TEST(ArenaSizes, TotalSumsEveryBuffer) {
  ArenaSizes sizes;
  std::uint64_t expected = 0;
  std::uint64_t next = 1;
  for (const ArenaFieldName& known : arena_fields()) {
    sizes.*known.field = next;
    expected += next;
    next *= 2;
  }

  EXPECT_EQ(sizes.total_bytes(), expected);
}

TEST(ArenaSizes, EveryBufferIsListedOnceUnderItsOwnName) {
  std::set<std::string_view> names;
  ArenaSizes sizes;
  for (const ArenaFieldName& known : arena_fields()) {
    EXPECT_TRUE(names.insert(known.name).second) << known.name;
    EXPECT_EQ(sizes.*known.field, 0U) << known.name << " shares its member";
    sizes.*known.field = 1;
  }
}

TEST(ArenaSizes, LogitRowsFollowTheBatchButCoverDrafts) {
  EXPECT_EQ(arena_logit_rows({.max_seq_len = 1, .max_batch_size = 1, .max_batch_tokens = 64}), 64U);
  EXPECT_EQ(arena_logit_rows({.max_seq_len = 1, .max_batch_size = 8, .max_batch_tokens = 2048}), 160U);
  EXPECT_EQ(arena_logit_rows({.max_seq_len = 1, .max_batch_size = 256, .max_batch_tokens = 2048}), 257U);
}

TEST(ArenaSizes, SizeBeyond64BitsIsRefused) {
  ArenaModel model = small_model();
  model.intermediate = 0xFFFF'FFFF;
  model.experts_per_token = model.num_experts = model.expert_intermediate = 0xFFFF'FFFF;
  EngineLimits limits = kSmallLimits;
  limits.max_batch_tokens = 0xFFFF'FFFF;

  EXPECT_THROW(static_cast<void>(arena_sizes(model, limits, 0)), InvalidArgument);
}

TEST(ArenaModel, FactsThatContradictEachOtherAreRefused) {
  const auto refused = [](auto&& change) {
    ArenaModel model = small_model();
    change(model);
    EXPECT_THROW(model.validate(), InvalidArgument);
  };

  EXPECT_NO_THROW(small_model().validate());
  refused([](ArenaModel& m) { m.activation_bytes = 3; });
  refused([](ArenaModel& m) { m.hidden = 0; });
  refused([](ArenaModel& m) { m.vocab = 0; });
  refused([](ArenaModel& m) { m.head_dim = 0; });
  refused([](ArenaModel& m) { m.num_kv_heads = 3; });
  refused([](ArenaModel& m) { m.mla_kv_lora_rank = 8; });
  refused([](ArenaModel& m) { m.num_experts = 8; });
  refused([](ArenaModel& m) { m.num_experts = 1, m.experts_per_token = 2, m.expert_intermediate = 8; });
  refused([](ArenaModel& m) { m.mamba_inner = 8; });
  refused([](ArenaModel& m) { m.linear_qkvz = 8; });
}

TEST(EngineLimits, EachLimitIsCheckedByName) {
  const auto refused = [](auto&& change, const char* name) {
    EngineLimits limits = kSmallLimits;
    change(limits);
    try {
      limits.validate();
      ADD_FAILURE() << name << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };

  EXPECT_NO_THROW(kSmallLimits.validate());
  refused([](EngineLimits& l) { l.max_seq_len = 0; }, "max_seq_len");
  refused([](EngineLimits& l) { l.max_batch_size = 0; }, "max_batch_size");
  refused([](EngineLimits& l) { l.max_batch_tokens = 1; }, "max_batch_tokens");
  refused([](EngineLimits& l) { l.block_size = 24; }, "block_size");
}

TEST(EngineLimits, LastBlockOfASequenceMayBePartFilled) {
  EngineLimits limits = kSmallLimits;
  limits.max_seq_len = 65;
  EXPECT_EQ(limits.blocks_per_seq(), 5U);
}

TEST(BufferArena, HoldsWhatTheModelNeedsAndNothingElse) {
  const auto gpu = make_mock_backend();
  const ArenaSizes sizes = arena_sizes(small_model(), kSmallLimits, 256);

  const BufferArena arena(*gpu, sizes);

  EXPECT_EQ(gpu->live_bytes(), sizes.total_bytes());
  for (const ArenaFieldName& known : arena_fields()) {
    EXPECT_EQ(arena.ptr(known.field).is_null(), sizes.*known.field == 0) << known.name;
  }
}

TEST(BufferArena, AbsentBufferIsRefusedByName) {
  const auto gpu = make_mock_backend();
  const BufferArena arena(*gpu, arena_sizes(small_model(), kSmallLimits, 256));

  EXPECT_EQ(arena.require(&ArenaSizes::logits), arena.ptr(&ArenaSizes::logits));
  try {
    static_cast<void>(arena.require(&ArenaSizes::ssm_ba));
    ADD_FAILURE() << "an absent buffer was given";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'ssm_ba'"), std::string::npos) << error.what();
  }
}

TEST(BufferArena, EveryAllocationFailureLeavesNothing) {
  const auto gpu = make_mock_backend();
  const auto faults = make_fault_backend(*gpu);
  const ArenaSizes sizes = arena_sizes(small_model(), kSmallLimits, 256);
  std::uint64_t buffers = 0;
  for (const ArenaFieldName& known : arena_fields()) buffers += sizes.*known.field != 0 ? 1 : 0;

  for (std::uint64_t nth = 1; nth <= buffers; ++nth) {
    faults->fail_nth(FaultPoint::kAlloc, nth);
    EXPECT_THROW(BufferArena(*faults, sizes), OutOfMemory) << nth;
    EXPECT_EQ(gpu->live_alloc_count(), 0U) << nth;
  }
  faults->fail_nth(FaultPoint::kAlloc, buffers + 1);
  EXPECT_NO_THROW(BufferArena(*faults, sizes));
}

TEST(BufferArena, LackOfMemoryNamesTheBufferAndTheWayOut) {
  const auto gpu = make_mock_backend({.free_memory_bytes = 4'000});
  try {
    const BufferArena arena(*gpu, arena_sizes(small_model(), kSmallLimits, 256));
    ADD_FAILURE() << "it fitted";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("'hidden_states'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("max_batch_tokens"), std::string::npos) << error.what();
    EXPECT_EQ(error.wanted_bytes(), 32U * 32 * 2);
  }
}

TEST(BufferArena, ReleaseFreesAllAndMayBeRepeated) {
  const auto gpu = make_mock_backend();
  BufferArena arena(*gpu, arena_sizes(small_model(), kSmallLimits, 256));

  arena.release(*gpu);
  arena.release(*gpu);

  EXPECT_EQ(gpu->live_alloc_count(), 0U);
  EXPECT_TRUE(arena.ptr(&ArenaSizes::residual).is_null());
}

TEST(BufferArena, FailedFreeIsReportedAfterTheRestWasFreed) {
  const auto gpu = make_mock_backend();
  const auto faults = make_fault_backend(*gpu);
  BufferArena arena(*faults, arena_sizes(small_model(), kSmallLimits, 256));
  faults->fail_nth(FaultPoint::kFree, 2);

  EXPECT_THROW(arena.release(*faults), DeviceError);

  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

}  // namespace
}  // namespace metrale::gpu
