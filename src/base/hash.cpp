// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <metrale/base/hash.h>

namespace metrale {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace metrale
