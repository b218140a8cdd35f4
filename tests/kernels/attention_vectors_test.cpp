// SPDX-License-Identifier: Apache-2.0
// Attention over vectors of unusual sizes and shapes: what a format keeps of them comes out as the model in
// double precision has it; what it loses comes out as zeros, or as no number, and nothing else.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/support/attention_case.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;
using quant::KvSide;

constexpr std::uint32_t kHeadDims[] = {64, 208};  // of 208, records have 128 and 80

// What a format makes of numbers.
enum class Reads { kNumbers, kZeros, kNoNumber };

Reads reads_of(const std::vector<float>& side) {
  if (std::ranges::all_of(side, [](float x) { return x == 0; })) return Reads::kZeros;
  if (std::ranges::all_of(side, [](float x) { return std::isnan(x); })) return Reads::kNoNumber;
  EXPECT_TRUE(std::ranges::all_of(side, [](float x) { return std::isfinite(x); }));
  return Reads::kNumbers;
}

// Normal queries, keys and values of one KV head that a test changes before it runs them.
class Vectors {
 public:
  Vectors(KvFormat k, KvFormat v, std::uint32_t head_dim, std::uint32_t context)
      : shape{.num_q_heads = 3, .num_kv_heads = 1, .head_dim = head_dim, .k_format = k, .v_format = v},
        context_(context) {
    std::mt19937 random(41);
    const std::size_t width = std::size_t{context} * head_dim;
    seq = {.q = random_normal(random, 3 * width),
           .k_given = random_normal(random, width),
           .v_given = random_normal(random, width)};
  }
  // Reads what is stored, as attention does.
  void store() {
    seq.k = as_read(shape.k_format, KvSide::kKey, shape, seq.k_given);
    seq.v = as_read(shape.v_format, KvSide::kValue, shape, seq.v_given);
  }
  // Outputs of the last tokens: one, whose three rows are few, or six.
  [[nodiscard]] std::vector<float> run(std::uint32_t queries) const {
    return run_attention(shape, {seq}, {{context_, queries}}).floats();
  }
  void expect_model() const {
    for (const std::uint32_t queries : {1U, 6U}) {
      const std::vector<float> out = run(queries);
      const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
      for (std::uint32_t i = 0; i < queries; ++i) {
        const ModelRow model = model_attention(shape, seq, context_ - queries + i);
        for (std::size_t d = 0; d < width; ++d) {
          ASSERT_NEAR(out[i * width + d], model.out[d], model.tolerance[d])
              << "token " << i << " of " << queries << " element " << d;
        }
      }
    }
  }
  // True for each element of every output.
  template <class Predicate>
  void expect_all(const Predicate& predicate) const {
    for (const std::uint32_t queries : {1U, 6U}) EXPECT_TRUE(std::ranges::all_of(run(queries), predicate));
  }
  void expect_no_number() const {
    expect_all([](float x) { return std::isnan(x); });
  }
  void expect_zeros() const {
    expect_all([](float x) { return x == 0; });
  }
  [[nodiscard]] std::uint32_t tokens() const { return context_; }

  AttentionShape shape;
  Sequence seq;

 private:
  std::uint32_t context_;
};

void multiply(std::vector<float>& values, float by) {
  for (float& value : values) value *= by;
}

// What normal numbers times 1e-30, 1e-4, 1e3 and 1e30 read as.
constexpr float kSizes[] = {1e-30F, 1e-4F, 1e3F, 1e30F};
struct SizedFormat {
  KvFormat format;
  Reads reads[4];
};
constexpr Reads kN = Reads::kNumbers;
constexpr SizedFormat kSizedFormats[] = {
    {KvFormat::kTurbo4, {Reads::kZeros, kN, kN, Reads::kNoNumber}},
    {KvFormat::kTurbo3, {Reads::kZeros, kN, kN, Reads::kNoNumber}},
    {KvFormat::kTurbo2, {Reads::kZeros, kN, kN, Reads::kNoNumber}},
    {KvFormat::kTurbo8i, {kN, kN, kN, kN}},
    {KvFormat::kTurbo8, {kN, kN, kN, kN}},
    {KvFormat::kFp8, {Reads::kZeros, kN, kN, kN}},  // the head's scale is 0.01: 1e3 saturates
    {KvFormat::kBf16, {kN, kN, kN, kN}},
    {KvFormat::kFp32, {kN, kN, kN, kN}},
};

TEST(PagedAttentionVectors, ValuesOfEverySizeAreKeptZerosOrNoNumber) {
  for (const SizedFormat& sized : kSizedFormats) {
    for (std::size_t size = 0; size < std::size(kSizes); ++size) {
      for (const std::uint32_t head_dim : kHeadDims) {
        SCOPED_TRACE(testing::Message()
                     << quant::to_string(sized.format) << " of " << head_dim << " times " << kSizes[size]);
        Vectors vectors(sized.format, sized.format, head_dim, 232);
        multiply(vectors.seq.v_given, kSizes[size]);
        vectors.store();
        ASSERT_EQ(reads_of(vectors.seq.v), sized.reads[size]);
        switch (sized.reads[size]) {
          case Reads::kNumbers:
            vectors.expect_model();
            break;
          case Reads::kZeros:
            vectors.expect_zeros();
            break;
          case Reads::kNoNumber:
            vectors.expect_no_number();
            break;
        }
      }
    }
  }
}

