// SPDX-License-Identifier: Apache-2.0
// KvFormat: how one side (K or V) of a KV block is stored, and the only place that knows its geometry.
//
// A side of a block is laid out by KV head, so that a head's stripe is contiguous:
//   [kv_head]{ codes[token][row_bytes], headers[token][header_bytes] }
// A block has one format for life. docs/formats/kv_block.md has it byte for byte.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace metrale::quant {

// Values are part of the kernel ABI.
enum class KvFormat : std::uint32_t {
  kBf16 = 0,
  kFp32 = 1,
  kFp16 = 2,
  kFp8 = 3,
  kNvfp4 = 4,
  kTurbo4 = 5,
  kTurbo3 = 6,
  kTurbo2 = 7,
  kTurbo8 = 8,
};

struct KvFormatInfo {
  KvFormat format;
  std::string_view name;
  std::uint32_t code_bits;              // per element
  std::uint32_t elems_per_header_byte;  // 0: no header; else one header byte for so many elements
  bool rotated;                         // codes are of the Walsh-Hadamard transform of the vector
  bool has_kernels;                     // kv_write and attention can serve it
};

inline constexpr std::array kKvFormats{
    KvFormatInfo{KvFormat::kBf16, "bf16", 16, 0, false, true},
    KvFormatInfo{KvFormat::kFp32, "fp32", 32, 0, false, true},
    KvFormatInfo{KvFormat::kFp16, "fp16", 16, 0, false, false},
    KvFormatInfo{KvFormat::kFp8, "fp8", 8, 0, false, false},
    KvFormatInfo{KvFormat::kNvfp4, "nvfp4", 4, 16, false, false},
    KvFormatInfo{KvFormat::kTurbo4, "turbo4", 4, 16, true, false},
    KvFormatInfo{KvFormat::kTurbo3, "turbo3", 3, 16, true, false},
    KvFormatInfo{KvFormat::kTurbo2, "turbo2", 2, 16, true, false},
    KvFormatInfo{KvFormat::kTurbo8, "turbo8", 8, 64, true, false},
};

[[nodiscard]] constexpr const KvFormatInfo& kv_format_info(KvFormat format) {
  return kKvFormats[static_cast<std::size_t>(format)];
}

[[nodiscard]] constexpr std::string_view to_string(KvFormat format) {
  return kv_format_info(format).name;
}

[[nodiscard]] constexpr std::optional<KvFormat> parse_kv_format(std::string_view name) {
  for (const KvFormatInfo& info : kKvFormats) {
    if (info.name == name) return info.format;
  }
  return std::nullopt;
}

// Bytes of the codes of one token of one KV head.
[[nodiscard]] constexpr std::uint64_t kv_row_bytes(KvFormat format, std::uint64_t head_dim) {
  return (head_dim * kv_format_info(format).code_bits + 7) / 8;
}

// Bytes of the scales of one token of one KV head.
[[nodiscard]] constexpr std::uint64_t kv_header_bytes(KvFormat format, std::uint64_t head_dim) {
  const std::uint64_t per_byte = kv_format_info(format).elems_per_header_byte;
  return per_byte == 0 ? 0 : (head_dim + per_byte - 1) / per_byte;
}

// Bytes of one KV head's stripe of one side of one block.
[[nodiscard]] constexpr std::uint64_t kv_head_stripe_bytes(KvFormat format, std::uint64_t block_size,
                                                           std::uint64_t head_dim) {
  return block_size * (kv_row_bytes(format, head_dim) + kv_header_bytes(format, head_dim));
}

// Bytes of one side of one block.
[[nodiscard]] constexpr std::uint64_t kv_side_bytes(KvFormat format, std::uint64_t block_size,
                                                    std::uint64_t num_kv_heads, std::uint64_t head_dim) {
  return num_kv_heads * kv_head_stripe_bytes(format, block_size, head_dim);
}

// Offset, from the start of a side, of the codes of `token` (within the block) of `kv_head`.
[[nodiscard]] constexpr std::uint64_t kv_codes_offset(KvFormat format, std::uint64_t block_size,
                                                      std::uint64_t head_dim, std::uint64_t kv_head,
                                                      std::uint64_t token) {
  return kv_head * kv_head_stripe_bytes(format, block_size, head_dim) +
         token * kv_row_bytes(format, head_dim);
}

}  // namespace metrale::quant
