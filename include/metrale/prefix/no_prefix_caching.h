// SPDX-License-Identifier: Apache-2.0
// NoPrefixCaching: what stands where a PrefixCache is expected and prefix caching is off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <metrale/prefix/prefix_cache.h>

namespace metrale::prefix {

// The cache that is off: every lookup misses, every insert takes nothing.
class NoPrefixCaching final : public PrefixCache {
 public:
  explicit NoPrefixCaching(std::uint32_t block_size) : PrefixCache(block_size) {}

 private:
  [[nodiscard]] bool do_is_active() const override { return false; }
  [[nodiscard]] Match do_lookup(const PrefixKey&, std::span<const TokenId>, LookupKind) override {
    return {};
  }
  [[nodiscard]] std::size_t do_peek(const PrefixKey&, std::span<const TokenId>) const override { return 0; }
  [[nodiscard]] InsertAcquired do_insert(const PrefixKey&, std::span<const TokenId>, std::span<const BlockId>,
                                         Match*, const Retention&) override {
    return {};
  }
  [[nodiscard]] std::vector<BlockId> do_evict(std::size_t) override { return {}; }
  [[nodiscard]] std::size_t do_evictable_blocks() const override { return 0; }
  [[nodiscard]] std::size_t do_cached_blocks() const override { return 0; }
  [[nodiscard]] PrefixCounters do_counters() const override { return {}; }
  void do_pin(std::uint32_t) noexcept override {}
  void do_unpin(std::uint32_t) noexcept override {}
};

}  // namespace metrale::prefix
