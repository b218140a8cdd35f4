// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace metrale::backends::cpu {

// As memcpy, past the caches on x86-64: they stay with what is being read, and no line of the destination is
// fetched before it is overwritten. For bytes that nobody reads soon.
void copy_past_caches(std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace metrale::backends::cpu
