// SPDX-License-Identifier: Apache-2.0
//
// The order of every output's sum: a row of weights is cut into pieces of 16 bytes, piece i belongs to lane i
// mod 32. A lane starts from zero and adds its products in the order of in_features, fused; lanes are then
// added as a tree, i with i + 16, + 8, + 4, + 2, + 1, and the bias comes last.
#include <metrale/kernels/linear.h>

#include "kernels/linear/cuda_tiles.h"
#include "kernels/math/device.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;
using namespace metrale::kernels::linear_cuda;

namespace {

struct F32 {
  static constexpr ElementType kType = ElementType::kF32;
  static constexpr std::uint32_t kPerWord = 1;
  __device__ static void widen(std::uint32_t word, float* x) { x[0] = __uint_as_float(word); }
};

struct Bf16 {
  static constexpr ElementType kType = ElementType::kBf16;
  static constexpr std::uint32_t kPerWord = 2;
  __device__ static void widen(std::uint32_t word, float* x) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xFFFF0000U);
  }
};

struct F16 {
  static constexpr ElementType kType = ElementType::kF16;
  static constexpr std::uint32_t kPerWord = 2;
  __device__ static void widen(std::uint32_t word, float* x) {
    asm("cvt.f32.f16 %0, %1;" : "=f"(x[0]) : "h"(static_cast<unsigned short>(word)));
    asm("cvt.f32.f16 %0, %1;" : "=f"(x[1]) : "h"(static_cast<unsigned short>(word >> 16)));
  }
};

// Elements of a piece of weights.
template <class Weight>
constexpr std::uint32_t kElems = 4 * Weight::kPerWord;

// The bytes of `Count` elements in the widest accesses that divide them.
template <class Type, std::uint32_t Count>
struct Packed {
  static constexpr std::uint32_t kWords = Count / Type::kPerWord;
  std::uint32_t word[kWords];

  __device__ __forceinline__ void load(const std::byte* from) {
    if constexpr (kWords == 2) {
      const uint2 w = __ldg(reinterpret_cast<const uint2*>(from));
      word[0] = w.x, word[1] = w.y;
    } else {
#pragma unroll
      for (std::uint32_t i = 0; i < kWords; i += 4) {
        const uint4 w = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
        word[i] = w.x, word[i + 1] = w.y, word[i + 2] = w.z, word[i + 3] = w.w;
      }
    }
  }
  __device__ __forceinline__ void widen(float (&x)[Count]) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kWords; ++i) Type::widen(word[i], x + i * Type::kPerWord);
  }
};

// The outputs [out, out + Outs) of the rows [row, row + Rows) of one warp. What lies past the last row or
// output repeats it and is not stored.
struct Tile {
  std::uint64_t out;
  std::uint64_t row;
  std::uint32_t rows;  // of the step

  __device__ __forceinline__ std::uint64_t clamped_row(std::uint32_t r) const {
    return row + r < rows ? row + r : rows - 1;
  }
  __device__ __forceinline__ std::uint64_t clamped_out(const LinearArgs& a, std::uint32_t c) const {
    return out + c < a.out_features ? out + c : a.out_features - 1;
  }
};

