// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>

#include "backends/cpu/host_info.h"

namespace metrale::backends::cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::uint8_t kRedZone = 0xA5;
constexpr std::size_t kLoggedFromBytes = std::size_t{32} << 20;

DevicePtr address_of(const void* host) {
  return DevicePtr(reinterpret_cast<std::uintptr_t>(host));
}

}  // namespace

CudaMemory::CudaMemory(const CudaHost& host, std::uint64_t max_bytes, std::uint64_t red_zone_bytes)
    : host_(host), max_bytes_(max_bytes), red_zone_bytes_(round_up<std::uint64_t>(red_zone_bytes, 64)) {
  host_.check(host_.driver().stream_create(&transfer_, kStreamNonBlocking), "cuStreamCreate");
}

CudaMemory::~CudaMemory() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  for (const gpu::AllocationInfo& info : book_.arena.entries()) {
    host_.tear_down([&] { return host_.driver().mem_free(info.base.address()); }, "cuMemFree");
  }
  for (const gpu::AllocationInfo& info : book_.pinned.entries()) {
    const PinnedBlock block = take_pinned(info.base);
    host_.tear_down([&] { return release(block); }, name_of_release(block.mapped_bytes));
  }
  host_.tear_down([&] { return host_.driver().stream_destroy(transfer_); }, "cuStreamDestroy");
}

// ---- allocation

std::uint64_t CudaMemory::budget_left() const {
  return max_bytes_ == 0 ? ~std::uint64_t{0} : max_bytes_ - std::min(max_bytes_, in_use_bytes_);
}

DevicePtr CudaMemory::acquire(std::size_t bytes, std::size_t padding) {
  {
    const std::scoped_lock lock(budget_mutex_);
    if (bytes > budget_left()) {
      throw OutOfMemory("device", bytes, budget_left(),
                        fmt::format("the CUDA backend may use {} bytes", max_bytes_));
    }
    in_use_bytes_ += bytes;
  }
  const auto padded = try_add(bytes, padding);
  DeviceAddress address = 0;
  const Result result = padded ? host_.driver().mem_alloc(&address, *padded) : kErrorOutOfMemory;
  if (result == kSuccess) {
    if (bytes >= kLoggedFromBytes) {
      log().debug("cuda:{}: {} bytes at {:#x}", host_.facts().ordinal, bytes, address);
    }
    return DevicePtr(address);
  }
  refund(bytes);
  if (result != kErrorOutOfMemory && result != kErrorInvalidValue) host_.fail(result, "cuMemAlloc");
  throw OutOfMemory("device", bytes, free_bytes(),
                    fmt::format("device {} has {} bytes in all", host_.facts().ordinal, host_.total_bytes()));
}

void CudaMemory::refund(std::uint64_t bytes) {
  const std::scoped_lock lock(budget_mutex_);
  in_use_bytes_ -= std::min(in_use_bytes_, bytes);
}

// The ledger has let go of it already: whatever the driver says, it is not freed again.
void CudaMemory::release(const gpu::AllocationInfo& info) {
  refund(info.bytes);
  if (host_.context_lost()) return;
  const Result result = host_.driver().mem_free(info.base.address());
  if (!is_harmless_at_teardown(result)) host_.fail(result, "cuMemFree");
}

void CudaMemory::give_back(DevicePtr base, std::size_t bytes) noexcept {
  refund(bytes);
  host_.tear_down([&] { return host_.driver().mem_free(base.address()); }, "cuMemFree");
}

DevicePtr CudaMemory::alloc(std::size_t bytes, CallSite site) {
  const DevicePtr base = acquire(bytes, red_zone_bytes_);
  try {
    if (red_zone_bytes_ != 0) fill_red_zone({.base = base, .bytes = bytes, .id = 0, .site = site});
    book_.device.add(base, bytes, site);
  } catch (...) {
    give_back(base, bytes);
    throw;
  }
  return base;
}

void CudaMemory::free(DevicePtr ptr) {
  release(gpu::AllocationBook::remove(book_.device, ptr, "free"));
}

