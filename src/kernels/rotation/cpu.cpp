// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rotation.h>

#include "kernels/register.h"
#include "kernels/rotation/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotation/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

void rotate_rows(const RotateHeadsArgs& a, std::size_t begin, std::size_t end) {
  alignas(64) float x[quant::kKvMaxHeadDim];
  const std::size_t bytes = quant::element_bytes(a.type);
  const std::size_t group = a.num_heads / a.num_kv_heads;
  for (std::size_t row = begin; row < end; ++row) {
    for (std::size_t head = 0; head < a.num_heads; ++head) {
      std::byte* data = host_ptr<std::byte>(a.data) + (row * a.stride + head * a.head_dim) * bytes;
      const float* diagonal =
          a.diagonal == 0 ? nullptr : host_ptr<const float>(a.diagonal) + head / group * a.head_dim;
      widen(a.type, data, a.head_dim, x);
      rotate_vec(x, a.head_dim, a.inverse != 0 ? nullptr : diagonal, nullptr);
      for (std::size_t i = 0; a.inverse != 0 && diagonal != nullptr && i < a.head_dim; i += kVec) {
        store_vec(hn::Mul(load_vec(x + i), load_vec(diagonal + i)), x + i);
      }
      narrow(a.type, x, a.head_dim, data);
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(rotate_rows);

void rotate_heads(ThreadPool& pool, const RotateHeadsArgs& args) {
  const std::uint32_t rows = read_rows("rotate_heads", args.rows, args.max_rows);
  check_rotate_heads(args);
  const std::size_t width = std::size_t{args.num_heads} * args.head_dim;
  pool.parallel_for(rows, row_grain(width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(rotate_rows)(args, begin, end);
  });
}

}  // namespace

void register_rotation(gpu::CpuKernelTable& table) {
  table.add<rotate_heads>(kRotateHeads);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
