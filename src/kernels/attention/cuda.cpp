// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string_view>

#include <metrale/base/error.h>
#include <metrale/kernels/attention.h>

#include "kernels/attention/check.h"
#include "kernels/attention/cuda_geometry.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kStaticBytes = 2048;    // shared memory that the kernels declare themselves, at most
constexpr std::uint32_t kGenericPerSm = 4;      // blocks of the generic kernels
constexpr std::uint32_t kCombinePerSm = 16;     // blocks of the combine kernel
constexpr std::uint32_t kSplitPerSm = 2;        // blocks of the split kernels, by their registers
constexpr std::uint32_t kMaxPrefillPerSm = 2;   // blocks of the prefill kernels, by their registers
constexpr std::uint32_t kReservedBytes = 1024;  // shared memory that the system takes for each block

// A kernel with the shape of all its launches.
struct Launch {
  gpu::CudaFunction function;
  gpu::LaunchShape shape;
};

// The kernels of one size of head.
struct Pair {
  Launch split;
  Launch prefill;
};

class PagedAttention {
 public:
  explicit PagedAttention(gpu::CudaKernelContext& context)
      : device_(context.device()),
        tensor_{tensor_pair<64>(context, "attention_split_64", "attention_prefill_64"),
                tensor_pair<128>(context, "attention_split_128", "attention_prefill_128"),
                tensor_pair<256>(context, "attention_split_256", "attention_prefill_256")},
        generic_{generic(context, "attention_split_any"), generic(context, "attention_prefill_any")},
        combine_{context.function("attention", "attention_combine"),
                 {.grid = {device_.sm_count * kCombinePerSm}, .block = {kCombineThreads}}} {}

  void launch(gpu::CudaLaunch& to, const AttentionArgs& args) const {
    check_attention(args);
    check_cuda_kv_format("paged_attention", args.k_format);
    check_cuda_kv_format("paged_attention", args.v_format);
    if (args.max_tokens == 0 || args.max_seqs == 0 || args.num_q_heads == 0) return;
    Pair pair = choose(args);
    if (pair.split.function.function == generic_.split.function.function) {
      pair.split.shape.shared_bytes = generic_shared_bytes(args.head_dim);
      pair.prefill.shape.shared_bytes = generic_shared_bytes(args.head_dim);
    }
    const bool some_split = args.workspace != 0 && args.workspace_rows != 0;
    if (some_split) {
      to.kernel(pair.split.function, pair.split.shape, args);
      to.kernel(combine_.function, combine_.shape, args);
    }
    if (!some_split || args.max_tokens > args.workspace_rows) {
      to.kernel(pair.prefill.function, pair.prefill.shape, args);
    }
  }

 private:
  // As many warps as the device's shared memory holds, at most `most`.
  [[nodiscard]] std::uint32_t warps(std::uint32_t block_bytes, std::uint32_t warp_bytes,
                                    std::uint32_t most) const {
    const std::uint32_t taken = block_bytes + kStaticBytes;
    const std::uint32_t room = device_.max_shared_bytes > taken ? device_.max_shared_bytes - taken : 0;
    return std::clamp<std::uint32_t>(room / warp_bytes, 1, most);
  }
  // A block of `count` warps. `per_sm`: the most blocks that are worth having on one multiprocessor.
  [[nodiscard]] Launch tensor(gpu::CudaKernelContext& context, std::string_view symbol,
                              std::uint32_t block_bytes, std::uint32_t warp_bytes, std::uint32_t count,
                              std::uint32_t per_sm) const {
    const std::uint32_t bytes = block_bytes + count * warp_bytes;
    const std::uint32_t fit = device_.max_shared_bytes / (bytes + kStaticBytes + kReservedBytes);
    return {context.function("attention", symbol, bytes),
            {.grid = {device_.sm_count * std::clamp<std::uint32_t>(fit, 1, per_sm)},
             .block = {count * kWarp},
             .shared_bytes = bytes}};
  }
  template <std::uint32_t kDim>
  [[nodiscard]] Pair tensor_pair(gpu::CudaKernelContext& context, std::string_view split,
                                 std::string_view prefill) const {
    using Geometry = TensorGeometry<kDim>;
    // The warps of a split kernel share its parts evenly.
    static_assert(std::has_single_bit(kSplitParts));
    const std::uint32_t split_warps = std::bit_floor(warps(0, Geometry::kSplitWarpBytes, kSplitParts));
    const std::uint32_t prefill_warps =
        warps(Geometry::kPrefillBytes, Geometry::kPrefillWarpBytes, kMaxAttentionWarps);
    return {tensor(context, split, 0, Geometry::kSplitWarpBytes, split_warps, kSplitPerSm),
            tensor(context, prefill, Geometry::kPrefillBytes, Geometry::kPrefillWarpBytes, prefill_warps,
                   kDim <= 64 ? kMaxPrefillPerSm : 1)};
  }
  [[nodiscard]] Launch generic(gpu::CudaKernelContext& context, std::string_view symbol) const {
    return {context.function("attention", symbol, generic_shared_bytes(kAttentionMaxHeadDim)),
            {.grid = {device_.sm_count * kGenericPerSm}, .block = {kGenericRows * kWarp}}};
  }

  // By constants only, so that one model's rows always take the same path.
  [[nodiscard]] const Pair& choose(const AttentionArgs& a) const {
    const bool bf16 = a.type == quant::ElementType::kBf16 && a.k_format == quant::KvFormat::kBf16 &&
                      a.v_format == quant::KvFormat::kBf16;
    if (!bf16 || a.head_dim % 8 != 0 || a.head_dim > 256) return generic_;
    expects(a.k_pool % 16 == 0 && a.v_pool % 16 == 0,
            "paged_attention: the pools must start at a multiple of 16 bytes");
    return tensor_[a.head_dim <= 64 ? 0 : a.head_dim <= 128 ? 1 : 2];
  }

  const gpu::CudaDeviceFacts device_;
  const std::array<Pair, 3> tensor_;
  const Pair generic_;
  const Launch combine_;
};

}  // namespace

void register_attention(gpu::CudaKernelTable& table) {
  table.add_module("attention", attention_images());
  table.add_host(kPagedAttention,
                 [](gpu::CudaKernelContext& context) { return std::make_unique<PagedAttention>(context); });
}

}  // namespace metrale::kernels
