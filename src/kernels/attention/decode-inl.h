// SPDX-License-Identifier: Apache-2.0
// Stored vectors of every KV format as floats, compiled once per instruction set: what quant::KvStripe reads,
// bit for bit. Rotated formats stay in their basis.
#if defined(METRALE_KERNELS_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_DECODE_INL_H_
#undef METRALE_KERNELS_ATTENTION_DECODE_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_DECODE_INL_H_
#endif

#include <cstring>

#include <metrale/quant/turbo_record.h>

#include "kernels/attention/head_side.h"
#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

using quant::KvFormat;
using quant::KvSide;

// Eight elements share a word or a row of levels.
using OctTag = hn::CappedTag<float, 8>;
using OctBitsTag = hn::RebindToUnsigned<OctTag>;
using OctVec = hn::Vec<OctTag>;
using OctBits = hn::Vec<OctBitsTag>;

template <class T>
HWY_INLINE T load_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// entries[lane's index].
HWY_INLINE OctVec look_up(const float* entries, OctBits indices) {
  const OctTag d;
  return hn::TableLookupLanes(hn::Load(d, entries), hn::IndicesFromVec(d, indices));
}

// Nibble i of the word, in lane i.
HWY_INLINE OctBits nibbles(std::uint32_t word) {
  const OctBitsTag du;
  return hn::Shr(hn::Set(du, word), hn::ShiftLeft<2>(hn::Iota(du, 0)));
}
HWY_INLINE OctBits low_bits(OctBits bits, std::uint32_t mask) {
  return hn::And(bits, hn::Set(OctBitsTag(), mask));
}

template <KvFormat kFormat, KvSide kSide>
struct LevelTable {
  alignas(32) float level[quant::kTurboTableRows][quant::kTurboMaxEntries];

  constexpr LevelTable() : level{} {
    const quant::TurboLevels made = quant::turbo_levels(kFormat, kSide);
    for (std::size_t row = 0; row < quant::kTurboTableRows; ++row) {
      for (std::size_t i = 0; i < quant::kTurboMaxEntries; ++i) level[row][i] = made.level[row][i];
    }
  }
};
template <KvFormat kFormat, KvSide kSide>
inline constexpr LevelTable<kFormat, kSide> kLevelTable;

// One token's codes and header of one head.
struct StoredVector {
  const std::byte* stripe;  // the head's stripe of the token's block
  std::size_t token;        // in the block
  std::size_t row_bytes;
  const std::byte* header;
  std::size_t head_dim;

  [[nodiscard]] const std::byte* row() const { return stripe + token * row_bytes; }
};

// Codes of the eight elements at `dim`, in the low bits of the lanes; turbo4's have their sign in bit 3.
template <KvFormat kFormat, KvSide kSide>
HWY_INLINE OctBits turbo_codes(const StoredVector& v, std::size_t dim) {
  const OctBitsTag du;
  if constexpr (kFormat == KvFormat::kTurbo4) {
    const auto word = load_as<std::uint32_t>(v.row() + dim / 2);
    alignas(32) static constexpr std::uint32_t kSignPlaces[8] = {0, 8, 16, 24, 4, 12, 20, 28};
    const OctBits signs = hn::Shr(hn::Set(du, word), hn::Load(du, kSignPlaces));
    return hn::Or(low_bits(nibbles(word), 7U), low_bits(signs, 8U));
  } else if constexpr (kFormat == KvFormat::kTurbo2) {
    return low_bits(nibbles(load_as<std::uint32_t>(v.row() + dim / 16 * 4) >> (dim / 8 % 2 * 2)), 3U);
  } else {
    const std::byte* unit = v.row() + dim / 32 * 12;
    std::size_t group = dim / 8 % 4;
    if constexpr (kSide == KvSide::kValue) {
      unit = v.stripe + (v.token / 8 * 8 + v.token % 4 * 2) * v.row_bytes + dim / 16 * 12;
      group = v.token / 4 % 2 * 2 + dim / 8 % 2;
    } else if (dim / 32 == v.head_dim / 32) {  // what 16 dimensions leave
      const auto word = load_as<std::uint32_t>(unit);
      if (group == 0) return low_bits(nibbles(word), 7U);
      const OctBits pairs = hn::Shr(hn::Set(du, std::uint32_t{load_as<std::uint16_t>(unit + 4)}),
                                    hn::ShiftLeft<1>(hn::Iota(du, 0)));
      return hn::Or(low_bits(pairs, 3U), low_bits(hn::ShiftRight<1>(nibbles(word)), 4U));
    }
    if (group < 3) return low_bits(nibbles(load_as<std::uint32_t>(unit + 4 * group)), 7U);
    const OctBits bit0 = low_bits(hn::ShiftRight<3>(nibbles(load_as<std::uint32_t>(unit))), 1U);
    const OctBits bit1 = low_bits(hn::ShiftRight<2>(nibbles(load_as<std::uint32_t>(unit + 4))), 2U);
    const OctBits bit2 = low_bits(hn::ShiftRight<1>(nibbles(load_as<std::uint32_t>(unit + 8))), 4U);
    return hn::Or(hn::Or(bit0, bit1), bit2);
  }
}