DevicePtr CudaMemory::alloc_arena(std::size_t bytes) {
  const DevicePtr base = acquire(bytes, 0);
  try {
    book_.arena.add(base, bytes, {"weight arena", 0});
  } catch (...) {
    give_back(base, bytes);
    throw;
  }
  return base;
}

void CudaMemory::free_arena(DevicePtr ptr) {
  release(gpu::AllocationBook::remove(book_.arena, ptr, "free_arena"));
}

const char* CudaMemory::name_of_release(std::size_t mapped_bytes) {
  return mapped_bytes == 0 ? "cuMemFreeHost" : "cuMemHostUnregister";
}

// Large memory is a mapping of huge pages that the driver registers: it would fill and lock small ones, which
// takes several times as long and makes io_uring lock them one by one. Small memory is the driver's, which
// aligns to less than a page.
Result CudaMemory::acquire_pinned(std::size_t bytes, PinnedBlock& block) {
  constexpr unsigned kFlags = kHostPortable | kHostDeviceMap;
  if (bytes < kHugePage)
    return host_.driver().host_alloc(&block.start, round_up(bytes, kPage) + kPage, kFlags);
  const std::size_t mapped = round_up(bytes, kHugePage) + kHugePage;
  void* const start = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return kErrorOutOfMemory;
  auto* const aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage));
  // Only a wish: without it the pages are small.
  (void)::madvise(aligned, round_up(bytes, kHugePage), MADV_HUGEPAGE);
  const Result result = host_.driver().host_register(aligned, round_up(bytes, kPage), kFlags);
  if (result != kSuccess) {
    ::munmap(start, mapped);
    return result;
  }
  block = {start, mapped};
  return kSuccess;
}

Result CudaMemory::release(const PinnedBlock& block) {
  if (block.mapped_bytes == 0) return host_.context_lost() ? kSuccess : host_.driver().host_free(block.start);
  void* const aligned =
      reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(block.start), kHugePage));
  const Result result = host_.context_lost() ? kSuccess : host_.driver().host_unregister(aligned);
  ::munmap(block.start, block.mapped_bytes);
  return result;
}

std::span<std::byte> CudaMemory::alloc_pinned(std::size_t bytes) {
  PinnedBlock block;
  const Result result = try_add(bytes, 2 * kHugePage) ? acquire_pinned(bytes, block) : kErrorOutOfMemory;
  if (result != kSuccess) {
    if (means_context_lost(result))
      host_.fail(result, bytes < kHugePage ? "cuMemHostAlloc" : "cuMemHostRegister");
    throw OutOfMemory("pinned", bytes, cpu::host_memory_info().available_bytes,
                      host_.driver().describe(result));
  }
  const std::uint64_t unit = block.mapped_bytes == 0 ? kPage : kHugePage;
  const DevicePtr base(round_up<std::uint64_t>(address_of(block.start).address(), unit));
  auto* const memory = reinterpret_cast<std::byte*>(base.address());
  if (block.mapped_bytes == 0) std::memset(memory, 0, bytes);
  try {
    {
      const std::scoped_lock lock(pinned_mutex_);
      pinned_blocks_.emplace(base.address(), block);
    }
    book_.pinned.add(base, bytes, {"pinned memory", 0});
  } catch (...) {
    {
      const std::scoped_lock lock(pinned_mutex_);
      pinned_blocks_.erase(base.address());
    }
    host_.tear_down([&] { return release(block); }, name_of_release(block.mapped_bytes));
    throw;
  }
  return {memory, bytes};
}

CudaMemory::PinnedBlock CudaMemory::take_pinned(DevicePtr base) {
  const std::scoped_lock lock(pinned_mutex_);
  return pinned_blocks_.extract(base.address()).mapped();
}

void CudaMemory::free_pinned(std::span<std::byte> memory) {
  const DevicePtr base = address_of(memory.data());
  gpu::AllocationBook::remove(book_.pinned, base, "free_pinned");
  const PinnedBlock block = take_pinned(base);
  const Result result = release(block);
  if (!is_harmless_at_teardown(result)) host_.fail(result, name_of_release(block.mapped_bytes));
}

