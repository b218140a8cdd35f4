// SPDX-License-Identifier: Apache-2.0
// PagedKvCache: the K and V pools of every attention layer and the pool of block ids that index all of them.
// A block id names the same block in every layer. Formats and byte layout: metrale/quant/kv_format.h.
//
// Threads: one owner. Device calls take the backend that the cache was made with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <metrale/gpu/buffer.h>
#include <metrale/gpu/resource.h>
#include <metrale/kv/block_pool.h>
#include <metrale/kv/kv_config.h>

namespace metrale::kv {

class PagedKvCache final : public gpu::ModelResource {
 public:
  // Allocates num_blocks blocks in a K and a V pool a layer; all blocks start free. All or nothing: throws
  // OutOfMemory saying how many blocks would fit, InvalidArgument for a bad config. `trace` is BlockPool's.
  PagedKvCache(const KvCacheConfig& config, std::uint32_t num_blocks, gpu::GpuBackend& gpu,
               bool trace = false);

  // ---- blocks
  // ------------------------------------------------------------------------------------------------------ A
  // free block with one reference. Throws OutOfMemory when none is free (and always after release()).
  [[nodiscard]] BlockId alloc_block(CallSite site = CallSite::here());
  [[nodiscard]] std::optional<BlockId> try_alloc_block(CallSite site = CallSite::here());
  // Using a free block, or giving one back twice, throws InvalidArgument in every build.
  void inc_ref(BlockId block, CallSite site = CallSite::here());
  // True where the block is free now.
  bool dec_ref(BlockId block, CallSite site = CallSite::here());
  void free_block(BlockId block, CallSite site = CallSite::here());
  // Gives back every entry even where one fails; then throws the first failure.
  void free_blocks(std::span<const BlockId> block_table, CallSite site = CallSite::here());
  // Drops the prefix cache's own reference on a block that its eviction returned.
  void return_evicted_block(BlockId block, CallSite site = CallSite::here());
  [[nodiscard]] std::uint32_t ref_count(BlockId block) const { return blocks_.ref_count(block); }
  [[nodiscard]] std::uint32_t num_free_blocks() const { return blocks_.num_free(); }
  [[nodiscard]] std::vector<BlockEvent> block_history(BlockId block) const { return blocks_.history(block); }

  // ---- bytes
  // -------------------------------------------------------------------------------------------------------
  // Enqueued: K and V of the block in every layer become 0x00, or 0xFF, which is NaN in every format.
  void zero_block(BlockId block, gpu::GpuBackend& gpu, gpu::StreamRef stream);
  void poison_block(BlockId block, gpu::GpuBackend& gpu, gpu::StreamRef stream);
  struct BlockBytes {
    std::vector<std::byte> k;
    std::vector<std::byte> v;
  };
  // Blocking copies of one block of one layer. write_block copies the given bytes to the start of each side;
  // throws InvalidArgument where they are longer than it.
  [[nodiscard]] BlockBytes read_block(LayerId layer, BlockId block, gpu::GpuBackend& gpu) const;
  void write_block(LayerId layer, BlockId block, std::span<const std::byte> k, std::span<const std::byte> v,
                   gpu::GpuBackend& gpu);