// sums[c * Rows + r] += this lane's products.
template <class Weight, class In, std::uint32_t Outs, std::uint32_t Rows>
__device__ __forceinline__ void add_pieces(const LinearArgs& a, const Tile& tile,
                                           float (&sums)[Outs * Rows]) {
  constexpr std::uint32_t kCount = kElems<Weight>;
  const std::byte* weight[Outs];
  const std::byte* in[Rows];
#pragma unroll
  for (std::uint32_t c = 0; c < Outs; ++c) {
    weight[c] = pointer<const std::byte>(a.weight + tile.clamped_out(a, c) * a.in_features *
                                                        metrale::quant::element_bytes(Weight::kType));
  }
#pragma unroll
  for (std::uint32_t r = 0; r < Rows; ++r) {
    in[r] = pointer<const std::byte>(a.in + tile.clamped_row(r) * a.in_stride *
                                                metrale::quant::element_bytes(In::kType));
  }
  const std::uint32_t pieces = a.in_features / kCount;
  constexpr std::uint64_t kInBytes = kCount * metrale::quant::element_bytes(In::kType);
#pragma unroll(Outs* Rows > 4 ? 1 : 4)
  for (std::uint32_t piece = threadIdx.x % kWarp; piece < pieces; piece += kWarp) {
    Packed<Weight, kCount> packed[Outs];
#pragma unroll
    for (std::uint32_t c = 0; c < Outs; ++c) packed[c].load(weight[c] + std::uint64_t{piece} * 16);
    float w[Outs][kCount];
#pragma unroll
    for (std::uint32_t c = 0; c < Outs; ++c) packed[c].widen(w[c]);
#pragma unroll
    for (std::uint32_t r = 0; r < Rows; ++r) {
      Packed<In, kCount> packed_in;
      packed_in.load(in[r] + piece * kInBytes);
      float x[kCount];
      packed_in.widen(x);
#pragma unroll
      for (std::uint32_t c = 0; c < Outs; ++c) {
#pragma unroll
        for (std::uint32_t k = 0; k < kCount; ++k) {
          sums[c * Rows + r] = fmaf(x[k], w[c][k], sums[c * Rows + r]);
        }
      }
    }
  }
}

// As add_pieces with one output, for any alignment and any in_features.
template <std::uint32_t Rows>
__device__ __forceinline__ void add_elements(const LinearArgs& a, const Tile& tile, float (&sums)[Rows]) {
  const std::uint32_t count = 16 / metrale::quant::element_bytes(a.weight_type);
  const std::uint64_t weight = tile.clamped_out(a, 0) * a.in_features;
  for (std::uint64_t begin = threadIdx.x % kWarp * count; begin < a.in_features; begin += kWarp * count) {
    const std::uint64_t end = min(begin + count, std::uint64_t{a.in_features});
    for (std::uint64_t k = begin; k < end; ++k) {
      const float w = load(a.weight_type, a.weight, weight + k);
#pragma unroll
      for (std::uint32_t r = 0; r < Rows; ++r) {
        sums[r] = fmaf(load(a.in_type, a.in, tile.clamped_row(r) * a.in_stride + k), w, sums[r]);
      }
    }
  }
}

// The sums of the lanes: the tree of warp_sum for each of Count values, a power of two up to 32, where each
// step halves the values that a lane still carries. Lane i gets value i / (32 / Count).
template <std::uint32_t Count, std::uint32_t Step = kWarp / 2, std::uint32_t Size>
__device__ __forceinline__ float sum_lanes(float (&sums)[Size]) {
  if constexpr (Step == 0) {
    return sums[0];
  } else if constexpr (Count == 1) {
    sums[0] += __shfl_xor_sync(kFullWarp, sums[0], Step);
    return sum_lanes<1, Step / 2>(sums);
  } else {
    constexpr std::uint32_t kHalf = Count / 2;
    const bool upper = (threadIdx.x & Step) != 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kHalf; ++i) {
      const float kept = upper ? sums[i + kHalf] : sums[i];
      const float given = upper ? sums[i] : sums[i + kHalf];
      sums[i] = kept + __shfl_xor_sync(kFullWarp, given, Step);
    }
    return sum_lanes<kHalf, Step / 2>(sums);
  }
}

template <std::uint32_t Outs, std::uint32_t Rows>
__device__ __forceinline__ void finish(const LinearArgs& a, const Tile& tile, float (&sums)[Outs * Rows]) {
  constexpr std::uint32_t kLanesEach = kWarp / (Outs * Rows);
  float sum = sum_lanes<Outs * Rows>(sums);
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint64_t out = tile.out + lane / kLanesEach / Rows;
  const std::uint64_t row = tile.row + lane / kLanesEach % Rows;
  if (lane % kLanesEach != 0 || out >= a.out_features || row >= tile.rows) return;
  if (a.bias != 0) sum += load(a.weight_type, a.bias, out);
  store(a.out_type, a.out, row * a.out_stride + out, sum);
}

template <class Weight, class In, std::uint32_t Outs, std::uint32_t Rows>
__device__ __forceinline__ void run_tile(const LinearArgs& a, const Tile& tile) {
  float sums[Outs * Rows] = {};
  add_pieces<Weight, In, Outs, Rows>(a, tile, sums);
  finish<Outs, Rows>(a, tile, sums);
}

