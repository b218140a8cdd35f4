// SPDX-License-Identifier: Apache-2.0
// KvCacheConfig: what a paged KV cache holds, per attention layer, and every size that follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <metrale/base/ids.h>
#include <metrale/quant/kv_dtype.h>

namespace metrale::kv {

struct KvLayerDims {
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  friend bool operator==(const KvLayerDims&, const KvLayerDims&) = default;
};

struct KvCacheConfig {
  std::uint32_t block_size = 16;  // tokens a block: 16, 32, 64 or 128
  std::uint32_t num_layers = 0;   // attention layers only
  KvLayerDims dims;
  quant::KvDtype dtype;
  // Entry i overrides layer i; layers beyond the end take `dims` and `dtype`.
  std::vector<KvLayerDims> layer_dims;
  std::vector<quant::KvDtype> layer_dtypes;
  // At most so many device blocks a sequence (high-speed swap); none: as many as it needs.
  std::optional<std::uint32_t> cache_blocks_per_seq;

  // Throws InvalidArgument naming the field.
  void validate() const;

  [[nodiscard]] quant::KvDtype dtype_for_layer(LayerId layer) const;
  [[nodiscard]] KvLayerDims dims_for_layer(LayerId layer) const;
  // Bytes of one side of one block of this layer, by its own dims and format.
  [[nodiscard]] std::uint64_t k_block_bytes_for_layer(LayerId layer) const;
  [[nodiscard]] std::uint64_t v_block_bytes_for_layer(LayerId layer) const;

  // From the global dims and dtype, whatever single layers override: the K side of a block, …
  [[nodiscard]] std::uint64_t block_bytes() const;
  // … both sides, …
  [[nodiscard]] std::uint64_t block_bytes_kv() const;
  // … and the elements of one side.
  [[nodiscard]] std::uint64_t cache_stride_elements() const;
  // Codes and headers of one side of a block in any format, by the global dims.
  [[nodiscard]] std::uint64_t data_bytes(quant::KvFormat format) const;
  [[nodiscard]] std::uint64_t scale_bytes(quant::KvFormat format) const;

  // The true bytes of one block index: K and V of every layer.
  [[nodiscard]] std::uint64_t block_bytes_kv_all_layers() const;
  [[nodiscard]] std::uint64_t bytes_per_token() const;
};

}  // namespace metrale::kv