template <KvFormat kFormat, KvSide kSide>
void read_turbo(const StoredVector& v, float* out) {
  const OctTag d;
  const std::byte* header = v.header;
  for (std::size_t first = 0; first < v.head_dim; first += quant::kKvRecordDims) {
    const std::size_t dims =
        v.head_dim - first < quant::kKvRecordDims ? v.head_dim - first : std::size_t{quant::kKvRecordDims};
    const std::size_t groups = dims / quant::kTurboGroup;
    std::uint64_t bits = 0;
    std::memcpy(&bits, header, groups / 2);
    header += groups / 2;
    const quant::StepCode coder{static_cast<std::uint32_t>(groups)};
    const OctVec step = hn::Set(d, coder.decode(static_cast<std::uint32_t>(bits) & coder.nan()));
    bits >>= groups;
    for (std::size_t group = 0; group < groups; ++group, bits >>= 3) {
      const std::size_t dim = first + group * quant::kTurboGroup;
      const OctBits codes = turbo_codes<kFormat, kSide>(v, dim);
      OctVec level = look_up(kLevelTable<kFormat, kSide>.level[bits & 7U], low_bits(codes, 7U));
      if constexpr (quant::turbo_has_sign_bit(kFormat)) {
        const OctBits sign = hn::ShiftLeft<28>(low_bits(codes, 8U));
        level = hn::Xor(level, hn::BitCast(d, sign));
      }
      hn::StoreU(hn::Mul(level, step), d, out + dim);
    }
  }
}

// E4M3 in the low byte of each lane.
HWY_INLINE OctVec e4m3_values(OctBits codes) {
  const OctTag d;
  const OctBitsTag du;
  const OctBits magnitude = low_bits(codes, 0x7FU);
  // As an FP32 number with the same fields, 2^120 too small; exact, and subnormals come out right.
  const OctVec value = hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(magnitude)), hn::Set(d, 0x1p120F));
  const OctBits sign = hn::ShiftLeft<24>(low_bits(codes, 0x80U));
  const auto nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7FU)));
  const OctVec known = hn::IfThenElse(nan, hn::BitCast(d, hn::Set(du, 0x7FC00000U)), value);
  return hn::Or(known, hn::BitCast(d, sign));
}

HWY_INLINE OctBits load_bytes(const std::byte* from) {
  const hn::Rebind<std::uint8_t, OctTag> d8;
  return hn::PromoteTo(OctBitsTag(), hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
}

// head_dim of fp8 may be no multiple of eight.
inline void read_fp8(const StoredVector& v, float scale, float* out) {
  const OctTag d;
  std::size_t i = 0;
  for (; i + 8 <= v.head_dim; i += 8) {
    hn::StoreU(hn::Mul(e4m3_values(load_bytes(v.row() + i)), hn::Set(d, scale)), d, out + i);
  }
  for (; i < v.head_dim; ++i) {
    out[i] = quant::e4m3_to_float(std::to_integer<std::uint8_t>(v.row()[i])) * scale;
  }
}

inline void read_records(KvFormat format, const StoredVector& v, float* out) {
  const OctTag d;
  const hn::Rebind<std::int8_t, OctTag> d8;
  for (std::size_t i = 0; i < v.head_dim; i += 8) {
    const auto code = load_as<std::uint16_t>(v.header + i / quant::kKvRecordDims * 2);
    const OctVec scale = hn::Set(d, quant::bf16_to_float(code));
    const std::byte* from = v.row() + i;
    const OctVec level =
        format == KvFormat::kTurbo8
            ? e4m3_values(load_bytes(from))
            : hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<OctTag>(),
                                             hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(from))));
    hn::StoreU(hn::Mul(level, scale), d, out + i);
  }
}

inline void read_groups(const StoredVector& v, float scale, float* out) {
  const OctTag d;
  alignas(32) static constexpr float kE2m1[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::size_t i = 0; i < v.head_dim; i += 8) {
    const auto group = std::to_integer<std::uint8_t>(v.header[i / quant::kKvScaleGroup]);
    const OctVec step = hn::Set(d, quant::e4m3_to_float(group) * scale);
    const OctBits codes = nibbles(load_as<std::uint32_t>(v.row() + i / 2));
    const OctBits sign = hn::ShiftLeft<28>(low_bits(codes, 8U));
    const OctVec level = hn::Xor(look_up(kE2m1, low_bits(codes, 7U)), hn::BitCast(d, sign));
    hn::StoreU(hn::Mul(level, step), d, out + i);
  }
}

// True where attention reads the format's elements as they lie.
[[nodiscard]] constexpr bool reads_in_place(KvFormat format) {
  return format == KvFormat::kBf16 || format == KvFormat::kFp32;
}

template <KvSide kSide>
void read_vector(KvFormat format, const StoredVector& v, float scale, float* out) {
  switch (format) {
    case KvFormat::kBf16:
      return widen_as(reinterpret_cast<const hwy::bfloat16_t*>(v.row()), v.head_dim, out);
    case KvFormat::kFp16:
      return widen_as(reinterpret_cast<const hwy::float16_t*>(v.row()), v.head_dim, out);
    case KvFormat::kFp32:
      return widen_as(reinterpret_cast<const float*>(v.row()), v.head_dim, out);
    case KvFormat::kFp8:
      return read_fp8(v, scale, out);
    case KvFormat::kNvfp4:
    case KvFormat::kNvfp4Searched:
      return read_groups(v, scale, out);
    case KvFormat::kTurbo4:
      return read_turbo<KvFormat::kTurbo4, kSide>(v, out);
    case KvFormat::kTurbo3:
      return read_turbo<KvFormat::kTurbo3, kSide>(v, out);
    case KvFormat::kTurbo2:
      return read_turbo<KvFormat::kTurbo2, kSide>(v, out);
    case KvFormat::kTurbo8:
    case KvFormat::kTurbo8i:
      return read_records(format, v, out);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_DECODE_INL_H_