template <std::uint32_t Rows>
__device__ __forceinline__ void run_elements(const LinearArgs& a, const Tile& tile) {
  float sums[Rows] = {};
  add_elements<Rows>(a, tile, sums);
  finish<1, Rows>(a, tile, sums);
}

// Whether every piece of weights and of activations can be read in whole accesses.
__device__ __forceinline__ bool whole_pieces(const LinearArgs& a) {
  const std::uint32_t count = 16 / metrale::quant::element_bytes(a.weight_type);
  const std::uint32_t in_bytes = metrale::quant::element_bytes(a.in_type);
  const std::uint32_t align = count * in_bytes < 16 ? 8 : 16;
  return a.in_features % count == 0 && a.weight % 16 == 0 && a.in % align == 0 &&
         std::uint64_t{a.in_stride} * in_bytes % align == 0;
}

// Calls `body(Weight(), In())` with the types of the arguments.
template <class Body>
__device__ __forceinline__ void with_types(const LinearArgs& a, const Body& body) {
  const auto with_weight = [&](auto weight) {
    if (a.in_type == ElementType::kF32) return body(weight, F32());
    if (a.in_type == ElementType::kBf16) return body(weight, Bf16());
    return body(weight, F16());
  };
  if (a.weight_type == ElementType::kF32) return with_weight(F32());
  if (a.weight_type == ElementType::kBf16) return with_weight(Bf16());
  return with_weight(F16());
}

}  // namespace

// A warp for each output; the weights are read once for every kFewRows rows.
extern "C" __global__ void __launch_bounds__(kFewThreads)
    linear_few_rows(const __grid_constant__ LinearArgs a) {
  const std::uint32_t rows = read_rows(a.rows, a.max_rows);
  Tile tile{.out = std::uint64_t{blockIdx.x} * kFewBlockOuts + threadIdx.x / kWarp, .row = 0, .rows = rows};
  if (tile.out >= a.out_features) return;
  const bool whole = whole_pieces(a);
  for (tile.row = std::uint64_t{blockIdx.y} * kFewRows; tile.row < rows;
       tile.row += std::uint64_t{gridDim.y} * kFewRows) {
    if (!whole) {
      run_elements<kFewRows>(a, tile);
      continue;
    }
    with_types(a, [&]<class Weight, class In>(Weight, In) {
      const std::uint64_t left = rows - tile.row;
      if (left == 1) return run_tile<Weight, In, 1, 1>(a, tile);
      if (left == 2) return run_tile<Weight, In, 1, 2>(a, tile);
      if (left <= 4) return run_tile<Weight, In, 1, 4>(a, tile);
      run_tile<Weight, In, 1, kFewRows>(a, tile);
    });
  }
}

// A warp for each kTileOuts outputs of kTileRows rows.
extern "C" __global__ void __launch_bounds__(kManyThreads)
    linear_many_rows(const __grid_constant__ LinearArgs a) {
  const std::uint32_t rows = read_rows(a.rows, a.max_rows);
  const std::uint32_t warp = threadIdx.x / kWarp;
  Tile tile{.out = std::uint64_t{blockIdx.x} * kManyBlockOuts + warp / kRowWarps * kTileOuts,
            .row = 0,
            .rows = rows};
  if (tile.out >= a.out_features) return;
  const bool whole = whole_pieces(a);
  for (tile.row = std::uint64_t{blockIdx.y} * kManyBlockRows + warp % kRowWarps * kTileRows; tile.row < rows;
       tile.row += std::uint64_t{gridDim.y} * kManyBlockRows) {
    if (whole) {
      with_types(a, [&]<class Weight, class In>(Weight, In) {
        run_tile<Weight, In, kTileOuts, kTileRows>(a, tile);
      });
      continue;
    }
    Tile single = tile;
    for (std::uint32_t c = 0; c < kTileOuts && tile.out + c < a.out_features; ++c) {
      single.out = tile.out + c;
      run_elements<kTileRows>(a, single);
    }
  }
}