  // ---- addresses and geometry
  // ---------------------------------------------------------------------------------------- Throw
  // InvalidArgument for an unknown layer or block.
  [[nodiscard]] DevicePtr k_cache_ptr(LayerId layer, BlockId block) const;
  [[nodiscard]] DevicePtr v_cache_ptr(LayerId layer, BlockId block) const;
  [[nodiscard]] DevicePtr k_pool_ptr(LayerId layer) const;
  [[nodiscard]] DevicePtr v_pool_ptr(LayerId layer) const;
  [[nodiscard]] const KvCacheConfig& config() const { return config_; }
  [[nodiscard]] std::uint32_t block_size() const { return config_.block_size; }
  [[nodiscard]] std::uint32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] std::uint32_t num_layers() const { return config_.num_layers; }
  [[nodiscard]] quant::KvDtype dtype() const { return config_.dtype; }
  [[nodiscard]] quant::KvDtype dtype_for_layer(LayerId layer) const { return config_.dtype_for_layer(layer); }
  // Elements of one side of a block, by the global dims.
  [[nodiscard]] std::uint64_t cache_stride() const { return config_.cache_stride_elements(); }
  [[nodiscard]] std::uint64_t block_stride_bytes() const { return config_.block_bytes(); }
  [[nodiscard]] std::uint64_t block_stride_bytes_for_layer(LayerId layer) const {
    return config_.k_block_bytes_for_layer(layer);
  }
  [[nodiscard]] std::uint64_t k_block_stride_bytes_for_layer(LayerId layer) const {
    return config_.k_block_bytes_for_layer(layer);
  }
  [[nodiscard]] std::uint64_t v_block_stride_bytes_for_layer(LayerId layer) const {
    return config_.v_block_bytes_for_layer(layer);
  }
  // Codes (and scales) of one side of a block in a named format, summed over heads, by the global dims.
  [[nodiscard]] std::uint64_t nvfp4_data_bytes() const { return config_.data_bytes(quant::KvFormat::kNvfp4); }
  [[nodiscard]] std::uint64_t turbo4_data_bytes() const {
    return config_.data_bytes(quant::KvFormat::kTurbo4);
  }
  [[nodiscard]] std::uint64_t turbo3_data_bytes() const {
    return config_.data_bytes(quant::KvFormat::kTurbo3);
  }
  [[nodiscard]] std::uint64_t turbo2_data_bytes() const {
    return config_.data_bytes(quant::KvFormat::kTurbo2);
  }
  [[nodiscard]] std::uint64_t turbo8_data_bytes() const {
    return config_.data_bytes(quant::KvFormat::kTurbo8);
  }
  [[nodiscard]] std::uint64_t turbo4_scale_bytes() const {
    return config_.scale_bytes(quant::KvFormat::kTurbo4);
  }

  // How many block indices fit in `available_bytes`. Throws InvalidArgument where a block has no bytes.
  [[nodiscard]] static std::uint32_t compute_num_blocks(const KvCacheConfig& config,
                                                        std::uint64_t available_bytes);

  // ---- diagnostics
  // -----------------------------------------------------------------------------------------------------
  // Sums over the decoded values of one side.
  struct Checksum {
    double sum = 0;
    double sum_of_squares = 0;
    double sum_of_abs = 0;
  };
  struct LayerChecksum {
    LayerId layer;
    Checksum prefix_k, prefix_v;  // blocks before the boundary
    Checksum suffix_k, suffix_v;  // the others
  };
  // Blocking: synchronises `stream`; logs and returns one line a layer, for the blocks before `boundary_idx`
  // and from it on. Layers whose format has no plain values (neither bf16 nor fp32) are left out, with a
  // warning.
  std::vector<LayerChecksum> debug_kv_checksum_per_layer(std::span<const BlockId> blocks,
                                                         std::size_t boundary_idx, gpu::GpuBackend& gpu,
                                                         gpu::StreamRef stream, std::string_view tag) const;
  struct BlockChecksum {
    BlockId block;
    Checksum k, v;
  };
  // Blocking: one line an entry of `blocks`, in order, for one layer: shows a wrong block-to-position
  // mapping.
  std::vector<BlockChecksum> debug_kv_per_block(LayerId layer, std::span<const BlockId> blocks,
                                                gpu::GpuBackend& gpu, gpu::StreamRef stream,
                                                std::string_view tag) const;

 private:
  struct LayerPools {
    gpu::DeviceBuffer k;
    gpu::DeviceBuffer v;
  };
  [[nodiscard]] std::string_view do_label() const override { return "paged KV cache"; }
  void do_release(gpu::GpuBackend& gpu) override;
  [[nodiscard]] const LayerPools& pools(LayerId layer) const;
  void expect_block(BlockId block) const;
  void fill_block(BlockId block, std::uint8_t value, gpu::GpuBackend& gpu, gpu::StreamRef stream);

  KvCacheConfig config_;
  std::uint32_t num_blocks_;
  BlockPool blocks_;
  std::vector<LayerPools> pools_;
};

}  // namespace metrale::kv
