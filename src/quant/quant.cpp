// SPDX-License-Identifier: Apache-2.0
#include <metrale/quant/element_type.h>
#include <metrale/quant/float_convert.h>
#include <metrale/quant/kv_format.h>

namespace metrale::quant {

// kv_format_info() indexes by value.
static_assert([] {
  for (std::size_t i = 0; i < kKvFormats.size(); ++i) {
    if (static_cast<std::size_t>(kKvFormats[i].format) != i) return false;
  }
  return true;
}());
static_assert(kv_side_bytes(KvFormat::kBf16, 16, 8, 128) == 32768);
static_assert(kv_side_bytes(KvFormat::kTurbo4, 16, 8, 128) == 9216);
static_assert(kv_side_bytes(KvFormat::kTurbo3, 16, 8, 128) == 7168);
static_assert(kv_side_bytes(KvFormat::kTurbo2, 16, 8, 128) == 5120);
static_assert(kv_side_bytes(KvFormat::kTurbo8, 16, 8, 128) == 16 * 8 * 130);

}  // namespace metrale::quant
