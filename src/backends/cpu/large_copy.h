// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace metrale::backends::cpu {

// As memcpy, for so many bytes that nobody finds them in a cache: they are written past the caches, which
// then stay with what is being read, and no line of the destination is fetched before it is overwritten.
void copy_past_caches(std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace metrale::backends::cpu
