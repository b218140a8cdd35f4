// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/kv/kv_config.h>

namespace metrale::kv {
namespace {

void validate_dims(const KvLayerDims& dims, std::string_view what) {
  if (dims.num_kv_heads == 0) throw InvalidArgument(fmt::format("{}: num_kv_heads is 0", what));
  if (dims.head_dim == 0 || dims.head_dim > 512) {
    throw InvalidArgument(fmt::format("{}: head_dim {} is outside 1..512", what, dims.head_dim));
  }
}

}  // namespace

void KvCacheConfig::validate() const {
  if (block_size != 16 && block_size != 32 && block_size != 64 && block_size != 128) {
    throw InvalidArgument(fmt::format("block_size {} is none of 16, 32, 64, 128", block_size));
  }
  if (num_layers == 0) throw InvalidArgument("a KV cache needs at least one layer");
  if (num_layers > 65'535) throw InvalidArgument(fmt::format("{} layers are more than 65535", num_layers));
  validate_dims(dims, "KV cache");
  for (const KvLayerDims& layer : layer_dims) validate_dims(layer, "KV cache layer");
  if (layer_dims.size() > num_layers || layer_dtypes.size() > num_layers) {
    throw InvalidArgument(fmt::format("overrides for more layers than the cache has ({})", num_layers));
  }
  if (cache_blocks_per_seq && *cache_blocks_per_seq == 0) throw InvalidArgument("cache_blocks_per_seq is 0");
}

quant::KvDtype KvCacheConfig::dtype_for_layer(LayerId layer) const {
  return layer.value() < layer_dtypes.size() ? layer_dtypes[layer.value()] : dtype;
}

KvLayerDims KvCacheConfig::dims_for_layer(LayerId layer) const {
  return layer.value() < layer_dims.size() ? layer_dims[layer.value()] : dims;
}

std::uint64_t KvCacheConfig::k_block_bytes_for_layer(LayerId layer) const {
  const KvLayerDims d = dims_for_layer(layer);
  return quant::kv_side_bytes(dtype_for_layer(layer).k, block_size, d.num_kv_heads, d.head_dim);
}

std::uint64_t KvCacheConfig::v_block_bytes_for_layer(LayerId layer) const {
  const KvLayerDims d = dims_for_layer(layer);
  return quant::kv_side_bytes(dtype_for_layer(layer).v, block_size, d.num_kv_heads, d.head_dim);
}

std::uint64_t KvCacheConfig::block_bytes() const {
  return quant::kv_side_bytes(dtype.k, block_size, dims.num_kv_heads, dims.head_dim);
}

std::uint64_t KvCacheConfig::block_bytes_kv() const {
  return block_bytes() + quant::kv_side_bytes(dtype.v, block_size, dims.num_kv_heads, dims.head_dim);
}

std::uint64_t KvCacheConfig::cache_stride_elements() const {
  return std::uint64_t{block_size} * dims.num_kv_heads * dims.head_dim;
}

std::uint64_t KvCacheConfig::data_bytes(quant::KvFormat format) const {
  return std::uint64_t{block_size} * dims.num_kv_heads * quant::kv_row_bytes(format, dims.head_dim);
}

std::uint64_t KvCacheConfig::scale_bytes(quant::KvFormat format) const {
  return std::uint64_t{block_size} * dims.num_kv_heads * quant::kv_header_bytes(format, dims.head_dim);
}

std::uint64_t KvCacheConfig::block_bytes_kv_all_layers() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < num_layers; ++i) {
    const LayerId layer(static_cast<LayerId::Value>(i));
    bytes = checked_add(bytes, k_block_bytes_for_layer(layer), v_block_bytes_for_layer(layer));
  }
  return bytes;
}

std::uint64_t KvCacheConfig::bytes_per_token() const {
  return block_bytes_kv_all_layers() / block_size;
}

}  // namespace metrale::kv
