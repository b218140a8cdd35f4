// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/memory_block.h"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

#include <metrale/base/checked.h>

namespace metrale::backends::cpu {
namespace {

constexpr std::size_t kMinAlignment = 256;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* map_huge(std::size_t bytes) noexcept {
  const auto padded = try_add(bytes, 2 * kHugePage);
  if (!padded) return nullptr;
  const std::size_t length = round_up(bytes, kHugePage);
  void* const mapped =
      ::mmap(nullptr, *padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  std::byte* const block = start + before;
  if (before != 0) ::munmap(start, before);
  const std::size_t after = round_up(*padded, kPage) - before - length;
  if (after != 0) ::munmap(block + length, after);
  // Advice only: without huge pages the memory is as good, only slower.
  ::madvise(block, length, MADV_HUGEPAGE);
  return block;
}

}  // namespace

std::byte* acquire_block(std::size_t bytes) noexcept {
  if (bytes >= kMappedFromBytes) return map_huge(bytes);
  void* block = nullptr;
  const std::size_t alignment = bytes >= kPage ? kPage : kMinAlignment;
  if (::posix_memalign(&block, alignment, bytes) != 0) return nullptr;
  return static_cast<std::byte*>(block);
}

void release_block(std::byte* block, std::size_t bytes) noexcept {
  if (bytes >= kMappedFromBytes) {
    ::munmap(block, round_up(bytes, kHugePage));
  } else {
    std::free(block);
  }
}

}  // namespace metrale::backends::cpu
