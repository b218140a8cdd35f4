// SPDX-License-Identifier: Apache-2.0
// The host body of linear against a stand-in for cuBLASLt, which records what it is asked.
#include "kernels/linear/cublaslt.h"

#include <cstring>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

namespace metrale::kernels {
namespace {

using cublaslt::Candidate;
using cublaslt::DataType;
using cublaslt::HeuristicResult;
using quant::ElementType;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Candidate good(std::uint64_t workspace = 0) {
  return {.workspace_bytes = workspace, .fits = true};
}

TEST(CublasLtChoice, TakesTheFirstThatAddsInOneOrderForAllRows) {
  Candidate split = good();
  split.split_k = 4;
  Candidate reduced = good();
  reduced.reduction = 2;
  Candidate narrow = good();
  narrow.fits = false;

  EXPECT_EQ(choose(std::vector{split, reduced, narrow, good(200), good(100), good()}, 100, 0), 4U);
}

TEST(CublasLtChoice, TakesTheWantedOneOfThoseThatServe) {
  Candidate split = good();
  split.split_k = 2;
  const std::vector candidates{good(), split, good(), good()};

  EXPECT_EQ(choose(candidates, 0, 1), 2U);
  EXPECT_EQ(choose(candidates, 0, 2), 3U);
  EXPECT_EQ(choose(candidates, 0, 100), 3U);
}

TEST(CublasLtChoice, IsNoneWhereNoCandidateServes) {
  EXPECT_EQ(cublaslt::choose(std::vector{good(1)}, 0, 0), std::nullopt);
  EXPECT_EQ(cublaslt::choose({}, 0, 0), std::nullopt);
}

Candidate one_order(float waves = 2, std::uint16_t inner_shape = 0) {
  return {.id = cublaslt::kOneOrderId, .inner_shape = inner_shape, .waves = waves, .fits = true};
}

TEST(CublasLtChoice, PrefersAlgorithmsThatAllAddInOneOrder) {
  EXPECT_EQ(choose(std::vector{good(), one_order()}, 0, 0), 1U);
  Candidate narrow = one_order();
  narrow.fits = false;
  EXPECT_EQ(choose(std::vector{good(), narrow}, 0, 0), 0U);
}

TEST(CublasLtChoice, ARowCountsOwnAlgorithmAddsAsTheReferenceDoes) {
  Candidate split = one_order();
  split.split_k = 2;
  const std::vector candidates{good(), split, one_order(2, 1), one_order(), one_order()};

  EXPECT_EQ(choose_alike(candidates, one_order(), 0, false), 3U);
  EXPECT_EQ(choose_alike(candidates, good(), 0, false), std::nullopt) << "nothing is known to add as it does";
}

TEST(CublasLtChoice, FewRowsTakeTheMostBlocksThatRunAtOnceWhereTheFirstLeavesMostIdle) {
  const std::vector candidates{one_order(0.2F), one_order(0.9F), one_order(1.2F), one_order(0.5F)};

  EXPECT_EQ(choose_alike(candidates, one_order(), 0, true), 1U);
  EXPECT_EQ(choose_alike(candidates, one_order(), 0, false), 0U);
  EXPECT_EQ(choose_alike(std::vector{one_order(0.4F), one_order(0.9F)}, one_order(), 0, true), 0U)
      << "the library's choice keeps enough processors busy";
}

TEST(CublasLtChoice, FewRowsOfFewOutputsArePaddedWhereThereIsRoom) {
  EXPECT_EQ(cublaslt::padded_rows(4096, 1, 64), 64U);
  EXPECT_EQ(cublaslt::padded_rows(4096, 33, 512), 64U);
  EXPECT_EQ(cublaslt::padded_rows(4096, 1, 63), 1U);
  EXPECT_EQ(cublaslt::padded_rows(4096, 1, 0), 1U);
  EXPECT_EQ(cublaslt::padded_rows(6144, 1, 64), 1U) << "one block a tile keeps the device busy";
  EXPECT_EQ(cublaslt::padded_rows(4096, 65, 512), 65U);
}

TEST(CublasLtChoice, AnOddNumberOfRowsIsCutIntoCheckedPieces) {
  EXPECT_EQ(cublaslt::checked_piece(1), 1U);
  EXPECT_EQ(cublaslt::checked_piece(7), 2U);
  EXPECT_EQ(cublaslt::checked_piece(100), 64U);
  EXPECT_EQ(cublaslt::checked_piece(100000), 8192U);
}

TEST(CublasLt, AlignmentIsThatOfEveryRow) {
  EXPECT_EQ(cublaslt::alignment_of(0x1000, 1152), 16U);
  EXPECT_EQ(cublaslt::alignment_of(0x1000, 1156), 4U);
  EXPECT_EQ(cublaslt::alignment_of(0x1002, 1152), 2U);
}

TEST(CublasLt, ALibraryThatIsNotThereSaysWhy) {
  const cublaslt::Library library = cublaslt::open_library("/nowhere/libcublasLt.so.13");

  EXPECT_EQ(library.functions, nullptr);
  EXPECT_THAT(library.reason, HasSubstr("/nowhere/libcublasLt.so.13"));
  EXPECT_EQ(cublaslt::open_library("").functions, nullptr);
}

// What the stand-in was asked and how it answers. Descriptions are numbers behind the opaque pointers.
struct Layout {
  DataType type;
  std::uint64_t rows;
  std::uint64_t cols;
  std::int64_t stride;
};
struct Desc {
  std::uint64_t bias = 0;
  std::uint64_t scale_a = 0;
  std::uint64_t scale_b = 0;
};
struct Matmul {
  std::uint64_t rows;
  std::uint64_t algorithm;
  std::uint64_t in;
  std::uint64_t out;
  std::uint64_t bias;
};
struct Recorder {
  int live = 0;                                                             // objects of the library
  std::vector<std::uint64_t> asked_rows;                                    // of heuristics
  std::vector<Matmul> products;                                             // enqueued
  std::vector<std::uint64_t> algorithms{1};                                 // what the heuristic offers
  std::map<std::uint64_t, std::vector<std::uint64_t>> algorithms_for = {};  // and for these rows instead
  std::function<bool(std::uint64_t, std::uint64_t)> serves = {};  // (algorithm, rows); none: everything
};
Recorder* recorder = nullptr;

template <class T>
int make(void** to, T value) {
  *to = new T(value);
  ++recorder->live;
  return 0;
}
template <class T>
int destroy(void* object) {
  delete static_cast<T*>(object);
  --recorder->live;
  return 0;
}

int set_desc(void* desc, cublaslt::DescAttribute which, const void* value, std::size_t bytes) {
  auto& d = *static_cast<Desc*>(desc);
  if (which == cublaslt::DescAttribute::kBiasPointer) std::memcpy(&d.bias, value, bytes);
  if (which == cublaslt::DescAttribute::kScaleA) std::memcpy(&d.scale_a, value, bytes);
  if (which == cublaslt::DescAttribute::kScaleB) std::memcpy(&d.scale_b, value, bytes);
  return 0;
}

int heuristic(void*, void*, void*, void* b, void*, void*, void*, int, HeuristicResult* results, int* found) {
  recorder->asked_rows.push_back(static_cast<Layout*>(b)->cols);
  *found = 0;
  const auto own = recorder->algorithms_for.find(static_cast<Layout*>(b)->cols);
  for (const std::uint64_t algorithm :
       own != recorder->algorithms_for.end() ? own->second : recorder->algorithms) {
    results[*found] = {};
    results[(*found)++].algorithm.data[0] = algorithm;
  }
  return *found == 0 ? cublaslt::kNotSupported : 0;
}

int check(void*, void*, void*, void* b, void*, void*, const cublaslt::Algorithm* algorithm,
          HeuristicResult* result) {
  *result = {};
  const bool serves =
      !recorder->serves || recorder->serves(algorithm->data[0], static_cast<Layout*>(b)->cols);
  return serves ? 0 : cublaslt::kNotSupported;
}

// From 100 on the stand-in's algorithms are of the kind that adds in one order.
int algorithm_get(const cublaslt::Algorithm* algorithm, cublaslt::AlgorithmAttribute which, void* value,
                  std::size_t bytes, std::size_t*) {
  std::memset(value, 0, bytes);
  if (which == cublaslt::AlgorithmAttribute::kId && algorithm->data[0] >= 100) {
    *static_cast<std::int32_t*>(value) = cublaslt::kOneOrderId;
  }
  if (which == cublaslt::AlgorithmAttribute::kSplitK) *static_cast<std::int32_t*>(value) = 1;
  return 0;
}

int matmul(void*, void* desc, const void*, const void*, void* a, const void* in, void* b, const void*,
           const void*, void*, void* out, void* d, const cublaslt::Algorithm* algorithm, void*, std::size_t,
           void*) {
  EXPECT_EQ(static_cast<Layout*>(a)->cols, static_cast<Layout*>(d)->rows);
  EXPECT_EQ(static_cast<Layout*>(b)->cols, static_cast<Layout*>(d)->cols);
  recorder->products.push_back({static_cast<Layout*>(b)->cols, algorithm->data[0],
                                reinterpret_cast<std::uintptr_t>(in), reinterpret_cast<std::uintptr_t>(out),
                                static_cast<Desc*>(desc)->bias});
  return 0;
}

constexpr cublaslt::Functions kStandIn{
    .create = [](void** handle) { return make(handle, 0); },
    .destroy = destroy<int>,
    .desc_create = [](void** desc, int, DataType) { return make(desc, Desc{}); },
    .desc_destroy = destroy<Desc>,
    .desc_set = set_desc,
    .layout_create = [](void** layout, DataType type, std::uint64_t rows, std::uint64_t cols,
                        std::int64_t stride) { return make(layout, Layout{type, rows, cols, stride}); },
    .layout_destroy = destroy<Layout>,
    .preference_create = [](void** preference) { return make(preference, 0); },
    .preference_destroy = destroy<int>,
    .preference_set = [](void*, cublaslt::PreferenceAttribute, const void*, std::size_t) { return 0; },
    .heuristic = heuristic,
    .check = check,
    .algorithm_get = algorithm_get,
    .matmul = matmul,
    .version = [] { return std::size_t{130100}; }};

const cublaslt::Library kLibrary{&kStandIn, {}};

class NoLaunch final : public gpu::CudaLaunch {
 public:
  using gpu::CudaLaunch::kernel;
  void kernel(gpu::CudaFunction, const gpu::LaunchShape&, std::span<const std::byte>) override {
    ADD_FAILURE() << "a kernel was launched";
  }
  [[nodiscard]] void* stream() const override { return nullptr; }
};

class CublasLtLinearTest : public testing::Test {
 protected:
  CublasLtLinearTest() { recorder = &record; }
  ~CublasLtLinearTest() override { EXPECT_EQ(record.live, 0) << "objects of the library were leaked"; }

