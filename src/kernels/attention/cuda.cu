// SPDX-License-Identifier: Apache-2.0
// The kernels that the host body of paged_attention chooses from. Grids are fixed; blocks take their work
// from the lengths on the device.
#include "kernels/attention/cuda_combine.cuh"
#include "kernels/attention/cuda_generic.cuh"
#include "kernels/attention/cuda_prefill.cuh"
#include "kernels/attention/cuda_split.cuh"

using namespace metrale::kernels;

extern __shared__ __align__(128) std::byte attention_shared[];

extern "C" __global__ void __launch_bounds__(kSplitParts * 32, 2)
    attention_split_64(const __grid_constant__ AttentionArgs a) {
  device::split_kernel<64>(a, attention_shared);
}
extern "C" __global__ void __launch_bounds__(kSplitParts * 32, 2)
    attention_split_128(const __grid_constant__ AttentionArgs a) {
  device::split_kernel<128>(a, attention_shared);
}
extern "C" __global__ void __launch_bounds__(kSplitParts * 32, 2)
    attention_split_256(const __grid_constant__ AttentionArgs a) {
  device::split_kernel<256>(a, attention_shared);
}

extern "C" __global__ void __launch_bounds__(kMaxAttentionWarps * 32, 2)
    attention_prefill_64(const __grid_constant__ AttentionArgs a) {
  device::prefill_kernel<64>(a, attention_shared);
}
extern "C" __global__ void __launch_bounds__(kMaxAttentionWarps * 32)
    attention_prefill_128(const __grid_constant__ AttentionArgs a) {
  device::prefill_kernel<128>(a, attention_shared);
}
extern "C" __global__ void __launch_bounds__(kMaxAttentionWarps * 32)
    attention_prefill_256(const __grid_constant__ AttentionArgs a) {
  device::prefill_kernel<256>(a, attention_shared);
}

extern "C" __global__ void __launch_bounds__(kGenericRows * 32)
    attention_split_any(const __grid_constant__ AttentionArgs a) {
  device::generic_split_kernel(a, reinterpret_cast<float*>(attention_shared));
}
extern "C" __global__ void __launch_bounds__(kGenericRows * 32)
    attention_prefill_any(const __grid_constant__ AttentionArgs a) {
  device::generic_prefill_kernel(a, reinterpret_cast<float*>(attention_shared));
}

extern "C" __global__ void __launch_bounds__(kCombineThreads)
    attention_combine(const __grid_constant__ AttentionArgs a) {
  device::combine_kernel(a);
}
