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
  kTurbo8i = 9,
  kNvfp4Searched = 10,
};

enum class KvSide : std::uint32_t { kKey = 0, kValue = 1 };

// What a token of a KV head has beside its codes.
enum class KvHeader : std::uint32_t {
  kNone,
  kGroupScales,  // an E4M3 scale for 16 elements
  kRecordScale,  // a bfloat16 scale for a record of 128 elements or what is left of them
  kTurboRows,    // a step and the level rows of a record: half a byte for eight elements
};

struct KvFormatInfo {
  KvFormat format;
  std::string_view name;
  std::uint32_t code_bits;  // per element
  KvHeader header;
  bool rotated;  // codes are of the Walsh-Hadamard transform of the vector
  bool scaled;   // values are multiples of a scale of the layer, the KV head and the side, frozen at load
  bool on_cuda;  // CUDA has kernels for it; the CPU has them for all
};

inline constexpr std::array kKvFormats{
    KvFormatInfo{KvFormat::kBf16, "bf16", 16, KvHeader::kNone, false, false, true},
    KvFormatInfo{KvFormat::kFp32, "fp32", 32, KvHeader::kNone, false, false, true},
    KvFormatInfo{KvFormat::kFp16, "fp16", 16, KvHeader::kNone, false, false, false},
    KvFormatInfo{KvFormat::kFp8, "fp8", 8, KvHeader::kNone, false, true, false},
    KvFormatInfo{KvFormat::kNvfp4, "nvfp4", 4, KvHeader::kGroupScales, false, true, false},
    KvFormatInfo{KvFormat::kTurbo4, "turbo4", 4, KvHeader::kTurboRows, true, false, false},
    KvFormatInfo{KvFormat::kTurbo3, "turbo3", 3, KvHeader::kTurboRows, true, false, false},
    KvFormatInfo{KvFormat::kTurbo2, "turbo2", 2, KvHeader::kTurboRows, true, false, false},
    KvFormatInfo{KvFormat::kTurbo8, "turbo8", 8, KvHeader::kRecordScale, true, false, false},
    KvFormatInfo{KvFormat::kTurbo8i, "turbo8i", 8, KvHeader::kRecordScale, true, false, false},
    KvFormatInfo{KvFormat::kNvfp4Searched, "nvfp4_searched", 4, KvHeader::kGroupScales, false, true, false},
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

inline constexpr std::uint32_t kKvMaxHeadDim = 512;  // of what kernels serve
inline constexpr std::uint32_t kKvRecordDims = 128;  // of every record of a vector but the last
inline constexpr std::uint32_t kKvScaleGroup = 16;   // elements that share an E4M3 scale

// Dimensions of the record that begins at `first`.
[[nodiscard]] constexpr std::uint32_t kv_record_dims(std::uint32_t head_dim, std::uint32_t first) {
  return head_dim - first < kKvRecordDims ? head_dim - first : kKvRecordDims;
}

// False where the format has no bytes for vectors of `head_dim`: it needs whole groups, and the turbo records
// of 64, 80, 96 or 128 dimensions.
[[nodiscard]] constexpr bool kv_format_takes(KvFormat format, std::uint64_t head_dim) {
  if (head_dim == 0) return false;
  if (kv_format_info(format).header == KvHeader::kNone) return true;
  if (head_dim % kKvScaleGroup != 0) return false;
  if (kv_format_info(format).header != KvHeader::kTurboRows) return true;
  const std::uint64_t left = head_dim % kKvRecordDims;
  return left == 0 || left == 64 || left == 80 || left == 96;
}

// Bytes of the codes of one token of one KV head.
[[nodiscard]] constexpr std::uint64_t kv_row_bytes(KvFormat format, std::uint64_t head_dim) {
  return (head_dim * kv_format_info(format).code_bits + 7) / 8;
}

// Bytes of the scales of one token of one KV head.
[[nodiscard]] constexpr std::uint64_t kv_header_bytes(KvFormat format, std::uint64_t head_dim) {
  switch (kv_format_info(format).header) {
    case KvHeader::kGroupScales:
    case KvHeader::kTurboRows:
      return (head_dim + 15) / 16;
    case KvHeader::kRecordScale:
      return (head_dim + kKvRecordDims - 1) / kKvRecordDims * 2;
    default:
      return 0;
  }
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

// Offset, from the start of a side, of the codes of `token` (within the block) of `kv_head`. The values of
// turbo3 alone have no row of their own: eight tokens share the bytes of eight rows (docs/formats/turbo.md).
[[nodiscard]] constexpr std::uint64_t kv_codes_offset(KvFormat format, std::uint64_t block_size,
                                                      std::uint64_t head_dim, std::uint64_t kv_head,
                                                      std::uint64_t token) {
  return kv_head * kv_head_stripe_bytes(format, block_size, head_dim) +
         token * kv_row_bytes(format, head_dim);
}

// Offset of its headers.
[[nodiscard]] constexpr std::uint64_t kv_header_offset(KvFormat format, std::uint64_t block_size,
                                                       std::uint64_t head_dim, std::uint64_t kv_head,
                                                       std::uint64_t token) {
  return kv_codes_offset(format, block_size, head_dim, kv_head, block_size) +
         token * kv_header_bytes(format, head_dim);
}

}  // namespace metrale::quant
