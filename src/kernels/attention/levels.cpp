// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/levels.h"

#include <algorithm>
#include <cstring>

#include <metrale/base/checked.h>
#include <metrale/quant/float_convert.h>
#include <metrale/quant/step_code.h>
#include <metrale/quant/turbo_layout.h>

namespace metrale::kernels::levels {
namespace {

using quant::KvFormat;
using quant::KvHeader;
using quant::KvSide;

template <class T>
T load_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Calls body(key, stripe, token) for the tile's keys, where those that do not exist are any tokens of the
// last one's block.
template <class Body>
void for_tokens(const HeadSide& side, std::uint32_t position, std::uint32_t existing, std::size_t keys,
                const Body& body) {
  for (std::uint32_t key = 0; key < keys;) {
    const std::uint32_t at = position + std::min(key, existing - 1);
    const std::byte* stripe = side.stripes + side.table[at / side.block_size] * side.block_bytes;
    std::uint32_t token = key < existing ? at % side.block_size : 0;
    for (; token < side.block_size && key < keys; ++token, ++key) body(key, stripe, token);
  }
}

struct Headers {
  const std::byte* of[kKeyTile];
};

// The header of a record of kGroups groups: a step and the rows.
template <std::uint32_t kGroups>
std::uint64_t load_header(const std::byte* from) {
  if constexpr (kGroups == 16) return load_as<std::uint64_t>(from);
  std::uint64_t header = load_as<std::uint32_t>(from);
  if constexpr (kGroups == 12) header |= std::uint64_t{load_as<std::uint16_t>(from + 4)} << 32;
  if constexpr (kGroups == 10) header |= std::uint64_t{load_as<std::uint8_t>(from + 4)} << 32;
  return header;
}

template <std::uint32_t kGroups>
void read_turbo_record(const Headers& headers, std::size_t record, StoredTile& tile) {
  constexpr quant::StepCode kCoder{kGroups};
  for (std::size_t key = 0; key < tile.keys; ++key) {
    const std::uint64_t header = load_header<kGroups>(headers.of[key] + record * 8);
    tile.rows[record][key] = header >> kGroups << 3;
    tile.steps[record][key] = kCoder.decode(static_cast<std::uint32_t>(header) & kCoder.nan());
  }
}

void read_turbo_headers(const Headers& headers, StoredTile& tile) {
  for (std::uint32_t first = 0; first < tile.head_dim; first += quant::kKvRecordDims) {
    const std::size_t record = first / quant::kKvRecordDims;
    switch (quant::kv_record_dims(static_cast<std::uint32_t>(tile.head_dim), first)) {
      case 128:
        read_turbo_record<16>(headers, record, tile);
        break;
      case 96:
        read_turbo_record<12>(headers, record, tile);
        break;
      case 80:
        read_turbo_record<10>(headers, record, tile);
        break;
      default:
        read_turbo_record<8>(headers, record, tile);
    }
  }
}

void read_headers(const HeadSide& side, const Headers& headers, StoredTile& tile) {
  const KvHeader kind = quant::kv_format_info(side.format).header;
  if (kind == KvHeader::kTurboRows) return read_turbo_headers(headers, tile);
  for (std::size_t record = 0; record * quant::kKvRecordDims < tile.head_dim; ++record) {
    for (std::size_t key = 0; key < tile.keys; ++key) {
      tile.steps[record][key] =
          kind == KvHeader::kNone
              ? side.scale
              : quant::bf16_to_float(load_as<std::uint16_t>(headers.of[key] + 2 * record));
    }
  }
}

}  // namespace

void find_tile(const HeadSide& side, KvSide which, std::size_t head_dim, std::uint32_t position,
               std::uint32_t count, StoredTile& tile) {
  const std::uint32_t existing = std::min(count, kKeyTile);
  const bool shared = side.format == KvFormat::kTurbo3 && which == KvSide::kValue;
  tile.format = side.format;
  tile.head_dim = head_dim;
  tile.key_groups = padded_groups(head_dim);
  tile.value_stride = value_stride(head_dim);
  tile.keys = round_up(std::size_t{existing}, kOctet);
  Headers headers;
  for_tokens(side, position, existing, tile.keys,
             [&](std::uint32_t key, const std::byte* stripe, std::uint32_t token) {
               const std::uint32_t row = shared ? token / 8 * 8 + token % 4 * 2 : token;
               tile.codes[key] = stripe + row * side.row_bytes;
               headers.of[key] = stripe + side.block_size * side.row_bytes + token * side.header_bytes;
             });
  read_headers(side, headers, tile);
}

bool has_avx512_kernels() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  return has;
}

const KernelSet& kernels(bool wide) {
  return wide && has_avx512_kernels() ? avx512_kernels() : avx2_kernels();
}

}  // namespace metrale::kernels::levels
