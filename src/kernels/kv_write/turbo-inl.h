// SPDX-License-Identifier: Apache-2.0
// The encoder of the turbo formats (quant/turbo_record.h) in vectors, compiled once per instruction set: the
// same operations in the same order, and so the same bits.
#if defined(METRALE_KERNELS_KV_WRITE_TURBO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_KV_WRITE_TURBO_INL_H_
#undef METRALE_KERNELS_KV_WRITE_TURBO_INL_H_
#else
#define METRALE_KERNELS_KV_WRITE_TURBO_INL_H_
#endif

#include <atomic>
#include <cmath>
#include <cstring>

#include <metrale/quant/turbo_record.h>

#include "kernels/math/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

using quant::kTurboGroup;
using quant::KvFormat;
using quant::KvSide;

inline constexpr std::size_t kRecordDims = quant::kKvRecordDims;
inline constexpr std::size_t kRecordGroups = kRecordDims / kTurboGroup;

template <KvFormat kFormat>
inline constexpr std::size_t kEntries = quant::turbo_entries(kFormat);
template <KvFormat kFormat, KvSide kSide>
inline constexpr quant::TurboLevels kLevels = quant::turbo_levels(kFormat, kSide);

// Sums of the lanes of each group of eight, in pairs, in every lane of it.
HWY_INLINE FloatVec sum_groups(FloatVec v) {
  v = hn::Add(v, exchange<1>(v));
  v = hn::Add(v, exchange<2>(v));
  return hn::Add(v, exchange<4>(v));
}

// As quant::pairwise_sum of what the groups of eight sum up to; `sums` has room for a record's.
HWY_INLINE float sum_in_pairs(float* sums, std::size_t count) {
  for (std::size_t i = count; i < kRecordGroups; ++i) sums[i] = 0;
  return quant::pairwise_sum(sums, kRecordGroups);
}

// One sum of every group of eight that v holds.
HWY_INLINE void store_group_sums(FloatVec v, float* sums) {
  alignas(64) float lanes[kVec];
  store_vec(v, lanes);
  for (std::size_t i = 0; i < kVec; i += kTurboGroup) sums[i / kTurboGroup] = lanes[i];
}

HWY_INLINE quant::TurboSpread spread_of(const float* y, std::size_t dims) {
  float sums[kRecordGroups];
  FloatVec peak = hn::Zero(FloatTag());
  bool finite = true;
  for (std::size_t i = 0; i < dims; i += kVec) {
    const FloatVec v = load_vec(y + i);
    peak = hn::Max(peak, hn::Abs(v));
    finite = finite && hn::AllTrue(FloatTag(), hn::IsFinite(v));
    store_group_sums(sum_groups(hn::Mul(v, v)), sums + i / kTurboGroup);
  }
  const float mean = sum_in_pairs(sums, dims / kTurboGroup) / static_cast<float>(dims);
  return {.rms = finite ? std::sqrt(mean) : HUGE_VALF, .peak = hn::GetLane(hn::MaxOfLanes(FloatTag(), peak))};
}

// The level nearest to each lane of `target`.
template <KvFormat kFormat, KvSide kSide>
HWY_INLINE FloatVec nearest_level(FloatVec target, std::size_t row) {
  const FloatTag d;
  constexpr const quant::TurboLevels& levels = kLevels<kFormat, kSide>;
  FloatVec nearest = hn::Set(d, levels.level[row][0]);
#pragma GCC unroll 8
  for (std::size_t entry = 1; entry < kEntries<kFormat>; ++entry) {
    const auto above = hn::Gt(target, hn::Set(d, levels.bound[row][entry - 1]));
    nearest = hn::IfThenElse(above, hn::Set(d, levels.level[row][entry]), nearest);
  }
  return nearest;
}

// What one step leads to: its error, in squared steps, and the rows.
struct Choice {
  float error = 0;
  std::uint8_t rows[kRecordGroups] = {};
};

