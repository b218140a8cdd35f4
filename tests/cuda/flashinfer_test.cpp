// SPDX-License-Identifier: Apache-2.0
// FlashInfer's decode on the device against the double model: ragged lengths, permuted blocks, more sequences
// in the launch than in the step, and the refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/stream.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/flashinfer.h>

#include "cuda/support/device_run.h"
#include "kernels/support/attention_case.h"

namespace metrale::kernels {
namespace {

class FlashInfer : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_peer_kernels()) GTEST_SKIP() << "built without METRALE_PEERS";
  }
};

// One token of each sequence, in memory of the device.
class DecodeStep {
 public:
  DecodeStep(const AttentionShape& shape, const std::vector<std::uint32_t>& contexts,
             std::uint32_t block_size, std::uint32_t spare_rows = 0)
      : shape_(shape), rows_(static_cast<std::uint32_t>(contexts.size())), run_(cuda_backend()) {
    std::mt19937 random(91);
    std::vector<SeqShape> seqs;
    for (const std::uint32_t context : contexts) {
      seqs.push_back({context, 1});
      sequences_.push_back(random_sequence(random, shape, context, 1));
    }
    // Lays everything out in the host's memory; what it holds is copied.
    const AttentionStep host(shape, sequences_, seqs, {.block_size = block_size, .block_order_seed = 7});
    args = host.args;
    std::size_t blocks = 0;
    for (const std::uint32_t context : contexts) blocks += (context + block_size - 1) / block_size;
    const std::size_t pool =
        blocks * quant::kv_side_bytes(shape.k_format, block_size, shape.num_kv_heads, shape.head_dim);
    const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
    args.counts = run_.put(std::span(&host.counts, 1));
    args.q = copy(args.q, rows_ * width * 2);
    args.k_pool = copy(args.k_pool, pool);
    args.v_pool = copy(args.v_pool, pool);
    args.block_tables = run_.put(host.tables);
    args.query_starts = run_.put(host.query_starts);
    args.context_lens = run_.put(host.context_lens);
    args.table_rows = run_.put(host.table_rows);
    args.out = run_.room((rows_ + spare_rows) * width * 2);
    args.max_tokens = args.max_seqs = args.workspace_rows = rows_ + spare_rows;
    args.workspace =
        run_.room(std::size_t{rows_ + spare_rows} * shape.num_q_heads *
                  attention_max_splits(args.table_stride * block_size) * (shape.head_dim + 2) * 4);
  }

  void run() { run_.run(kFlashInferDecode, args); }

  void expect_model() {
    const std::size_t width = std::size_t{shape_.num_q_heads} * shape_.head_dim;
    const Elements out = run_.get(quant::ElementType::kBf16, args.out, rows_ * width);
    for (std::uint32_t row = 0; row < rows_; ++row) {
      const auto context = static_cast<std::uint32_t>(sequences_[row].k.size() /
                                                      (std::size_t{shape_.num_kv_heads} * shape_.head_dim));
      const ModelRow model = model_attention(shape_, sequences_[row], context - 1);
      for (std::size_t i = 0; i < width; ++i) {
        // Its exponentials are approximations.
        ASSERT_NEAR(double{out.get(row * width + i)}, model.out[i], model.tolerance[i] + 1e-4)
            << "sequence " << row << " of " << context << " tokens, element " << i;
      }
    }
  }

  AttentionArgs args{};

 private:
  std::uint64_t copy(std::uint64_t host, std::size_t bytes) {
    return run_.put(std::span(reinterpret_cast<const std::byte*>(host), bytes));
  }

  AttentionShape shape_;
  std::uint32_t rows_;
  std::vector<Sequence> sequences_;
  DeviceRun run_;
};

AttentionShape bf16_shape(std::uint32_t head_dim, std::uint32_t kv_heads, std::uint32_t group) {
  return {.num_q_heads = kv_heads * group,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .type = quant::ElementType::kBf16};
}

TEST_F(FlashInfer, AgreesWithTheModel) {
  for (const std::uint32_t head_dim : {64U, 128U}) {
    for (const std::uint32_t group : {1U, 2U, 3U, 4U, 8U}) {
      for (const std::uint32_t block_size : {16U, 128U}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << head_dim << " group " << group << " block " << block_size);
        DecodeStep step(bf16_shape(head_dim, 2, group), {1, 2, 17, 511, 512, 513, 1100, 40}, block_size, 3);

        step.run();

        step.expect_model();
      }
    }
  }
}

TEST_F(FlashInfer, RefusesWhatItDoesNotServe) {
  const auto refused = [](const auto& change, const char* message) {
    DecodeStep step(bf16_shape(64, 1, 1), {20}, 16);
    change(step.args);
    EXPECT_THAT([&] { step.run(); }, testing::ThrowsMessage<Unsupported>(testing::HasSubstr(message)));
  };
  refused([](AttentionArgs& a) { a.head_dim = 80; }, "head_dim 80");
  refused([](AttentionArgs& a) { a.num_q_heads = 5; }, "5 query heads on 1 KV heads");
  refused([](AttentionArgs& a) { a.window = 8; }, "sliding window");
  refused([](AttentionArgs& a) { a.max_tokens = 4; }, "one token each");
  refused([](AttentionArgs& a) { a.workspace_rows = 0; }, "workspace");
  refused([](AttentionArgs& a) { a.k_format = quant::KvFormat::kFp32; }, "only bf16");
}

}  // namespace
}  // namespace metrale::kernels
