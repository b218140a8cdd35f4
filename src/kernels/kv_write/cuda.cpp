// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_write.h>

#include "kernels/cuda_checked.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/kv_write/args.h"

namespace metrale::kernels {
namespace {

void check(const KvWriteArgs& args) {
  check_kv_write(args);
  check_cuda_kv_format("kv_write", args.k_format);
  if (has_values(args)) check_cuda_kv_format("kv_write", args.v_format);
}

}  // namespace

void register_kv_write(gpu::CudaKernelTable& table) {
  table.add_module("kv_write", kv_write_images());
  add_checked<check>(table, kKvWrite);
}

}  // namespace metrale::kernels
