// SPDX-License-Identifier: Apache-2.0
// The device bodies of the conformance suite's kernels.
#include "conformance/test_kernels_args.h"
#include "kernels/math/device.cuh"

using namespace metrale::testing_kernels;
using metrale::kernels::device::pointer;

namespace {

__device__ void wait_until_raised(std::uint64_t flag) {
  const volatile std::uint32_t* raised = pointer<const volatile std::uint32_t>(flag);
  while (*raised == 0) __nanosleep(100);
  __threadfence_system();
}

}  // namespace

extern "C" __global__ void scale(const __grid_constant__ ScaleArgs a) {
  for (std::uint32_t i = threadIdx.x; i < a.count; i += blockDim.x) pointer<float>(a.data)[i] *= a.factor;
}

extern "C" __global__ void add_from_device_counter(const __grid_constant__ AddArgs a) {
  const std::uint32_t count = *pointer<const std::uint32_t>(a.count);
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    pointer<float>(a.data)[i] += static_cast<float>(a.value);
  }
}

extern "C" __global__ void fill(const __grid_constant__ FillArgs a) {
  for (std::uint32_t i = threadIdx.x; i < a.count; i += blockDim.x) {
    pointer<std::uint8_t>(a.address)[i] = static_cast<std::uint8_t>(a.value);
  }
}

extern "C" __global__ void append(const __grid_constant__ AppendArgs a) {
  if (threadIdx.x == 0) *pointer<std::uint64_t>(a.value) = *pointer<std::uint64_t>(a.value) * 31 + a.number;
}

extern "C" __global__ void wait_on_flag(const __grid_constant__ WaitOnFlagArgs a) {
  if (threadIdx.x == 0) wait_until_raised(a.flag);
}

extern "C" __global__ void meet(const __grid_constant__ MeetArgs a) {
  if (threadIdx.x != 0) return;
  *pointer<volatile std::uint32_t>(a.mine) = 1;
  wait_until_raised(a.other);
}

extern "C" __global__ void fail(const __grid_constant__ FailArgs a) {
  if (threadIdx.x == 0) {
    metrale::kernels::device::report_fault(metrale::gpu::DeviceFaultCode::kAsked, 0,
                                           static_cast<std::int64_t>(a.code));
  }
}

// Loses the context: an address that nobody has.
extern "C" __global__ void write_nowhere(const __grid_constant__ EmptyArgs) {
  *pointer<volatile std::uint32_t>(0x10) = 1;
}

extern "C" __global__ void empty(const __grid_constant__ EmptyArgs) {}

// A kernel from outside, with a list of arguments, a variable of its module and dynamic shared memory.
extern "C" __device__ int foreign_offset;
extern "C" __device__ int foreign_offset = 3;
extern "C" __global__ void foreign_sum(int* out, const int* in, int count, unsigned char scale) {
  extern __shared__ int shared[];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    shared[i] = in[i] * scale;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = foreign_offset;
  for (int i = 0; i < count; ++i) sum += shared[i];
  *out = sum;
}
