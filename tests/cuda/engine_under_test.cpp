// SPDX-License-Identifier: Apache-2.0
// The engine's own tests (requests, exactness, golden logits) on a CUDA device.
#include "cuda/support/devices.h"
#include "engine/model/harness.h"

namespace metrale::test {

std::unique_ptr<gpu::GpuBackend> make_backend(unsigned, std::uint64_t max_memory_bytes) {
  runtime::BackendOptions options = cuda_options();
  options.max_memory_bytes = max_memory_bytes;
  return runtime::open_backend(options);
}

bool serves_every_kv_format() {
  return false;
}

}  // namespace metrale::test
