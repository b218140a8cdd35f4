// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's public interface that the linear layers use, declared here and found at run time: a
// build needs neither the library nor its headers. Versions 12 and 13 agree on all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace metrale::kernels::cublaslt {

// Opaque objects of the library.
using Handle = void*;
using MatmulDesc = void*;
using MatrixLayout = void*;
using Preference = void*;

// A configured algorithm: plain data, good for any product that it passes a check for.
struct Algorithm {
  std::uint64_t data[8];
};

// An algorithm with what the library says of it for one product.
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;  // a status
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

// The constants keep the library's numbers.
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidValue = 7;
inline constexpr int kArchMismatch = 8;
inline constexpr int kNotSupported = 15;
inline constexpr int kCompute32F = 68;
inline constexpr std::int32_t kTransposed = 1;
inline constexpr std::uint32_t kEpilogueBias = 4;
inline constexpr std::uint32_t kReductionNone = 0;
enum class DataType : int { kF32 = 0, kF16 = 2, kBf16 = 14, kE4m3 = 28 };
enum class DescAttribute : int {
  kTransposeA = 3,
  kEpilogue = 7,
  kBiasPointer = 8,
  kScaleA = 17,
  kScaleB = 18,
  kBiasType = 26,
};
enum class PreferenceAttribute : int {
  kWorkspaceBytes = 1,
  kReductionMask = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
enum class AlgorithmAttribute : int {
  kId = 0,
  kTile = 1,
  kSplitK = 2,
  kReduction = 3,
  kSwizzle = 4,
  kCustom = 5,
  kStages = 6,
  kInnerShape = 7,
  kCluster = 8,
};

// Each returns a status, kSuccess or what went wrong. Matrices are column-major: D = op(A) B, strides in
// elements.
struct Functions {
  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*desc_create)(MatmulDesc*, int compute_type, DataType scale_type);
  int (*desc_destroy)(MatmulDesc);
  int (*desc_set)(MatmulDesc, DescAttribute, const void* value, std::size_t bytes);
  int (*layout_create)(MatrixLayout*, DataType, std::uint64_t rows, std::uint64_t cols, std::int64_t stride);
  int (*layout_destroy)(MatrixLayout);
  int (*preference_create)(Preference*);
  int (*preference_destroy)(Preference);
  int (*preference_set)(Preference, PreferenceAttribute, const void* value, std::size_t bytes);
  int (*heuristic)(Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
                   Preference, int wanted, HeuristicResult* results, int* found);
  int (*check)(Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
               const Algorithm*, HeuristicResult* result);
  int (*algorithm_get)(const Algorithm*, AlgorithmAttribute, void* value, std::size_t bytes,
                       std::size_t* written);
  int (*matmul)(Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout a_layout, const void* b,
                MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, void* d,
                MatrixLayout d_layout, const Algorithm*, void* workspace, std::size_t workspace_bytes,
                void* stream);
  std::size_t (*version)();
};

struct Library {
  const Functions* functions = nullptr;  // null: not there; valid for the rest of the process
  std::string reason;                    // why not, with the names that were tried
  bool is_wanted = true;
};

// Opens `name`; a plain file name that is not found is tried as libcublasLt.so.13, .12 and without a version
// too. Empty: it is not wanted.
[[nodiscard]] Library open_library(const std::string& name);

// Throws DeviceError naming `call` unless `status` is kSuccess.
void check_status(int status, const char* call);

}  // namespace metrale::kernels::cublaslt
