// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include <metrale/base/log.h>
#include <metrale/kv/paged_cache.h>
#include <metrale/quant/float_convert.h>

namespace metrale::kv {
namespace {

using quant::KvFormat;

bool has_plain_values(KvFormat format) {
  return format == KvFormat::kBf16 || format == KvFormat::kFp32;
}

void add_values(PagedKvCache::Checksum& into, KvFormat format, std::span<const std::byte> bytes) {
  const std::size_t width = format == KvFormat::kFp32 ? 4 : 2;
  for (std::size_t at = 0; at + width <= bytes.size(); at += width) {
    float value = 0;
    if (format == KvFormat::kFp32) {
      std::memcpy(&value, &bytes[at], sizeof value);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes[at], sizeof bits);
      value = quant::bf16_to_float(bits);
    }
    into.sum += value;
    into.sum_of_squares += double{value} * value;
    into.sum_of_abs += std::fabs(value);
  }
}

}  // namespace

std::vector<PagedKvCache::LayerChecksum> PagedKvCache::debug_kv_checksum_per_layer(
    std::span<const BlockId> blocks, std::size_t boundary_idx, gpu::GpuBackend& gpu, gpu::StreamRef stream,
    std::string_view tag) const {
  gpu.synchronize(stream);
  std::vector<LayerChecksum> result;
  for (std::uint32_t i = 0; i < config_.num_layers; ++i) {
    const LayerId layer(static_cast<LayerId::Value>(i));
    const quant::KvDtype dtype = dtype_for_layer(layer);
    if (!has_plain_values(dtype.k) || !has_plain_values(dtype.v)) {
      log().warn("{}: layer {} is {}: no checksum", tag, i, quant::to_string(dtype));
      continue;
    }
    LayerChecksum line{.layer = layer, .prefix_k = {}, .prefix_v = {}, .suffix_k = {}, .suffix_v = {}};
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const BlockBytes bytes = read_block(layer, blocks[b], gpu);
      add_values(b < boundary_idx ? line.prefix_k : line.suffix_k, dtype.k, bytes.k);
      add_values(b < boundary_idx ? line.prefix_v : line.suffix_v, dtype.v, bytes.v);
    }
    log().info(
        "{}: layer {} prefix K {:.9g} {:.9g} {:.9g} V {:.9g} {:.9g} {:.9g} suffix K {:.9g} {:.9g} {:.9g} "
        "V {:.9g} {:.9g} {:.9g}",
        tag, i, line.prefix_k.sum, line.prefix_k.sum_of_squares, line.prefix_k.sum_of_abs, line.prefix_v.sum,
        line.prefix_v.sum_of_squares, line.prefix_v.sum_of_abs, line.suffix_k.sum,
        line.suffix_k.sum_of_squares, line.suffix_k.sum_of_abs, line.suffix_v.sum,
        line.suffix_v.sum_of_squares, line.suffix_v.sum_of_abs);
    result.push_back(line);
  }
  return result;
}

std::vector<PagedKvCache::BlockChecksum> PagedKvCache::debug_kv_per_block(LayerId layer,
                                                                          std::span<const BlockId> blocks,
                                                                          gpu::GpuBackend& gpu,
                                                                          gpu::StreamRef stream,
                                                                          std::string_view tag) const {
  gpu.synchronize(stream);
  std::vector<BlockChecksum> result;
  const quant::KvDtype dtype = dtype_for_layer(layer);
  if (!has_plain_values(dtype.k) || !has_plain_values(dtype.v)) return result;
  for (std::size_t logical = 0; logical < blocks.size(); ++logical) {
    const BlockBytes bytes = read_block(layer, blocks[logical], gpu);
    BlockChecksum line{.block = blocks[logical], .k = {}, .v = {}};
    add_values(line.k, dtype.k, bytes.k);
    add_values(line.v, dtype.v, bytes.v);
    log().info("{}: layer {} logical {} block {} K {:.9g} V {:.9g}", tag, layer.value(), logical,
               blocks[logical].value(), line.k.sum_of_squares, line.v.sum_of_squares);
    result.push_back(line);
  }
  return result;
}

}  // namespace metrale::kv
