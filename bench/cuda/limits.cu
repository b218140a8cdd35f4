// SPDX-License-Identifier: Apache-2.0
// Kernels that measure the device itself. `read_all` reads `count` words of 16 bytes once, eight a thread at
// a time, and keeps each thread's sum in sums[gridDim.x * blockDim.x]; `nothing` does nothing.

constexpr int kLoads = 8;

extern "C" __global__ void __launch_bounds__(512)
    read_all(const uint4* data, unsigned long long count, unsigned int* sums) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  const unsigned long long thread = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned int sum = 0;
  unsigned long long at = thread;
  for (; at + (kLoads - 1) * step < count; at += kLoads * step) {
    uint4 words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) words[i] = __ldcs(data + at + i * step);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += words[i].x + words[i].y + words[i].z + words[i].w;
  }
  for (; at < count; at += step) {
    const uint4 word = __ldcs(data + at);
    sum += word.x + word.y + word.z + word.w;
  }
  sums[thread] = sum;
}

extern "C" __global__ void nothing(unsigned int*) {}
