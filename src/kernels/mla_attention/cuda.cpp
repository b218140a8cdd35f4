// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/mla_attention.h>

#include "kernels/cuda_checked.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/mla_attention/args.h"

namespace metrale::kernels {
namespace {

void check(const MlaAttentionArgs& args) {
  check_mla_attention(args);
  check_cuda_kv_format("mla_attention", args.latent_format);
  check_cuda_kv_format("mla_attention", args.rope_format);
}

}  // namespace

void register_mla_attention(gpu::CudaKernelTable& table) {
  table.add_module("mla_attention", mla_attention_images());
  add_checked<check>(table, kMlaAttention);
}

}  // namespace metrale::kernels
