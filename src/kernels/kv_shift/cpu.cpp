// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_shift.h>

#include "kernels/host_args.h"
#include "kernels/kv_shift/args.h"
#include "kernels/kv_shift/turn.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_shift/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention/decode-inl.h"
#include "kernels/kv_write/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// As the rope kernel turns them.
void turn_pairs(float* x, std::size_t half, const Turn& turn) {
  float* y = x + half;
  std::size_t i = 0;
  for (; i + kVec <= half; i += kVec) {
    const FloatVec vx = load_vec(x + i);
    const FloatVec vy = load_vec(y + i);
    const FloatVec vc = load_vec(turn.cosines + i);
    const FloatVec vs = load_vec(turn.sines + i);
    store_vec(hn::NegMulAdd(vy, vs, hn::Mul(vx, vc)), x + i);
    store_vec(hn::MulAdd(vx, vs, hn::Mul(vy, vc)), y + i);
  }
  for (; i < half; ++i) {
    const float turned = __builtin_fmaf(-y[i], turn.sines[i], x[i] * turn.cosines[i]);
    y[i] = __builtin_fmaf(x[i], turn.sines[i], y[i] * turn.cosines[i]);
    x[i] = turned;
  }
}

void shift_vector(const KvShiftArgs& a, const Turn& turn, std::uint64_t slot, std::size_t head) {
  const auto of_head = [&](std::uint64_t array) {
    return array == 0 ? nullptr : host_ptr<const float>(array) + head * a.head_dim;
  };
  const float* diagonal = of_head(a.k_params.diagonal);
  const float* mean = of_head(a.k_params.mean);
  const float scale = a.k_params.scales == 0 ? 1.0F : host_ptr<const float>(a.k_params.scales)[head];
  const bool rotated = quant::kv_format_info(a.k_format).rotated;
  std::byte* side =
      host_ptr<std::byte>(a.k_pool) +
      slot / a.block_size * quant::kv_side_bytes(a.k_format, a.block_size, a.num_kv_heads, a.head_dim);
  const std::size_t token = slot % a.block_size;
  std::byte* stripe = side + quant::kv_codes_offset(a.k_format, a.block_size, a.head_dim, head, 0);
  std::byte* header = side + quant::kv_header_offset(a.k_format, a.block_size, a.head_dim, head, token);
  const std::size_t row_bytes = quant::kv_row_bytes(a.k_format, a.head_dim);

  alignas(64) float x[quant::kKvMaxHeadDim] = {};
  read_vector<KvSide::kKey>(
      a.k_format,
      {.stripe = stripe, .token = token, .row_bytes = row_bytes, .header = header, .head_dim = a.head_dim},
      scale, x);
  if (rotated) unrotate_vec(x, a.head_dim, diagonal, mean);
  turn_pairs(x, a.rotary_dim / 2, turn);
  if (rotated) rotate_vec(x, a.head_dim, diagonal, mean);
  put_vector<KvSide::kKey>(
      a.k_format,
      {.codes = {.stripe = stripe, .head_dim = a.head_dim, .token = token, .row_bytes = row_bytes},
       .header = header},
      scale, x);
}

void kv_shift_rows(const KvShiftArgs& a, std::size_t begin, std::size_t end) {
  const auto* slots = host_ptr<const std::int64_t>(a.slots);
  const auto* deltas = host_ptr<const std::int32_t>(a.deltas);
  Turn turn;
  for (std::size_t row = begin; row < end; ++row) {
    if (slots[row] < 0 || deltas[row] == 0) continue;
    turn.set(deltas[row], host_ptr<const float>(a.inv_freq), a.rotary_dim / 2);
    for (std::size_t head = 0; head < a.num_kv_heads; ++head) {
      shift_vector(a, turn, static_cast<std::uint64_t>(slots[row]), head);
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(kv_shift_rows);

void kv_shift(ThreadPool& pool, const KvShiftArgs& args) {
  const std::uint32_t rows = read_rows("kv_shift", args.rows, args.max_rows);
  check_kv_shift(args);
  const auto* slots = host_ptr<const std::int64_t>(args.slots);
  const auto end_slot = static_cast<std::int64_t>(std::uint64_t{args.num_blocks} * args.block_size);
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (slots[row] >= end_slot) {
      throw InvalidArgument(
          fmt::format("kv_shift: slot {} in row {} is beyond the pool of {} blocks of {} tokens", slots[row],
                      row, args.num_blocks, args.block_size));
    }
  }
  const std::size_t width = std::size_t{2} * args.num_kv_heads * args.head_dim;
  pool.parallel_for(rows, row_grain(width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(kv_shift_rows)(args, begin, end);
  });
}

}  // namespace

void register_kv_shift(gpu::CpuKernelTable& table) {
  table.add<kv_shift>(kKvShift);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
