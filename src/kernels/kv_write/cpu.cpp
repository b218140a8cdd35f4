// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_write.h>

#include "kernels/host_args.h"
#include "kernels/kv_write/args.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_write/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/kv_write/encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// One side of a step, with the parameters of its heads.
template <KvSide kSide>
struct SideWriter {
  const KvWriteArgs& a;
  const std::byte* from;
  std::byte* pool;
  KvFormat format;
  const KvSideParams& params;

  // The vectors of rows [begin, end).
  void write(std::size_t begin, std::size_t end) const {
    const auto* slots = host_ptr<const std::int64_t>(a.slots);
    for (std::size_t row = begin; row < end; ++row) {
      if (slots[row] < 0) continue;
      for (std::size_t head = 0; head < a.num_kv_heads; ++head) {
        write_vector(row, head, static_cast<std::uint64_t>(slots[row]));
      }
    }
  }

 private:
  void write_vector(std::size_t row, std::size_t head, std::uint64_t slot) const {
    alignas(64) float x[quant::kKvMaxHeadDim] = {};
    const std::size_t bytes = quant::element_bytes(a.type);
    widen(a.type, from + (row * a.stride + head * a.head_dim) * bytes, a.head_dim, x);
    const auto of_head = [&](std::uint64_t array) {
      return array == 0 ? nullptr : host_ptr<const float>(array) + head * a.head_dim;
    };
    if (quant::kv_format_info(format).rotated) {
      rotate_vec(x, a.head_dim, of_head(params.diagonal), of_head(params.mean));
    }
    const float scale = params.scales == 0 ? 1.0F : host_ptr<const float>(params.scales)[head];
    std::byte* side =
        pool + slot / a.block_size * quant::kv_side_bytes(format, a.block_size, a.num_kv_heads, a.head_dim);
    const std::size_t token = slot % a.block_size;
    put_vector<kSide>(
        format,
        {.codes = {.stripe = side + quant::kv_codes_offset(format, a.block_size, a.head_dim, head, 0),
                   .head_dim = a.head_dim,
                   .token = token,
                   .row_bytes = quant::kv_row_bytes(format, a.head_dim)},
         .header = side + quant::kv_header_offset(format, a.block_size, a.head_dim, head, token)},
        scale, x);
  }
};

void kv_write_rows(const KvWriteArgs& a, std::size_t begin, std::size_t end) {
  SideWriter<KvSide::kKey>{a, host_ptr<const std::byte>(a.k), host_ptr<std::byte>(a.k_pool), a.k_format,
                           a.k_params}
      .write(begin, end);
  if (!has_values(a)) return;
  SideWriter<KvSide::kValue>{a, host_ptr<const std::byte>(a.v), host_ptr<std::byte>(a.v_pool), a.v_format,
                             a.v_params}
      .write(begin, end);
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(kv_write_rows);

void kv_write(ThreadPool& pool, const KvWriteArgs& args) {
  const std::uint32_t rows = read_rows("kv_write", args.rows, args.max_rows);
  check_kv_write(args);
  const auto* slots = host_ptr<const std::int64_t>(args.slots);
  const auto end_slot = static_cast<std::int64_t>(std::uint64_t{args.num_blocks} * args.block_size);
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (slots[row] >= end_slot) {
      throw InvalidArgument(
          fmt::format("kv_write: slot {} in row {} is beyond the pool of {} blocks of {} tokens", slots[row],
                      row, args.num_blocks, args.block_size));
    }
  }
  const std::size_t width = (has_values(args) ? std::size_t{2} : 1) * args.num_kv_heads * args.head_dim;
  pool.parallel_for(rows, row_grain(width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(kv_write_rows)(args, begin, end);
  });
}

}  // namespace

void register_kv_write(gpu::CpuKernelTable& table) {
  table.add<kv_write>(kKvWrite);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