template <KvFormat kFormat, KvSide kSide>
HWY_INLINE Choice choose(const float* y, std::size_t dims, float inverse) {
  const FloatTag d;
  constexpr std::size_t kMost = kRecordDims / kVec;
  const std::size_t vecs = dims / kVec;
  alignas(64) float target[kRecordDims];
  alignas(64) float errors[kRecordDims];
  alignas(64) float rows[kRecordDims];
  for (std::size_t v = 0; v < vecs; ++v) {
    const FloatVec z = hn::Mul(load_vec(y + v * kVec), hn::Set(d, inverse));
    store_vec(quant::turbo_has_sign_bit(kFormat) ? hn::Abs(z) : z, target + v * kVec);
  }
  for (std::size_t row = 0; row < quant::kTurboTableRows; ++row) {
    for (std::size_t v = 0; v < vecs && v < kMost; ++v) {
      const FloatVec t = load_vec(target + v * kVec);
      const FloatVec e = hn::Sub(t, nearest_level<kFormat, kSide>(t, row));
      const FloatVec error = sum_groups(hn::Mul(e, e));
      if (row == 0) {
        store_vec(error, errors + v * kVec);
        store_vec(hn::Zero(d), rows + v * kVec);
        continue;
      }
      const FloatVec least = load_vec(errors + v * kVec);
      const auto better = hn::Lt(error, least);
      store_vec(hn::IfThenElse(better, error, least), errors + v * kVec);
      const FloatVec own = hn::Set(d, static_cast<float>(row));
      store_vec(hn::IfThenElse(better, own, load_vec(rows + v * kVec)), rows + v * kVec);
    }
  }
  Choice made;
  float sums[kRecordGroups];
  for (std::size_t group = 0; group < dims / kTurboGroup; ++group) {
    sums[group] = errors[group * kTurboGroup];
    made.rows[group] = static_cast<std::uint8_t>(rows[group * kTurboGroup]);
  }
  made.error = sum_in_pairs(sums, dims / kTurboGroup);
  return made;
}

using GroupTag = hn::CappedTag<float, 8>;
using GroupBitsTag = hn::RebindToUnsigned<GroupTag>;
using GroupBits = hn::Vec<GroupBitsTag>;

// The codes of a group of eight.
template <KvFormat kFormat, KvSide kSide>
HWY_INLINE GroupBits group_codes(const float* y, float inverse, std::size_t row) {
  const GroupTag d;
  const GroupBitsTag du;
  constexpr const quant::TurboLevels& levels = kLevels<kFormat, kSide>;
  const auto z = hn::Mul(hn::LoadU(d, y), hn::Set(d, inverse));
  const auto target = quant::turbo_has_sign_bit(kFormat) ? hn::Abs(z) : z;
  auto codes = hn::Zero(du);
#pragma GCC unroll 8
  for (std::size_t entry = 1; entry < kEntries<kFormat>; ++entry) {
    const auto above = hn::RebindMask(du, hn::Gt(target, hn::Set(d, levels.bound[row][entry - 1])));
    codes = hn::Add(codes, hn::IfThenElseZero(above, hn::Set(du, 1U)));
  }
  if constexpr (quant::turbo_has_sign_bit(kFormat)) {
    const auto negative = hn::RebindMask(du, hn::Lt(z, hn::Zero(d)));
    codes = hn::Or(codes, hn::IfThenElseZero(negative, hn::Set(du, quant::kTurboMaxEntries)));
  }
  return codes;
}

// A word of what the elements of a group give, each shifted to its place; places do not overlap.
HWY_INLINE std::uint32_t gather_bits(GroupBits bits) {
  return hn::GetLane(hn::SumOfLanes(GroupBitsTag(), bits));
}
HWY_INLINE GroupBits to_nibbles(GroupBits bits) {
  return hn::Shl(bits, hn::ShiftLeft<2>(hn::Iota(GroupBitsTag(), 0)));
}
HWY_INLINE GroupBits bit_of(GroupBits codes, std::uint32_t bit) {
  return hn::And(hn::ShiftRightSame(codes, static_cast<int>(bit)), hn::Set(GroupBitsTag(), 1U));
}

