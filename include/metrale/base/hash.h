// SPDX-License-Identifier: Apache-2.0
// XXH3-64 of bytes: checksums of records and fingerprints. Stable across machines and versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace metrale {

[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace metrale
