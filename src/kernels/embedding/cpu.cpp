// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/embedding.h>

#include "kernels/host_args.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

void convert_row(const EmbeddingArgs& a, const std::byte* src, std::byte* dst) {
  constexpr std::size_t kChunk = 1024;
  alignas(64) float x[kChunk];
  const FloatVec scale = hn::Set(FloatTag(), a.scale);
  for (std::size_t at = 0; at < a.width; at += kChunk) {
    const std::size_t count = a.width - at < kChunk ? a.width - at : kChunk;
    widen(a.table_type, src + at * quant::element_bytes(a.table_type), count, x);
    // A product with one would still turn signalling NaN quiet.
    for (std::size_t i = 0; a.scale != 1.0F && i < count; i += kVec) {
      store_vec(hn::Mul(load_vec(x + i), scale), x + i);
    }
    narrow(a.out_type, x, count, dst + at * quant::element_bytes(a.out_type));
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(convert_row);

void embed_rows(const EmbeddingArgs& a, std::size_t begin, std::size_t end) {
  const auto* ids = host_ptr<const std::int32_t>(a.token_ids);
  const std::size_t table_row = std::size_t{a.width} * quant::element_bytes(a.table_type);
  const std::size_t out_row = std::size_t{a.width} * quant::element_bytes(a.out_type);
  for (std::size_t row = begin; row < end; ++row) {
    const auto* src = host_ptr<const std::byte>(a.table) + static_cast<std::size_t>(ids[row]) * table_row;
    auto* dst = host_ptr<std::byte>(a.out) + row * out_row;
    if (a.table_type == a.out_type && a.scale == 1.0F) {
      std::memcpy(dst, src, out_row);
    } else {
      HWY_DYNAMIC_DISPATCH(convert_row)(a, src, dst);
    }
  }
}

void embedding(ThreadPool& pool, const EmbeddingArgs& args) {
  const std::uint32_t rows = read_rows("embedding", args.rows, args.max_rows);
  check_type("embedding", args.table_type);
  check_type("embedding", args.out_type);
  const auto* ids = host_ptr<const std::int32_t>(args.token_ids);
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (ids[row] < 0 || static_cast<std::uint32_t>(ids[row]) >= args.vocab) {
      throw InvalidArgument(fmt::format("embedding: token id {} in row {} is outside the vocabulary of {}",
                                        ids[row], row, args.vocab));
    }
  }
  pool.parallel_for(rows, row_grain(args.width),
                    [&](std::size_t begin, std::size_t end) { embed_rows(args, begin, end); });
}

}  // namespace

void register_embedding(gpu::CpuKernelTable& table) {
  table.add<embedding>(kEmbedding);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
