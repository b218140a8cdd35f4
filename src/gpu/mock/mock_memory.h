// SPDX-License-Identifier: Apache-2.0
// MockMemory: an address space of its own over host memory. Addresses rise and are never used twice, so an
// address that died stays dead. The owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <metrale/gpu/ledger.h>
#include <metrale/gpu/mock.h>

namespace metrale::gpu {

// Anonymous pages, so that a mock of 120 GiB costs what is touched.
class LazyBytes {
 public:
  // Throws OutOfMemory.
  explicit LazyBytes(std::size_t bytes);
  ~LazyBytes();
  LazyBytes(LazyBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  LazyBytes& operator=(LazyBytes&&) = delete;
  LazyBytes(const LazyBytes&) = delete;
  LazyBytes& operator=(const LazyBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

enum class MockMemoryKind { kLedger, kArena, kPinned };

class MockMemory {
 public:
  explicit MockMemory(const MockOptions& options) : options_(options) {}

  [[nodiscard]] DevicePtr alloc(MockMemoryKind kind, std::size_t bytes, CallSite site);
  // Throws InvalidArgument where `ptr` is not the base of a live allocation of this kind.
  void free(MockMemoryKind kind, DevicePtr ptr);
  [[nodiscard]] std::span<std::byte> pinned_span(DevicePtr base) const;
  // The device address of a byte of pinned memory. Throws InvalidArgument.
  [[nodiscard]] DevicePtr address_of_pinned(const std::byte* host) const;
  // The base of the pinned allocation that begins at `host`. Throws InvalidArgument.
  [[nodiscard]] DevicePtr base_of_pinned(const std::byte* host) const;

  // Host bytes of a range inside one live allocation. Throws InvalidArgument naming `what`.
  [[nodiscard]] std::byte* range(DevicePtr ptr, std::uint64_t bytes, const char* what) const;
  // As GpuBackend::allocation_of.
  [[nodiscard]] DeviceRange allocation_of(DevicePtr ptr) const;
  [[nodiscard]] bool is_live(std::uint64_t address) const { return find(address) != nullptr; }
  [[nodiscard]] std::span<std::byte> to_the_end(DevicePtr ptr) const;

  [[nodiscard]] std::uint64_t free_bytes() const;
  [[nodiscard]] const AllocationLedger& ledger() const { return ledger_; }
  std::size_t sweep();
  [[nodiscard]] std::vector<RedZoneHit> scan_red_zones() const;
  void poison_red_zones(std::uint64_t first_id, std::uint64_t last_id);

 private:
  struct Block {
    DevicePtr base;
    std::size_t bytes = 0;
    MockMemoryKind kind = MockMemoryKind::kLedger;
    LazyBytes memory;
  };
  [[nodiscard]] const Block* find(std::uint64_t address) const;
  [[nodiscard]] const Block* find_pinned(const std::byte* host) const;
  [[nodiscard]] std::span<std::byte> red_zone(const AllocationInfo& info) const;

  const MockOptions options_;
  std::map<std::uint64_t, Block> blocks_;
  AllocationLedger ledger_;
  std::uint64_t next_address_ = 0x1000'0000;
  std::uint64_t device_bytes_ = 0;
};

}  // namespace metrale::gpu
