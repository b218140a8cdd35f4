// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <limits>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/kv/paged_cache.h>

namespace metrale::kv {

PagedKvCache::PagedKvCache(const KvCacheConfig& config, std::uint32_t num_blocks, gpu::GpuBackend& gpu,
                           bool trace)
    : config_(config), num_blocks_(num_blocks), blocks_(0) {
  config_.validate();
  if (num_blocks == 0) throw InvalidArgument("a KV cache needs at least one block");
  const std::uint64_t wanted = checked_mul(config_.block_bytes_kv_all_layers(), num_blocks);
  const std::uint64_t free = gpu.free_memory_bytes();
  const auto too_large = [&](std::uint64_t free_bytes) {
    return OutOfMemory("KV cache", wanted, free_bytes,
                       fmt::format("{} blocks of {} tokens asked, {} would fit: lower --max-seq-len, "
                                   "--max-batch-size or --kv-blocks, or take a smaller --kv-dtype",
                                   num_blocks, config_.block_size, compute_num_blocks(config_, free_bytes)));
  };
  if (wanted > free) throw too_large(free);
  blocks_ = BlockPool(num_blocks, trace);
  pools_.reserve(config_.num_layers);
  try {
    for (std::uint32_t i = 0; i < config_.num_layers; ++i) {
      const LayerId layer(static_cast<LayerId::Value>(i));
      gpu::DeviceBuffer k(gpu, checked_mul(config_.k_block_bytes_for_layer(layer), num_blocks));
      gpu::DeviceBuffer v(gpu, checked_mul(config_.v_block_bytes_for_layer(layer), num_blocks));
      pools_.push_back({std::move(k), std::move(v)});
    }
  } catch (const OutOfMemory& error) {
    pools_.clear();
    throw too_large(std::max(error.free_bytes(), gpu.free_memory_bytes()));
  }
}

BlockId PagedKvCache::alloc_block(CallSite site) {
  if (const auto block = blocks_.try_alloc(site)) return *block;
  throw OutOfMemory("KV block", config_.block_bytes_kv_all_layers(), 0, "no free blocks");
}

std::optional<BlockId> PagedKvCache::try_alloc_block(CallSite site) {
  return blocks_.try_alloc(site);
}

void PagedKvCache::inc_ref(BlockId block, CallSite site) {
  blocks_.inc_ref(block, site);
}

bool PagedKvCache::dec_ref(BlockId block, CallSite site) {
  return blocks_.dec_ref(block, site);
}

void PagedKvCache::free_block(BlockId block, CallSite site) {
  blocks_.dec_ref(block, site);
}

void PagedKvCache::free_blocks(std::span<const BlockId> block_table, CallSite site) {
  std::exception_ptr first;
  for (const BlockId block : block_table) {
    try {
      blocks_.dec_ref(block, site);
    } catch (const InvalidArgument&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void PagedKvCache::return_evicted_block(BlockId block, CallSite site) {
  blocks_.dec_ref(block, site);
}

void PagedKvCache::fill_block(BlockId block, std::uint8_t value, gpu::GpuBackend& gpu,
                              gpu::StreamRef stream) {
  for (std::uint32_t i = 0; i < config_.num_layers; ++i) {
    const LayerId layer(static_cast<LayerId::Value>(i));
    gpu.memset_async(k_cache_ptr(layer, block), value, config_.k_block_bytes_for_layer(layer), stream);
    gpu.memset_async(v_cache_ptr(layer, block), value, config_.v_block_bytes_for_layer(layer), stream);
  }
}

void PagedKvCache::zero_block(BlockId block, gpu::GpuBackend& gpu, gpu::StreamRef stream) {
  fill_block(block, 0x00, gpu, stream);
}

void PagedKvCache::poison_block(BlockId block, gpu::GpuBackend& gpu, gpu::StreamRef stream) {
  fill_block(block, 0xFF, gpu, stream);
}

PagedKvCache::BlockBytes PagedKvCache::read_block(LayerId layer, BlockId block, gpu::GpuBackend& gpu) const {
  BlockBytes bytes;
  bytes.k.resize(config_.k_block_bytes_for_layer(layer));
  bytes.v.resize(config_.v_block_bytes_for_layer(layer));
  gpu.copy_d2h_blocking(bytes.k, k_cache_ptr(layer, block));
  gpu.copy_d2h_blocking(bytes.v, v_cache_ptr(layer, block));
  return bytes;
}

void PagedKvCache::write_block(LayerId layer, BlockId block, std::span<const std::byte> k,
                               std::span<const std::byte> v, gpu::GpuBackend& gpu) {
  const std::uint64_t k_bytes = config_.k_block_bytes_for_layer(layer);
  const std::uint64_t v_bytes = config_.v_block_bytes_for_layer(layer);
  if (k.size() > k_bytes || v.size() > v_bytes) {
    throw InvalidArgument(fmt::format("write_block of {} and {} bytes into sides of {} and {}", k.size(),
                                      v.size(), k_bytes, v_bytes));
  }
  const DevicePtr k_at = k_cache_ptr(layer, block);
  const DevicePtr v_at = v_cache_ptr(layer, block);
  if (!k.empty()) gpu.copy_h2d_blocking(k_at, k);
  if (!v.empty()) gpu.copy_h2d_blocking(v_at, v);
}

DevicePtr PagedKvCache::k_cache_ptr(LayerId layer, BlockId block) const {
  expect_block(block);
  return pools(layer).k.ptr().offset(config_.k_block_bytes_for_layer(layer) * block.value());
}

DevicePtr PagedKvCache::v_cache_ptr(LayerId layer, BlockId block) const {
  expect_block(block);
  return pools(layer).v.ptr().offset(config_.v_block_bytes_for_layer(layer) * block.value());
}

DevicePtr PagedKvCache::k_pool_ptr(LayerId layer) const {
  return pools(layer).k.ptr();
}

DevicePtr PagedKvCache::v_pool_ptr(LayerId layer) const {
  return pools(layer).v.ptr();
}

std::uint32_t PagedKvCache::compute_num_blocks(const KvCacheConfig& config, std::uint64_t available_bytes) {
  const std::uint64_t each = config.block_bytes_kv_all_layers();
  if (each == 0) throw InvalidArgument("a KV block of this configuration has no bytes");
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(available_bytes / each, std::numeric_limits<std::uint32_t>::max()));
}

const PagedKvCache::LayerPools& PagedKvCache::pools(LayerId layer) const {
  if (layer.value() >= pools_.size()) {
    throw InvalidArgument(fmt::format("KV layer {} of {}", layer.value(), pools_.size()));
  }
  return pools_[layer.value()];
}

void PagedKvCache::expect_block(BlockId block) const {
  if (block.value() >= num_blocks_) {
    throw InvalidArgument(fmt::format("KV block {} of {}", block.value(), num_blocks_));
  }
}

void PagedKvCache::do_release(gpu::GpuBackend&) {
  blocks_.clear();
  std::exception_ptr first;
  for (LayerPools& layer : pools_) {
    for (gpu::DeviceBuffer* buffer : {&layer.k, &layer.v}) {
      try {
        buffer->release();
      } catch (const Error&) {
        if (!first) first = std::current_exception();
      }
    }
  }
  pools_.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace metrale::kv