// Queries are as small as keys are large, so scores are ordinary ones, or a hundred times that. Keys that
// read as zeros give the mean of the values, which is what the model has.
TEST(PagedAttentionVectors, KeysOfEverySizeAreKeptZerosOrNoNumber) {
  for (const SizedFormat& sized : kSizedFormats) {
    for (std::size_t size = 0; size < std::size(kSizes); ++size) {
      for (const std::uint32_t head_dim : kHeadDims) {
        SCOPED_TRACE(testing::Message()
                     << quant::to_string(sized.format) << " of " << head_dim << " times " << kSizes[size]);
        Vectors vectors(sized.format, sized.format, head_dim, 232);
        multiply(vectors.seq.k_given, kSizes[size]);
        multiply(vectors.seq.q, kSizes[size] == 1e30F ? 1e-28F : 1 / kSizes[size]);
        vectors.store();
        ASSERT_EQ(reads_of(vectors.seq.k), sized.reads[size]);
        if (sized.reads[size] == Reads::kNoNumber) {
          vectors.expect_no_number();
        } else {
          vectors.expect_model();
        }
      }
    }
  }
}

// A row of queries below 2^-96 counts as zeros where it is rounded, though large keys would make scores of
// it.
TEST(PagedAttentionVectors, AQueryThatVanishesGivesTheMeanOfTheValues) {
  for (const std::uint32_t head_dim : kHeadDims) {
    Vectors vectors(KvFormat::kTurbo8i, KvFormat::kTurbo8i, head_dim, 150);
    multiply(vectors.seq.k_given, 1e30F);
    multiply(vectors.seq.q, 1e-30F);
    vectors.store();
    Vectors zero = vectors;
    multiply(zero.seq.q, 0.0F);
    zero.expect_model();
    for (const std::uint32_t queries : {1U, 6U}) EXPECT_EQ(vectors.run(queries), zero.run(queries));
    vectors.shape.k_format = KvFormat::kFp32;
    vectors.store();
    vectors.expect_model();
    EXPECT_NE(vectors.run(1), zero.run(1));
  }
}

enum class Form { kOneHot, kConstant, kZero, kSubnormal, kMixed };
constexpr Form kForms[] = {Form::kOneHot, Form::kConstant, Form::kZero, Form::kSubnormal, Form::kMixed};
constexpr const char* kFormNames[] = {"one-hot", "constant", "zero", "subnormal", "mixed"};

// All vectors of one form, or of all forms in turn with normal ones among them. (Rotated formats store what
// is constant as one large element, and what is one-hot as elements of one size.)
void reshape(std::vector<float>& side, std::uint32_t head_dim, Form form) {
  for (std::size_t at = 0, index = 0; at < side.size(); at += head_dim, ++index) {
    if (form == Form::kMixed && index % 5 == 4) continue;
    const Form own = form == Form::kMixed ? kForms[index % 5] : form;
    const std::span vector = std::span(side).subspan(at, head_dim);
    std::ranges::fill(vector, own == Form::kConstant ? 0.75F : own == Form::kSubnormal ? 1e-40F : 0.0F);
    if (own == Form::kOneHot) vector[form == Form::kMixed ? index * 7 % head_dim : 17] = -3.0F;
  }
}

constexpr KvFormat kShapedFormats[] = {KvFormat::kTurbo4,  KvFormat::kTurbo3, KvFormat::kTurbo2,
                                       KvFormat::kTurbo8i, KvFormat::kTurbo8, KvFormat::kFp8,
                                       KvFormat::kFp32};

// Calls body(vectors, form) for every format, head_dim and form.
template <class Body>
void for_forms(const Body& body) {
  for (const KvFormat format : kShapedFormats) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const Form form : kForms) {
        SCOPED_TRACE(testing::Message() << quant::to_string(format) << " of " << head_dim << ", "
                                        << kFormNames[static_cast<std::size_t>(form)]);
        Vectors vectors(format, format, head_dim, 150);
        body(vectors, form);
      }
    }
  }
}

// Zeros give zeros, and so do subnormals, which only fp32 of these keeps; where all values are one vector, it
// is what comes out.
TEST(PagedAttentionVectors, ValuesOfEveryForm) {
  for_forms([](Vectors& vectors, Form form) {
    reshape(vectors.seq.v_given, vectors.shape.head_dim, form);
    vectors.store();
    if (form == Form::kSubnormal && vectors.shape.v_format == KvFormat::kFp32) {
      vectors.expect_all([](float x) { return std::abs(x - 1e-40F) < 1e-42F; });
      return;
    }
    vectors.expect_model();
    if (form == Form::kZero || form == Form::kSubnormal) {
      EXPECT_EQ(reads_of(vectors.seq.v), Reads::kZeros);
      vectors.expect_zeros();
    } else if (form != Form::kMixed) {
      EXPECT_EQ(reads_of(vectors.seq.v), Reads::kNumbers);
      const std::vector<float> out = vectors.run(1);
      const std::span one = std::span(vectors.seq.v).first(vectors.shape.head_dim);
      const float largest = std::abs(*std::ranges::max_element(one, {}, [](float x) { return std::abs(x); }));
      for (std::size_t d = 0; d < out.size(); ++d) {
        EXPECT_NEAR(out[d], vectors.seq.v[d % vectors.shape.head_dim], 1e-4F * largest) << d;
      }
    }
  });
}

TEST(PagedAttentionVectors, KeysOfEveryForm) {
  for_forms([](Vectors& vectors, Form form) {
    reshape(vectors.seq.k_given, vectors.shape.head_dim, form);
    vectors.store();
    vectors.expect_model();
    if (form == Form::kMixed) return;
    // All keys are alike, so no query tells them apart.
    Vectors others = vectors;
    multiply(others.seq.q, -0.5F);
    EXPECT_EQ(others.run(6), vectors.run(6));
  });
}

TEST(PagedAttentionVectors, QueriesOfEveryForm) {
  for_forms([](Vectors& vectors, Form form) {
    reshape(vectors.seq.q, vectors.shape.head_dim, form);
    vectors.store();
    vectors.expect_model();
  });
}

}  // namespace
}  // namespace metrale::kernels
