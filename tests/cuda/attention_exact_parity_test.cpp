// SPDX-License-Identifier: Apache-2.0
// Exact by construction on the device too: how a step is cut, laid out and divided, and which kernel serves a
// row, never shows in a query's bits.
#include <limits>

#include "cuda/support/device_attention.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using quant::KvFormat;

const std::vector<AttentionShape>& exact_shapes() {
  static const std::vector<AttentionShape> shapes{
      {.num_q_heads = 3, .num_kv_heads = 1, .head_dim = 64, .type = ElementType::kBf16},
      {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 80, .type = ElementType::kBf16},
      {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128, .type = ElementType::kBf16},
      {.num_q_heads = 20, .num_kv_heads = 1, .head_dim = 8, .type = ElementType::kBf16},
      {.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 192, .type = ElementType::kBf16},
      {.num_q_heads = 16, .num_kv_heads = 1, .head_dim = 256, .type = ElementType::kBf16},
      {.num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128, .type = ElementType::kBf16, .window = 33},
      {.num_q_heads = 6, .num_kv_heads = 3, .head_dim = 64, .type = ElementType::kBf16, .window = 150},
      {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 96, .type = ElementType::kBf16, .window = 530},
      {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 80, .v_format = KvFormat::kFp32},
      {.num_q_heads = 7, .num_kv_heads = 1, .head_dim = 17, .type = ElementType::kF16},
      {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 512, .type = ElementType::kBf16},
      {.num_q_heads = 12, .num_kv_heads = 1, .head_dim = 20, .k_format = KvFormat::kFp32, .window = 530},
  };
  return shapes;
}

// The prompt of sequences[0] in chunks, each after the cache holds what came before.
std::vector<std::byte> in_chunks(const AttentionShape& shape, const std::vector<Sequence>& sequences,
                                 std::uint32_t from, std::uint32_t to, std::uint32_t chunk,
                                 const AttentionRun& how = {}) {
  std::vector<std::byte> all;
  for (std::uint32_t done = from; done < to;) {
    const std::uint32_t now = std::min(chunk, to - done);
    done += now;
    const Elements out = device_attention(shape, sequences, {{done, now}}, how);
    all.insert(all.end(), out.bytes().begin(), out.bytes().end());
  }
  return all;
}

TEST(CudaAttentionExactness, ChunkingOfAPromptDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const auto sequences = random_sequences(1, shape, {{620, 620}});
    const auto whole = in_chunks(shape, sequences, 0, 620, 620);
    for (const bool workspace : {false, true}) {
      for (const std::uint32_t chunk : {7U, 64U, 100U, 512U, 620U}) {
        EXPECT_EQ(in_chunks(shape, sequences, 0, 620, chunk, {.workspace = workspace}), whole)
            << "chunks of " << chunk << " " << describe(shape, {.workspace = workspace});
      }
    }
  }
}

TEST(CudaAttentionExactness, DecodingTokenByTokenGivesThePrefillsBits) {
  for (const AttentionShape& shape : exact_shapes()) {
    const auto sequences = random_sequences(2, shape, {{530, 530}});
    const auto whole = in_chunks(shape, sequences, 490, 530, 40);
    EXPECT_EQ(in_chunks(shape, sequences, 490, 530, 1), whole) << describe(shape, {});
    EXPECT_EQ(in_chunks(shape, sequences, 490, 530, 1, {.workspace = true}), whole) << describe(shape, {});
  }
}

TEST(CudaAttentionExactness, TheRestOfTheBatchDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    for (const bool workspace : {false, true}) {
      const std::vector<SeqShape> seqs{{700, 1}, {33, 33}, {1, 1}, {513, 7}, {64, 1}, {600, 150}};
      const auto sequences = random_sequences(3, shape, seqs);
      const Elements together = device_attention(shape, sequences, seqs, {.workspace = workspace});
      std::size_t first = 0;
      for (std::size_t s = 0; s < seqs.size(); ++s) {
        const Elements alone = device_attention(shape, {sequences[s]}, {seqs[s]});
        EXPECT_EQ(bytes_of_rows(shape, together, first, seqs[s].queries), alone.bytes())
            << "sequence " << s << " " << describe(shape, {.workspace = workspace});
        first += seqs[s].queries;
      }
    }
  }
}

TEST(CudaAttentionExactness, WhichSequencesAreSplitDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1600, 2}, {513, 1}, {600, 20}, {1040, 60}};
    const auto sequences = random_sequences(4, shape, seqs);
    const Elements expected = device_attention(shape, sequences, seqs);
    AttentionStep step(shape, sequences, seqs, {.workspace = true});
    for (const std::uint32_t rows : {0U, 1U, 2U, 3U, 22U, 23U, 82U, 83U, 100U}) {
      step.args.workspace_rows = rows;
      EXPECT_EQ(DeviceStep(cuda_backend(), step).run().bytes(), expected.bytes())
          << rows << " workspace rows " << describe(shape, {});
    }
  }
}

