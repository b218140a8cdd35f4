// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/levels.h"

#include <algorithm>
#include <array>
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

// The header of a record of kGroups groups: a step and the rows.
template <std::uint32_t kGroups>
std::uint64_t load_header(const std::byte* from) {
  if constexpr (kGroups == 16) return load_as<std::uint64_t>(from);
  std::uint64_t header = load_as<std::uint32_t>(from);
  if constexpr (kGroups == 12) header |= std::uint64_t{load_as<std::uint16_t>(from + 4)} << 32;
  if constexpr (kGroups == 10) header |= std::uint64_t{load_as<std::uint8_t>(from + 4)} << 32;
  return header;
}

// What every code of 8 bits stands for.
constexpr auto kSteps = [] {
  std::array<float, 256> steps{};
  for (std::uint32_t code = 0; code < steps.size(); ++code) steps[code] = quant::StepCode{8}.decode(code);
  return steps;
}();

// Headers of `count` keys that lie side by side, from `key` of the tile on.
struct Run {
  const std::byte* headers;
  std::size_t header_bytes;
  std::size_t key;
  std::size_t count;
};

template <std::uint32_t kGroups>
void read_turbo_record(const Run& run, std::size_t record, StoredTile& tile) {
  constexpr quant::StepCode kCoder{kGroups};
  std::uint64_t* rows = tile.rows[record] + run.key;
  float* steps = tile.steps[record] + run.key;
  const auto read = [&](std::size_t stride) __attribute__((always_inline)) {
    const std::byte* from = run.headers + record * 8;
    for (std::size_t i = 0; i < run.count; ++i) {
      const auto header = load_header<kGroups>(from + i * stride);
      rows[i] = header >> kGroups << 3;
      const std::uint32_t code = static_cast<std::uint32_t>(header) & kCoder.nan();
      steps[i] = kGroups == 8 ? kSteps[code % kSteps.size()] : kCoder.decode(code);
    }
  };
  // A constant distance for vectors of one record: most are.
  return run.header_bytes == kGroups / 2 ? read(kGroups / 2) : read(run.header_bytes);
}

void read_turbo_headers(const Run& run, StoredTile& tile) {
  for (std::uint32_t first = 0; first < tile.head_dim; first += quant::kKvRecordDims) {
    const std::size_t record = first / quant::kKvRecordDims;
    switch (quant::kv_record_dims(static_cast<std::uint32_t>(tile.head_dim), first)) {
      case 128:
        read_turbo_record<16>(run, record, tile);
        break;
      case 96:
        read_turbo_record<12>(run, record, tile);
        break;
      case 80:
        read_turbo_record<10>(run, record, tile);
        break;
      default:
        read_turbo_record<8>(run, record, tile);
    }
  }
}

void read_headers(const HeadSide& side, const Run& run, StoredTile& tile) {
  const KvHeader kind = quant::kv_format_info(side.format).header;
  if (kind == KvHeader::kTurboRows) return read_turbo_headers(run, tile);
  for (std::size_t record = 0; record * quant::kKvRecordDims < tile.head_dim; ++record) {
    float* steps = tile.steps[record] + run.key;
    for (std::size_t i = 0; i < run.count; ++i) {
      const std::byte* from = run.headers + i * run.header_bytes + 2 * record;
      steps[i] = kind == KvHeader::kNone ? side.scale : quant::bf16_to_float(load_as<std::uint16_t>(from));
    }
  }
}

void add_addresses(const std::byte* first, std::size_t stride, std::size_t count, const std::byte** to) {
  for (const std::byte** end = to + count; to != end; ++to, first += stride) *to = first;
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
  const std::uint32_t* block = side.table + position / side.block_size;
  std::uint32_t first = position % side.block_size;
  for (std::uint32_t key = 0; key < tile.keys;) {
    const std::byte* stripe = side.stripes + *block * side.block_bytes;
    const auto here =
        static_cast<std::uint32_t>(std::min<std::size_t>(side.block_size - first, tile.keys - key));
    if (shared) {
      for (std::uint32_t i = 0; i < here; ++i) {
        const std::uint32_t token = first + i;
        tile.codes[key + i] = stripe + (token / 8 * 8 + token % 4 * 2) * side.row_bytes;
      }
    } else {
      add_addresses(stripe + first * side.row_bytes, side.row_bytes, here, tile.codes + key);
    }
    const std::byte* headers = stripe + side.block_size * side.row_bytes;
    read_headers(side, {headers + first * side.header_bytes, side.header_bytes, key, here}, tile);
    key += here;
    // Keys that do not exist are any tokens of the last one's block.
    if (key < existing) ++block;
    first = 0;
  }
}

bool has_avx512_kernels() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512bitalg");
  return has;
}

const KernelSet& kernels(bool wide) {
  return wide && has_avx512_kernels() ? avx512_kernels() : avx2_kernels();
}

}  // namespace metrale::kernels::levels
