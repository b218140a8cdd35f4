// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/support/attention_case.h"

namespace metrale::kernels {
namespace {

std::vector<Sequence> random_sequences(std::uint32_t seed, const AttentionShape& shape,
                                       const std::vector<SeqShape>& seqs) {
  std::mt19937 random(seed);
  std::vector<Sequence> sequences;
  for (const SeqShape& s : seqs) sequences.push_back(random_sequence(random, shape, s.context));
  return sequences;
}

void expect_model(const AttentionShape& shape, const std::vector<SeqShape>& seqs, const AttentionRun& how,
                  std::uint32_t seed) {
  const auto sequences = random_sequences(seed, shape, seqs);
  const auto out = run_attention(shape, sequences, seqs, how).floats();
  const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
  std::size_t row = 0;
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    for (std::uint32_t i = 0; i < seqs[s].queries; ++i, ++row) {
      const std::uint32_t token = seqs[s].context - seqs[s].queries + i;
      const ModelRow model = model_attention(shape, sequences[s], token);
      for (std::size_t d = 0; d < width; ++d) {
        ASSERT_NEAR(out[row * width + d], model.out[d], model.tolerance[d])
            << "seed " << seed << " sequence " << s << " token " << token << " element " << d << " head_dim "
            << shape.head_dim;
      }
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelAtEveryHeadDim) {
  std::uint32_t seed = 100;
  for (const std::uint32_t head_dim : {1U, 5U, 8U, 64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
    const AttentionShape shape{.head_dim = head_dim};
    expect_model(shape, {{40, 9}, {17, 1}, {16, 16}}, {}, ++seed);
  }
}

TEST(PagedAttention, AgreesWithTheModelAcrossSplits) {
  const AttentionShape shape;
  expect_model(shape, {{511, 1}, {512, 1}, {513, 2}, {1024, 3}, {2500, 1}, {600, 100}}, {}, 7);
}

TEST(PagedAttention, AgreesWithTheModelThroughTheWorkspace) {
  const AttentionShape shape;
  expect_model(shape, {{1024, 3}, {2500, 1}, {4095, 1}}, {.threads = 4, .workspace = true}, 8);
}

}  // namespace
}  // namespace metrale::kernels