// Every device that this backend runs on has one address space with the host: pinned memory keeps its
// address.
DevicePtr CudaMemory::device_address_of_pinned(const std::byte* host) const {
  if (!book_.pinned.containing(address_of(host).address())) {
    throw InvalidArgument(
        fmt::format("{:#x} lies in no live pinned allocation of this backend", address_of(host).address()));
  }
  DeviceAddress address = 0;
  host_.check(host_.driver().host_device_pointer(&address, const_cast<std::byte*>(host), 0),
              "cuMemHostGetDevicePointer");
  return DevicePtr(address);
}

bool CudaMemory::is_pinned(const std::byte* host, std::size_t bytes) const {
  const std::uint64_t address = address_of(host).address();
  if (const auto own = book_.pinned.containing(address)) {
    return address + bytes <= own->base.address() + own->bytes;
  }
  const auto page_locked = [&](std::uint64_t at) {
    unsigned type = 0;
    const Result result = host_.driver().pointer_attribute(&type, kPointerMemoryType, at);
    // What the driver does not know is ordinary memory.
    if (result == kErrorInvalidValue) return false;
    host_.check(result, "cuPointerGetAttribute");
    return type == kMemoryTypeHost;
  };
  return page_locked(address) && page_locked(address + bytes - 1);
}

void CudaMemory::admit(const gpu::DeviceRange& range) {
  if (!book_.foreign.containing(range.ptr.address())) {
    book_.foreign.add(range.ptr, range.bytes, {"variable of a module", 0});
  }
}

std::uint64_t CudaMemory::total_bytes() const {
  return max_bytes_ != 0 ? max_bytes_ : host_.total_bytes();
}

std::uint64_t CudaMemory::free_bytes() const {
  std::uint64_t free = host_.free_bytes();
  // What the driver counts as free there leaves out what the host could give.
  if (host_.is_integrated()) free = std::max(free, cpu::host_memory_info().available_bytes);
  const std::scoped_lock lock(budget_mutex_);
  return std::min(free, budget_left());
}

std::size_t CudaMemory::sweep() {
  const std::vector<gpu::AllocationInfo> left = book_.device.entries();
  for (const gpu::AllocationInfo& info : left) {
    if (!book_.device.remove(info.base)) continue;
    refund(info.bytes);
    host_.tear_down([&] { return host_.driver().mem_free(info.base.address()); }, "cuMemFree");
  }
  return left.size();
}

// ---- red zones

void CudaMemory::fill_red_zone(const gpu::AllocationInfo& info) {
  host_.check(
      host_.driver().memset_async(info.base.address() + info.bytes, kRedZone, red_zone_bytes_, transfer_),
      "cuMemsetD8Async");
  host_.check(host_.driver().stream_synchronize(transfer_), "cuStreamSynchronize");
}

std::vector<gpu::RedZoneHit> CudaMemory::scan_red_zones() {
  std::vector<gpu::RedZoneHit> hits;
  std::vector<std::uint8_t> zone(red_zone_bytes_);
  for (const gpu::AllocationInfo& info : book_.device.entries()) {
    host_.check(
        host_.driver().copy_d2h_async(zone.data(), info.base.address() + info.bytes, zone.size(), transfer_),
        "cuMemcpyDtoHAsync");
    host_.check(host_.driver().stream_synchronize(transfer_), "cuStreamSynchronize");
    const auto bad = std::ranges::find_if(zone, [](std::uint8_t byte) { return byte != kRedZone; });
    if (bad == zone.end()) continue;
    hits.push_back({.allocation = info,
                    .first_bad_offset = info.bytes + static_cast<std::uint64_t>(bad - zone.begin())});
  }
  return hits;
}

void CudaMemory::poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  for (const gpu::AllocationInfo& info : book_.device.entries()) {
    if (info.id >= first_id && info.id < last_id) fill_red_zone(info);
  }
}

}  // namespace metrale::backends::cuda