// turbo4: magnitudes in nibbles; the signs of elements 0 to 3 above those of even nibbles, then of odd ones.
HWY_INLINE std::uint32_t turbo4_word(GroupBits codes) {
  const GroupBitsTag du;
  alignas(32) static constexpr std::uint32_t kSignPlaces[8] = {3, 11, 19, 27, 7, 15, 23, 31};
  const auto magnitudes = to_nibbles(hn::And(codes, hn::Set(du, 7U)));
  return gather_bits(hn::Or(magnitudes, hn::Shl(bit_of(codes, 3), hn::Load(du, kSignPlaces))));
}

// The words of turbo3's four groups: a group's own nibbles, and the fourth group's bits above them.
HWY_INLINE void add_turbo3(GroupBits codes, std::size_t group, std::uint32_t (&words)[3]) {
  if (group < 3) {
    words[group] |= gather_bits(to_nibbles(codes));
    return;
  }
  for (std::uint32_t bit = 0; bit < 3; ++bit) {
    words[bit] |= gather_bits(to_nibbles(bit_of(codes, bit))) << 3;
  }
}

// The keys of turbo3: 32 dimensions in three words, and what 16 leave in a word and a half: there the second
// group's upper bit lies above the first one's codes.
template <class Codes>
HWY_INLINE void put_turbo3_keys(std::byte* to, std::size_t groups, const Codes& codes) {
  const GroupBitsTag du;
  std::size_t group = 0;
  for (; group + 4 <= groups; group += 4, to += 12) {
    std::uint32_t words[3] = {};
    for (std::size_t i = 0; i < 4; ++i) add_turbo3(codes(group + i), i, words);
    std::memcpy(to, words, 12);
  }
  if (group == groups) return;
  const GroupBits second = codes(group + 1);
  const GroupBits low = hn::And(second, hn::Set(du, 3U));
  const std::uint32_t words[2] = {
      gather_bits(to_nibbles(codes(group))) | gather_bits(to_nibbles(bit_of(second, 2))) << 3,
      gather_bits(hn::Shl(low, hn::ShiftLeft<1>(hn::Iota(du, 0))))};
  std::memcpy(to, words, 6);
}

// Sets the bits of `mask` in a word that holds another token's bits too, which another thread may be writing.
inline void put_bits(std::byte* to, std::uint32_t mask, std::uint32_t bits) {
  const std::atomic_ref<std::uint32_t> word(*reinterpret_cast<std::uint32_t*>(to));
  word.fetch_and(~mask, std::memory_order_relaxed);
  word.fetch_or(bits, std::memory_order_relaxed);
}

// Where a token's codes go: the first code of its stripe, and the token.
struct CodesPlace {
  std::byte* stripe;
  std::size_t head_dim;
  std::size_t token;
  std::size_t row_bytes;
};

// The values of turbo3: tokens t and t + 4 share the words of 16 dimensions.
HWY_INLINE void put_turbo3_values(const CodesPlace& place, std::size_t dim, GroupBits low, GroupBits high) {
  std::uint32_t words[3] = {};
  const std::size_t first = place.token / 4 % 2 * 2;
  add_turbo3(low, first, words);
  add_turbo3(high, first + 1, words);
  std::byte* to =
      place.stripe + (place.token / 8 * 8 + place.token % 4 * 2) * place.row_bytes + dim / 16 * 12;
  constexpr std::uint32_t kOwn = 0x77777777U;
  if (first == 0) {
    put_bits(to, kOwn, words[0]);
    put_bits(to + 4, kOwn, words[1]);
    return;
  }
  put_bits(to, ~kOwn, words[0]);
  put_bits(to + 4, ~kOwn, words[1]);
  put_bits(to + 8, ~std::uint32_t{0}, words[2]);
}

