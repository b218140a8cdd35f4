// SPDX-License-Identifier: Apache-2.0
#include "gpu/mock/mock_memory.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

#include <fmt/format.h>

#include <metrale/base/checked.h>

namespace metrale::gpu {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr int kPoison = 0xFF;
constexpr std::size_t kMaxPoisonBytes = std::size_t{1} << 20;
constexpr std::uint8_t kRedZone = 0xA5;

}  // namespace

LazyBytes::LazyBytes(std::size_t bytes) : bytes_(bytes) {
  void* const mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory("host", bytes, 0, "for the mock's device memory");
  data_ = static_cast<std::byte*>(mapped);
}

LazyBytes::~LazyBytes() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

DevicePtr MockMemory::alloc(MockMemoryKind kind, std::size_t bytes, CallSite site) {
  const bool pinned = kind == MockMemoryKind::kPinned;
  if (!pinned && (bytes > options_.max_alloc_bytes || bytes > free_bytes())) {
    throw OutOfMemory("device", bytes, free_bytes());
  }
  const std::uint64_t zone = kind == MockMemoryKind::kLedger ? options_.red_zone_bytes : 0;
  const std::uint64_t length = checked_add(bytes, zone);
  Block block{.base = DevicePtr(next_address_), .bytes = bytes, .kind = kind, .memory = LazyBytes(length)};
  if (!pinned) std::memset(block.memory.data(), kPoison, std::min(bytes, kMaxPoisonBytes));
  std::memset(block.memory.data() + bytes, kRedZone, zone);

  const DevicePtr base = block.base;
  blocks_.emplace(base.address(), std::move(block));
  // A gap follows every allocation: a pointer one past the end is in none.
  next_address_ += round_up(checked_add(length, kAlignment), kAlignment);
  if (!pinned) device_bytes_ += bytes;
  if (kind == MockMemoryKind::kLedger) ledger_.add(base, bytes, site);
  return base;
}

void MockMemory::free(MockMemoryKind kind, DevicePtr ptr) {
  const auto found = blocks_.find(ptr.address());
  if (found == blocks_.end() || found->second.kind != kind) {
    throw InvalidArgument(fmt::format(
        "free: {:#x} is not the base of a live allocation (freed twice, or never allocated here?)",
        ptr.address()));
  }
  if (kind != MockMemoryKind::kPinned) device_bytes_ -= found->second.bytes;
  if (kind == MockMemoryKind::kLedger) static_cast<void>(ledger_.remove(ptr));
  blocks_.erase(found);
}

std::span<std::byte> MockMemory::pinned_span(DevicePtr base) const {
  const Block& block = blocks_.at(base.address());
  return {block.memory.data(), block.bytes};
}

const MockMemory::Block* MockMemory::find_pinned(const std::byte* host) const {
  const auto address = reinterpret_cast<std::uintptr_t>(host);
  for (const auto& [base, block] : blocks_) {
    const auto first = reinterpret_cast<std::uintptr_t>(block.memory.data());
    if (block.kind == MockMemoryKind::kPinned && address - first < block.bytes) return &block;
  }
  throw InvalidArgument(fmt::format("{:#x} lies in no live pinned allocation of this backend", address));
}

DevicePtr MockMemory::address_of_pinned(const std::byte* host) const {
  const Block* const block = find_pinned(host);
  return block->base.offset(static_cast<std::uint64_t>(host - block->memory.data()));
}

DevicePtr MockMemory::base_of_pinned(const std::byte* host) const {
  const Block* const block = find_pinned(host);
  expects(block->memory.data() == host, "free_pinned: not the start of a pinned allocation");
  return block->base;
}

const MockMemory::Block* MockMemory::find(std::uint64_t address) const {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  const Block& block = std::prev(after)->second;
  return address - block.base.address() < block.bytes ? &block : nullptr;
}

DeviceRange MockMemory::allocation_of(DevicePtr ptr) const {
  const Block* const block = find(ptr.address());
  return block == nullptr ? DeviceRange{} : DeviceRange{block->base, block->bytes};
}

std::byte* MockMemory::range(DevicePtr ptr, std::uint64_t bytes, const char* what) const {
  const Block* const block = find(ptr.address());
  if (block == nullptr) {
    throw InvalidArgument(fmt::format("{}: {:#x} lies in no live allocation", what, ptr.address()));
  }
  const std::uint64_t offset = ptr.address() - block->base.address();
  if (bytes > block->bytes - offset) {
    throw InvalidArgument(fmt::format("{}: {} bytes from {:#x} on leave the allocation of {} bytes at {:#x}",
                                      what, bytes, ptr.address(), block->bytes, block->base.address()));
  }
  return block->memory.data() + offset;
}

std::span<std::byte> MockMemory::to_the_end(DevicePtr ptr) const {
  std::byte* const host = range(ptr, 1, "host_bytes");
  const Block* const block = find(ptr.address());
  const std::uint64_t zone = block->kind == MockMemoryKind::kLedger ? options_.red_zone_bytes : 0;
  return {host, block->memory.data() + block->bytes + zone};
}

std::uint64_t MockMemory::free_bytes() const {
  return options_.free_memory_bytes - std::min(options_.free_memory_bytes, device_bytes_);
}

std::size_t MockMemory::sweep() {
  const std::vector<AllocationInfo> entries = ledger_.entries();
  for (const AllocationInfo& info : entries) free(MockMemoryKind::kLedger, info.base);
  return entries.size();
}

std::span<std::byte> MockMemory::red_zone(const AllocationInfo& info) const {
  return {blocks_.at(info.base.address()).memory.data() + info.bytes, options_.red_zone_bytes};
}

std::vector<RedZoneHit> MockMemory::scan_red_zones() const {
  std::vector<RedZoneHit> hits;
  for (const AllocationInfo& info : ledger_.entries()) {
    const auto zone = red_zone(info);
    const auto bad =
        std::find_if(zone.begin(), zone.end(), [](std::byte b) { return b != std::byte{kRedZone}; });
    if (bad == zone.end()) continue;
    hits.push_back({.allocation = info,
                    .first_bad_offset = info.bytes + static_cast<std::uint64_t>(bad - zone.begin())});
  }
  return hits;
}

void MockMemory::poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  for (const AllocationInfo& info : ledger_.entries()) {
    if (info.id < first_id || info.id >= last_id) continue;
    const auto zone = red_zone(info);
    std::memset(zone.data(), kRedZone, zone.size());
  }
}

}  // namespace metrale::gpu
