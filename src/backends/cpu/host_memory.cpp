// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/host_memory.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>

#include "backends/cpu/checks.h"
#include "backends/cpu/host_info.h"
#include "backends/cpu/memory_block.h"

namespace metrale::backends::cpu {
namespace {

// All ones is NaN in every float format, and an index far out of range.
constexpr int kPoison = 0xFF;
constexpr std::size_t kPage = 4096;
constexpr std::uint8_t kRedZone = 0xA5;
// Beyond it poisoning would touch more pages than the check is worth.
constexpr std::uint64_t kMaxPoisonBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxQuarantineBytes = std::uint64_t{64} << 20;
// Reading the host's figures costs more than a small allocation.
constexpr std::uint64_t kHostFigureFrom = std::uint64_t{1} << 20;

std::byte* host(DevicePtr ptr) {
  return reinterpret_cast<std::byte*>(ptr.address());
}
DevicePtr device(const std::byte* host) {
  return DevicePtr(reinterpret_cast<std::uintptr_t>(host));
}

void release_pinned(const gpu::AllocationInfo& info) {
  release_block(host(info.base), round_up<std::uint64_t>(info.bytes, kPage));
}

}  // namespace

HostMemory::HostMemory(std::uint64_t max_bytes, std::uint64_t red_zone_bytes, const NumaPlacement& placement)
    : max_bytes_(max_bytes),
      available_at_start_(max_bytes != 0 ? max_bytes : host_memory_info().available_bytes),
      red_zone_bytes_(round_up<std::uint64_t>(red_zone_bytes, 64)),
      placement_(placement) {}

HostMemory::~HostMemory() {
  for (const gpu::AllocationInfo& info : book_.arena.entries()) release(info, 0);
  for (const gpu::AllocationInfo& info : book_.pinned.entries()) release_pinned(info);
  for (const Quarantined& freed : quarantine_) release_block(freed.block, freed.bytes);
}

// ---- allocation

std::byte* HostMemory::acquire(std::size_t bytes, std::size_t padding) {
  std::uint64_t available = 0;
  {
    const std::scoped_lock lock(budget_mutex_);
    available = unpromised_bytes();
    if (max_bytes_ == 0 && bytes >= kHostFigureFrom) {
      available = std::min(available, host_memory_info().available_bytes);
    }
    if (bytes <= available) in_use_bytes_ += bytes;
  }
  if (bytes <= available) {
    const std::size_t padded = try_add(bytes, padding).value_or(0);  // 0: more than there can be
    std::byte* const block = padded != 0 ? acquire_block(padded) : nullptr;
    const bool placed = block != nullptr && placement_.place(block, padded);
    if (block != nullptr && !placed) release_block(block, padded);
    if (placed) {
      if constexpr (kChecks) std::memset(block, kPoison, std::min<std::uint64_t>(bytes, kMaxPoisonBytes));
      return block;
    }
    refund(bytes);
  }
  throw OutOfMemory("device", bytes, free_bytes(),
                    max_bytes_ != 0 ? fmt::format("the CPU backend may use {} bytes", max_bytes_)
                                    : "the CPU backend shares the host's memory");
}

void HostMemory::refund(std::uint64_t bytes) {
  const std::scoped_lock lock(budget_mutex_);
  in_use_bytes_ -= bytes;
}

void HostMemory::release(const gpu::AllocationInfo& info, std::uint64_t padding) {
  refund(info.bytes);
  if constexpr (kChecks && !kAddressSanitizer) {
    quarantine(host(info.base), info.bytes + padding);
  } else {
    release_block(host(info.base), info.bytes + padding);
  }
}

void HostMemory::quarantine(std::byte* block, std::size_t bytes) {
  if (bytes > kMaxQuarantineBytes) return release_block(block, bytes);
  std::memset(block, kPoison, bytes);
  const std::scoped_lock lock(quarantine_mutex_);
  quarantine_.push_back({.block = block, .bytes = bytes});
  quarantined_bytes_ += bytes;
  while (quarantined_bytes_ > kMaxQuarantineBytes) {
    const Quarantined oldest = quarantine_.front();
    quarantine_.pop_front();
    quarantined_bytes_ -= oldest.bytes;
    release_block(oldest.block, oldest.bytes);
  }
}

DevicePtr HostMemory::alloc(std::size_t bytes, CallSite site) {
  std::byte* const block = acquire(bytes, red_zone_bytes_);
  std::memset(block + bytes, kRedZone, red_zone_bytes_);
  book_.device.add(device(block), bytes, site);
  return device(block);
}

void HostMemory::free(DevicePtr ptr) {
  release(gpu::AllocationBook::remove(book_.device, ptr, "free"), red_zone_bytes_);
}

DevicePtr HostMemory::alloc_arena(std::size_t bytes) {
  std::byte* const block = acquire(bytes, 0);
  book_.arena.add(device(block), bytes, {"weight arena", 0});
  return device(block);
}

void HostMemory::free_arena(DevicePtr ptr) {
  release(gpu::AllocationBook::remove(book_.arena, ptr, "free_arena"), 0);
}

std::span<std::byte> HostMemory::alloc_pinned(std::size_t bytes) {
  const bool fits = try_add(bytes, kPage).has_value();
  std::byte* const block = fits ? acquire_block(round_up(bytes, kPage)) : nullptr;
  if (block == nullptr) throw OutOfMemory("pinned", bytes, host_memory_info().available_bytes);
  std::memset(block, 0, bytes);
  book_.pinned.add(device(block), bytes, {"pinned memory", 0});
  return {block, bytes};
}

void HostMemory::free_pinned(std::span<std::byte> memory) {
  release_pinned(gpu::AllocationBook::remove(book_.pinned, device(memory.data()), "free_pinned"));
}

DevicePtr HostMemory::device_address_of_pinned(const std::byte* host) const {
  if (!book_.pinned.containing(device(host).address())) {
    throw InvalidArgument(
        fmt::format("{:#x} lies in no live pinned allocation of this backend", device(host).address()));
  }
  return device(host);
}

std::uint64_t HostMemory::total_bytes() const {
  return max_bytes_ != 0 ? max_bytes_ : host_memory_info().total_bytes;
}

// Memory that nobody has touched yet still counts as available to the host: what was promised is taken off
// here.
std::uint64_t HostMemory::unpromised_bytes() const {
  return available_at_start_ - std::min(available_at_start_, in_use_bytes_);
}

std::uint64_t HostMemory::free_bytes() const {
  const std::uint64_t host = max_bytes_ == 0 ? host_memory_info().available_bytes : max_bytes_;
  const std::scoped_lock lock(budget_mutex_);
  return std::min(host, unpromised_bytes());
}

std::size_t HostMemory::sweep() {
  std::size_t count = 0;
  for (const gpu::AllocationInfo& info : book_.device.entries()) {
    free(info.base);
    ++count;
  }
  return count;
}

// ---- red zones

std::vector<gpu::RedZoneHit> HostMemory::scan_red_zones() const {
  std::vector<gpu::RedZoneHit> hits;
  for (const gpu::AllocationInfo& info : book_.device.entries()) {
    const std::span<const std::byte> zone(host(info.base) + info.bytes, red_zone_bytes_);
    const auto bad =
        std::find_if(zone.begin(), zone.end(), [](std::byte b) { return b != std::byte{kRedZone}; });
    if (bad == zone.end()) continue;
    hits.push_back({.allocation = info,
                    .first_bad_offset = info.bytes + static_cast<std::uint64_t>(bad - zone.begin())});
  }
  return hits;
}

void HostMemory::poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  for (const gpu::AllocationInfo& info : book_.device.entries()) {
    if (info.id < first_id || info.id >= last_id) continue;
    std::memset(host(info.base) + info.bytes, kRedZone, red_zone_bytes_);
  }
}

// ---- look-up

std::byte* HostMemory::range(DevicePtr ptr, std::uint64_t bytes, const char* what) const {
  book_.expect_range(ptr, bytes, what);
  return host(ptr);
}

}  // namespace metrale::backends::cpu
