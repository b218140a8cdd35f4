// SPDX-License-Identifier: Apache-2.0
// Raw host memory as the CPU backend hands it out: from the heap when small, in huge pages when large.
#pragma once

#include <cstddef>

namespace metrale::backends::cpu {

// From this size on a block is mapped, and nobody else's data shares its pages.
inline constexpr std::size_t kMappedFromBytes = std::size_t{2} << 20;

// At least 256-byte aligned (a page from one page on, 2 MiB from 2 MiB on); null where there is none.
[[nodiscard]] std::byte* acquire_block(std::size_t bytes) noexcept;
// `bytes` as at acquire_block.
void release_block(std::byte* block, std::size_t bytes) noexcept;

}  // namespace metrale::backends::cpu