  static LinearArgs args(std::uint32_t rows, ElementType in = ElementType::kBf16,
                         ElementType weight = ElementType::kBf16) {
    return {.rows = 0x100,
            .in = 0x10000,
            .weight = 0x20000,
            .bias = 0,
            .out = 0x30000,
            .max_rows = rows,
            .in_features = 64,
            .out_features = 32,
            .in_stride = 80,
            .out_stride = 48,
            .in_type = in,
            .weight_type = weight,
            .out_type = ElementType::kF32};
  }
  void launch(std::initializer_list<std::uint32_t> rows,
              CublasLtLinear::Order order = CublasLtLinear::Order::kExact) {
    CublasLtLinear linear(kLibrary, {.adds_alike = adds_alike}, order, fallback());
    NoLaunch to;
    for (const std::uint32_t count : rows) linear.launch(to, args(count));
  }
  LinearFallback fallback() {
    return [this](gpu::CudaLaunch&, const LinearArgs&) { ++fallbacks; };
  }

  Recorder record;
  int fallbacks = 0;
  bool adds_alike = true;
};

TEST_F(CublasLtLinearTest, OneAlgorithmServesAllRowsWhateverCameFirst) {
  record.algorithms = {5, 6};
  record.serves = [](std::uint64_t algorithm, std::uint64_t rows) { return algorithm != 5 || rows < 2048; };

  launch({1, 300, 4096});

  ASSERT_EQ(record.products.size(), 3U);
  for (const Matmul& product : record.products) EXPECT_EQ(product.algorithm, 6U);
  EXPECT_THAT(record.asked_rows, ElementsAre(64U)) << "the choice must not depend on the rows";
  EXPECT_EQ(fallbacks, 0);
}

TEST_F(CublasLtLinearTest, AlgorithmsThatAddAlikeAreChosenForEachNumberOfRows) {
  record.algorithms = {101, 102, 5};
  record.serves = [](std::uint64_t algorithm, std::uint64_t rows) {
    return algorithm != 102 || rows == 4096;  // serves that alone, and is no reference
  };
  record.algorithms_for[4096] = {5, 102, 101};

  launch({1, 4000, 300, 4000});

  ASSERT_EQ(record.products.size(), 4U);
  EXPECT_EQ(record.products[0].algorithm, 101U);
  EXPECT_EQ(record.products[1].algorithm, 101U) << "102 does not serve 4000 rows: back to the reference";
  EXPECT_EQ(record.products[2].algorithm, 101U);
  launch({4096});
  EXPECT_EQ(record.products[4].algorithm, 102U);
  EXPECT_EQ(fallbacks, 0);
}

TEST_F(CublasLtLinearTest, WhatIsNotKnownToAddAlikeHasOneAlgorithm) {
  record.algorithms = {101, 102};
  record.algorithms_for[4096] = {102, 101};
  adds_alike = false;

  launch({1, 4096});

  for (const Matmul& product : record.products) EXPECT_EQ(product.algorithm, 101U);
}

TEST_F(CublasLtLinearTest, OnlyTheComparedLibraryAndDeviceAreKnownToAddAlike) {
  EXPECT_TRUE(cublaslt::is_known_to_add_alike(130100, 9, 0));
  EXPECT_TRUE(cublaslt::is_known_to_add_alike(130102, 9, 0));
  EXPECT_FALSE(cublaslt::is_known_to_add_alike(130000, 9, 0));
  EXPECT_FALSE(cublaslt::is_known_to_add_alike(130200, 9, 0));
  EXPECT_FALSE(cublaslt::is_known_to_add_alike(120900, 9, 0));
  EXPECT_FALSE(cublaslt::is_known_to_add_alike(130100, 10, 0));
  EXPECT_FALSE(cublaslt::is_known_to_add_alike(130100, 9, 1));
}

TEST_F(CublasLtLinearTest, OtherOperandsThanBf16HaveOneAlgorithmForAllRows) {
  record.algorithms = {101, 102};
  record.algorithms_for[4096] = {102, 101};
  NoLaunch to;

  for (const ElementType type : {ElementType::kF16, ElementType::kF32}) {
    CublasLtLinear linear(kLibrary, {.adds_alike = true}, CublasLtLinear::Order::kExact, fallback());
    for (const std::uint32_t rows : {1U, 4096U}) linear.launch(to, args(rows, type, type));
  }
  CublasLtLinearFp8 fp8(kLibrary, {.adds_alike = true});
  for (const std::uint32_t rows : {1U, 4096U}) {
    LinearFp8Args product{};
    product.max_rows = rows;
    product.in_features = product.out_features = product.out_stride = 16;
    fp8.launch(to, product);
  }

  ASSERT_EQ(record.products.size(), 6U);
  for (const Matmul& product : record.products) EXPECT_EQ(product.algorithm, 101U);
  EXPECT_THAT(record.asked_rows, ElementsAre(64U, 64U, 64U));
}

TEST_F(CublasLtLinearTest, RowsThatTheAlgorithmRefusesAreTakenInPieces) {
  record.serves = [](std::uint64_t, std::uint64_t rows) { return rows != 100; };

  launch({100});

  std::uint64_t done = 0;
  std::vector<std::uint64_t> pieces;
  for (const Matmul& product : record.products) {
    EXPECT_EQ(product.in, 0x10000 + done * 80 * 2);
    EXPECT_EQ(product.out, 0x30000 + done * 48 * 4);
    pieces.push_back(product.rows);
    done += product.rows;
  }
  EXPECT_THAT(pieces, ElementsAre(64U, 33U, 2U, 1U));
}

TEST_F(CublasLtLinearTest, MixedTypesGoToTheEmbeddedKernel) {
  CublasLtLinear linear(kLibrary, {}, CublasLtLinear::Order::kExact, fallback());
  NoLaunch to;

  linear.launch(to, args(3, ElementType::kF32, ElementType::kBf16));

  EXPECT_EQ(fallbacks, 1);
  EXPECT_THAT(record.products, IsEmpty());
}

TEST_F(CublasLtLinearTest, AProductWithoutAlgorithmGoesToTheEmbeddedKernel) {
  record.algorithms = {};

  launch({3, 4});

  EXPECT_EQ(fallbacks, 2);
  EXPECT_EQ(record.asked_rows.size(), 1U) << "the answer is kept";
}

TEST_F(CublasLtLinearTest, FastAsksForTheRowsRoundedUp) {
  launch({3, 4, 100}, CublasLtLinear::Order::kFast);

  EXPECT_THAT(record.asked_rows, ElementsAre(4U, 128U));
  ASSERT_EQ(record.products.size(), 3U);
  EXPECT_EQ(record.products[2].rows, 100U);
}

TEST_F(CublasLtLinearTest, TheBiasIsThatOfTheCall) {
  CublasLtLinear linear(kLibrary, {}, CublasLtLinear::Order::kExact, fallback());
  NoLaunch to;
  LinearArgs with_bias = args(2);
  with_bias.bias = 0x44440;

  linear.launch(to, with_bias);
  linear.launch(to, args(2));

  ASSERT_EQ(record.products.size(), 2U);
  EXPECT_EQ(record.products[0].bias, 0x44440U);
  EXPECT_EQ(record.products[1].bias, 0U);
}

TEST_F(CublasLtLinearTest, NoRowsDoNothing) {
  launch({0});

  EXPECT_THAT(record.products, IsEmpty());
  EXPECT_EQ(fallbacks, 0);
}

TEST_F(CublasLtLinearTest, StridesBelowTheFeaturesAreRefused) {
  CublasLtLinear linear(kLibrary, {}, CublasLtLinear::Order::kExact, fallback());
  NoLaunch to;
  LinearArgs narrow = args(1);
  narrow.in_stride = 63;

  EXPECT_THROW(linear.launch(to, narrow), InvalidArgument);
}

TEST_F(CublasLtLinearTest, WithoutTheLibraryTheEmbeddedKernelComputesAll) {
  CublasLtLinear linear({nullptr, "it was not found"}, {}, CublasLtLinear::Order::kFast, fallback());
  NoLaunch to;

  linear.launch(to, args(5));

  EXPECT_EQ(fallbacks, 1);
}

TEST_F(CublasLtLinearTest, ALibraryThatDoesNotStartIsAsGoodAsNone) {
  cublaslt::Functions broken = kStandIn;
  broken.create = [](void**) { return 1; };
  CublasLtLinear linear({&broken, {}}, {}, CublasLtLinear::Order::kExact, fallback());
  NoLaunch to;

  linear.launch(to, args(5));

  EXPECT_EQ(fallbacks, 1);
  EXPECT_THAT(record.products, IsEmpty());
}

TEST_F(CublasLtLinearTest, OfALostContextNothingIsGivenBack) {
  static int handles = 0;
  handles = 0;
  cublaslt::Functions counted = kStandIn;
  counted.create = [](void** handle) {
    *handle = &handles;
    ++handles;
    return 0;
  };
  counted.destroy = [](void*) {
    --handles;
    return 0;
  };
  {
    CublasLtLinear linear({&counted, {}}, {}, CublasLtLinear::Order::kExact, fallback());
    CublasLtLinearFp8 fp8({&counted, {}}, {});
  }
  EXPECT_EQ(handles, 0);
  {
    CublasLtLinear linear({&counted, {}}, {}, CublasLtLinear::Order::kExact, fallback());
    CublasLtLinearFp8 fp8({&counted, {}}, {});
    linear.abandon();
    fp8.abandon();
  }
  EXPECT_EQ(handles, 2);
}

TEST_F(CublasLtLinearTest, Fp8WithoutTheLibrarySaysWhy) {
  CublasLtLinearFp8 linear({nullptr, "it was not found"}, {});
  NoLaunch to;
  LinearFp8Args fp8{};
  fp8.in_features = fp8.out_features = fp8.out_stride = 16;

  EXPECT_THAT([&] { linear.launch(to, fp8); },
              testing::ThrowsMessage<Unsupported>(HasSubstr("it was not found")));
}

}  // namespace
}  // namespace metrale::kernels