// The codes of a record's groups, which begins at dimension `first` of its vector; codes(group) gives them.
template <KvFormat kFormat, KvSide kSide, class Codes>
void put_codes(const CodesPlace& place, std::size_t first, std::size_t groups, const Codes& codes) {
  std::byte* row = place.stripe + place.token * place.row_bytes;
  if constexpr (kFormat == KvFormat::kTurbo4) {
    for (std::size_t group = 0; group < groups; ++group) {
      const std::uint32_t word = turbo4_word(codes(group));
      std::memcpy(row + first / 2 + group * 4, &word, 4);
    }
  } else if constexpr (kFormat == KvFormat::kTurbo2) {
    for (std::size_t group = 0; group < groups; group += 2) {
      const std::uint32_t word =
          gather_bits(to_nibbles(codes(group))) | gather_bits(to_nibbles(codes(group + 1))) << 2;
      std::memcpy(row + first / 4 + group * 2, &word, 4);
    }
  } else if constexpr (kSide == KvSide::kValue) {
    for (std::size_t group = 0; group < groups; group += 2) {
      put_turbo3_values(place, first + group * kTurboGroup, codes(group), codes(group + 1));
    }
  } else {
    put_turbo3_keys(row + first / 8 * 3, groups, codes);
  }
}

HWY_INLINE void put_header(std::byte* to, std::size_t groups, std::uint32_t step, const std::uint8_t* rows) {
  std::uint64_t header = step;
  for (std::size_t group = 0; group < groups; ++group) {
    header |= std::uint64_t{rows[group]} << (groups + 3 * group);
  }
  std::memcpy(to, &header, groups / 2);
}

// One record of rotated values. As quant::encode_turbo.
template <KvFormat kFormat, KvSide kSide>
void put_record(const CodesPlace& place, std::byte* header, std::size_t first, const float* y,
                std::size_t dims) {
  const std::size_t groups = dims / kTurboGroup;
  const quant::TurboSpread spread = spread_of(y, dims);
  const quant::StepCode coder{static_cast<std::uint32_t>(groups)};
  Choice best;
  std::uint32_t step_code = 0;
  if (spread.rms >= quant::kTurboSmallestRms && spread.rms <= quant::kTurboLargestRms) {
    const quant::TurboCandidates candidates = quant::turbo_candidates(kFormat, kSide, spread);
    float least = 0;
    for (std::uint32_t c = 0; c < candidates.count; ++c) {
      const std::uint32_t code = coder.encode(candidates.step[c]);
      const float step = coder.decode(code);
      if (step == 0) continue;
      const Choice choice = choose<kFormat, kSide>(y, dims, 1.0F / step);
      const float error = choice.error * step * step;
      if (step_code != 0 && error >= least) continue;
      least = error;
      step_code = code;
      best = choice;
    }
  }
  if (step_code != 0) {
    const float inverse = 1.0F / coder.decode(step_code);
    put_codes<kFormat, kSide>(place, first, groups, [&](std::size_t group) {
      return group_codes<kFormat, kSide>(y + group * kTurboGroup, inverse, best.rows[group]);
    });
    return put_header(header, groups, step_code, best.rows);
  }
  // Zeros, or what reads as NaN.
  const bool zeros = spread.rms <= quant::kTurboLargestRms;
  const std::uint32_t code = zeros ? 0 : (1U << quant::kv_format_info(kFormat).code_bits) - 1;
  put_codes<kFormat, kSide>(place, first, groups, [&](std::size_t) { return hn::Set(GroupBitsTag(), code); });
  std::memset(header, zeros ? 0 : 0xFF, groups / 2);
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_KV_WRITE_TURBO_INL_H_
