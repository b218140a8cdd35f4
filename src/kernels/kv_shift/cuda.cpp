// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_shift.h>

#include "kernels/cuda_checked.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/kv_shift/args.h"

namespace metrale::kernels {
namespace {

void check(const KvShiftArgs& args) {
  check_kv_shift(args);
  check_cuda_kv_format("kv_shift", args.k_format);
}

}  // namespace

void register_kv_shift(gpu::CudaKernelTable& table) {
  table.add_module("kv_shift", kv_shift_images());
  add_checked<check>(table, kKvShift);
}

}  // namespace metrale::kernels
