// SPDX-License-Identifier: Apache-2.0
// file_layout(): places for tensors in one slab, such that direct reads from their files go straight there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <metrale/weights/loader.h>

namespace metrale::weights {

// What a slab's base must be a multiple of.
inline constexpr std::uint64_t kFileLayoutAlignment = 4096;

struct FileLayout {
  std::vector<std::uint64_t> offsets;  // one for each load, in their order
  std::uint64_t size_bytes = 0;
};

// Loads that follow each other in a file do so in the slab, and every offset equals the file's modulo 4096;
// so tensors are aligned as in the file, where 8 bytes are usual, and types may lie at odd addresses.
[[nodiscard]] FileLayout file_layout(std::span<const TensorLoad> loads);

}  // namespace metrale::weights
