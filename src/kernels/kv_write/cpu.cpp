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

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// One head's vector of one token. T is how the format stores an element.
template <class T>
void write_as(quant::ElementType type, const std::byte* src, std::size_t head_dim, std::byte* dst) {
  constexpr std::size_t kChunk = 256;
  alignas(64) float x[kChunk];
  for (std::size_t at = 0; at < head_dim; at += kChunk) {
    const std::size_t count = head_dim - at < kChunk ? head_dim - at : kChunk;
    widen(type, src + at * quant::element_bytes(type), count, x);
    narrow_as(x, count, reinterpret_cast<T*>(dst) + at);
  }
}

void write_vector(quant::ElementType type, const std::byte* src, std::size_t head_dim, quant::KvFormat format,
                  std::byte* dst) {
  if (format == quant::KvFormat::kBf16) {
    write_as<hwy::bfloat16_t>(type, src, head_dim, dst);
  } else {
    write_as<float>(type, src, head_dim, dst);
  }
}

// Writes the rows [begin, end) of one side.
void write_side(const KvWriteArgs& a, std::uint64_t from, std::uint64_t pool, quant::KvFormat format,
                std::size_t begin, std::size_t end) {
  const auto* slots = host_ptr<const std::int64_t>(a.slots);
  const std::size_t bytes = quant::element_bytes(a.type);
  const std::uint64_t side_bytes = quant::kv_side_bytes(format, a.block_size, a.num_kv_heads, a.head_dim);
  for (std::size_t row = begin; row < end; ++row) {
    if (slots[row] < 0) continue;
    const auto slot = static_cast<std::uint64_t>(slots[row]);
    std::byte* side = host_ptr<std::byte>(pool) + slot / a.block_size * side_bytes;
    const auto* src = host_ptr<const std::byte>(from) + row * a.stride * bytes;
    for (std::size_t head = 0; head < a.num_kv_heads; ++head) {
      write_vector(
          a.type, src + head * a.head_dim * bytes, a.head_dim, format,
          side + quant::kv_codes_offset(format, a.block_size, a.head_dim, head, slot % a.block_size));
    }
  }
}

void kv_write_rows(const KvWriteArgs& a, std::size_t begin, std::size_t end) {
  write_side(a, a.k, a.k_pool, a.k_format, begin, end);
  write_side(a, a.v, a.v_pool, a.v_format, begin, end);
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
  const std::size_t width = std::size_t{2} * args.num_kv_heads * args.head_dim;
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