TEST(CudaAttentionExactness, RoomForLargerStepsDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{600, 2}, {513, 1}};
    AttentionStep step(shape, random_sequences(5, shape, seqs), seqs, {.workspace = true});
    const Elements expected = DeviceStep(cuda_backend(), step).run();
    step.args.max_tokens = 1000;
    step.args.max_seqs = 700;
    step.args.workspace_rows = 16;
    EXPECT_EQ(DeviceStep(cuda_backend(), step).run().bytes(), expected.bytes()) << describe(shape, {});
  }
}

TEST(CudaAttentionExactness, BlockSizeAndOrderDoNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1030, 3}, {129, 129}, {15, 1}};
    const auto sequences = random_sequences(6, shape, seqs);
    const Elements expected = device_attention(shape, sequences, seqs);
    for (const bool workspace : {false, true}) {
      for (const std::uint32_t block_size : {1U, 7U, 16U, 32U, 64U, 128U, 1000U}) {
        const AttentionRun how{
            .block_size = block_size, .workspace = workspace, .block_order_seed = block_size};
        EXPECT_EQ(device_attention(shape, sequences, seqs, how).bytes(), expected.bytes())
            << describe(shape, how);
      }
    }
  }
}

TEST(CudaAttentionExactness, AWindowOfTheWholeContextIsNone) {
  for (AttentionShape shape : exact_shapes()) {
    shape.window = 0;
    const auto sequences = random_sequences(7, shape, {{620, 300}});
    const Elements expected = device_attention(shape, sequences, {{620, 300}});
    shape.window = 620;
    EXPECT_EQ(device_attention(shape, sequences, {{620, 300}}).bytes(), expected.bytes());
  }
}

// The pool's unused slots are NaN in every case; here later tokens of the same step are not finite either.
TEST(CudaAttentionExactness, LaterTokensDoNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    for (const bool workspace : {false, true}) {
      auto sequences = random_sequences(8, shape, {{90, 90}});
      const Elements clean = device_attention(shape, sequences, {{90, 90}});
      const std::size_t width = std::size_t{shape.num_kv_heads} * shape.head_dim;
      for (std::size_t i = 70 * width; i < 71 * width; ++i) {
        sequences[0].k_given[i] = std::numeric_limits<float>::quiet_NaN();
        sequences[0].v_given[i] = std::numeric_limits<float>::infinity();
      }

      const Elements out = device_attention(shape, sequences, {{90, 90}}, {.workspace = workspace});

      EXPECT_EQ(bytes_of_rows(shape, out, 0, 70), bytes_of_rows(shape, clean, 0, 70)) << describe(shape, {});
      EXPECT_TRUE(std::isnan(out.get(70 * std::size_t{shape.num_q_heads} * shape.head_dim)));
    }
  }
}

TEST(CudaAttentionExactness, TokensBeforeTheWindowDoNotShow) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    for (const bool workspace : {false, true}) {
      const AttentionShape shape{.num_q_heads = 12, .head_dim = 32, .type = type, .window = 50};
      auto sequences = random_sequences(9, shape, {{700, 60}});
      const Elements clean = device_attention(shape, sequences, {{700, 60}});
      std::fill_n(sequences[0].k_given.begin(), 600 * 32, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(sequences[0].v_given.begin(), 600 * 32, std::numeric_limits<float>::infinity());

      const Elements out = device_attention(shape, sequences, {{700, 60}}, {.workspace = workspace});

      // The query at 649 is the first that sees none of the 600.
      EXPECT_EQ(bytes_of_rows(shape, out, 9, 51), bytes_of_rows(shape, clean, 9, 51));
      EXPECT_TRUE(std::isnan(out.get(8 * 12 * 32)));
    }
  }
}

TEST(CudaAttentionExactness, ACapturedGraphServesOtherLengths) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> most{{1100, 40}, {600, 20}, {600, 4}};
    const auto sequences = random_sequences(10, shape, most);
    AttentionStep captured(shape, sequences, most, {.workspace = true});
    captured.args.workspace_rows = 10;
    gpu::GpuBackend& gpu = cuda_backend();
    DeviceStep device(gpu, captured);
    const gpu::Stream stream = gpu::make_stream(gpu);
    gpu::CaptureScope capture(gpu, stream.ref());
    gpu::launch(gpu, kPagedAttention, stream.ref(), device.args);
    const gpu::Graph graph = capture.finish();
    const std::vector<std::vector<SeqShape>> steps{
        {{1100, 1}, {600, 1}, {600, 1}}, {{513, 3}, {1, 1}, {17, 17}}, {{1000, 64}}, most};
    for (const std::vector<SeqShape>& seqs : steps) {
      const AttentionStep step(shape, sequences, seqs, {});
      const Elements expected = DeviceStep(gpu, step).run();
      device.set_lengths(step.counts, step.query_starts, step.context_lens);
      device.set_queries(step.queries());

      gpu.launch_graph(graph.ref(), stream.ref());
      gpu.synchronize(stream.ref());

      EXPECT_EQ(bytes_of_rows(shape, device.out(), 0, step.counts.num_tokens), expected.bytes())
          << describe(shape, {});
    }
  }
}

}  // namespace
}  // namespace metrale::kernels
