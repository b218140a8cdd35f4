// SPDX-License-Identifier: Apache-2.0
// One record of a turbo format: its numbers from a rotated vector, and back. This is what the formats mean by
// definition; kernels do the same in vectors. Every operation is a single FP32 one, sums are pairwise
// (pairwise_sum.h), comparisons take the first of equals. Plain C++20, usable on host and device.
//
//   value = step * level[row of its group][code]
//
// turbo4's rows hold magnitudes, and the code has the sign above the entry's number; the rows of turbo3 and
// turbo2 hold signed levels.
#pragma once

#include <bit>
#include <cstdint>

#include <metrale/quant/float_convert.h>
#include <metrale/quant/pairwise_sum.h>
#include <metrale/quant/step_code.h>
#include <metrale/quant/turbo_layout.h>
#include <metrale/quant/turbo_tables.h>

namespace metrale::quant {

inline constexpr std::uint32_t kTurboTableRows = 8;
inline constexpr std::uint32_t kTurboMaxEntries = 8;  // of a row

struct TurboRecord {
  std::uint32_t step = 0;  // StepCode{dims / 8}
  std::uint8_t rows[kKvRecordDims / kTurboGroup] = {};
  std::uint8_t codes[kKvRecordDims] = {};
};

// Of a row.
[[nodiscard]] constexpr std::uint32_t turbo_entries(KvFormat format) {
  return format == KvFormat::kTurbo2 ? 4 : 8;
}
[[nodiscard]] constexpr bool turbo_has_sign_bit(KvFormat format) {
  return format == KvFormat::kTurbo4;
}

// The levels of one side of a format, in steps, and where one ends and the next begins.
struct TurboLevels {
  float level[kTurboTableRows][kTurboMaxEntries] = {};      // rising within a row
  float bound[kTurboTableRows][kTurboMaxEntries - 1] = {};  // a level's values end at it, itself included
};

[[nodiscard]] constexpr float turbo_level(KvFormat format, KvSide side, std::uint32_t row,
                                          std::uint32_t entry) {
  const bool key = side == KvSide::kKey;
  switch (format) {
    case KvFormat::kTurbo4:
      return key ? static_cast<float>(kTurbo4KRows[row][entry]) + 0.5F
                 : e4m3_to_float(kTurbo4VRows[row][entry]);
    case KvFormat::kTurbo3:
      return key ? static_cast<float>(kTurbo3KRows[row][entry]) : e4m3_to_float(kTurbo3VRows[row][entry]);
    default:
      return key ? static_cast<float>(kTurbo2KRows[row][entry]) : e4m3_to_float(kTurbo2VRows[row][entry]);
  }
}

[[nodiscard]] constexpr TurboLevels turbo_levels(KvFormat format, KvSide side) {
  TurboLevels levels;
  for (std::uint32_t row = 0; row < kTurboTableRows; ++row) {
    for (std::uint32_t entry = 0; entry < turbo_entries(format); ++entry) {
      levels.level[row][entry] = turbo_level(format, side, row, entry);
      if (entry != 0) {
        levels.bound[row][entry - 1] = (levels.level[row][entry - 1] + levels.level[row][entry]) * 0.5F;
      }
    }
  }
  return levels;
}

[[nodiscard]] constexpr const TurboSteps& turbo_steps(KvFormat format, KvSide side) {
  const bool key = side == KvSide::kKey;
  switch (format) {
    case KvFormat::kTurbo4:
      return key ? kTurbo4KSteps : kTurbo4VSteps;
    case KvFormat::kTurbo3:
      return key ? kTurbo3KSteps : kTurbo3VSteps;
    default:
      return key ? kTurbo2KSteps : kTurbo2VSteps;
  }
}

// What the encoder knows of a record before it tries steps. `rms` is the correctly rounded root of
// mean_square.
struct TurboSpread {
  float rms = 0;
  float peak = 0;  // the largest magnitude
};

[[nodiscard]] constexpr float mean_square(const float* y, std::uint32_t dims) {
  float squares[kKvRecordDims] = {};
  for (std::uint32_t i = 0; i < dims; ++i) squares[i] = y[i] * y[i];
  return pairwise_sum(squares, kKvRecordDims) / static_cast<float>(dims);
}

[[nodiscard]] constexpr float peak_of(const float* y, std::uint32_t dims) {
  float peak = 0;
  for (std::uint32_t i = 0; i < dims; ++i) {
    const float magnitude = y[i] < 0 ? -y[i] : y[i];
    if (magnitude > peak) peak = magnitude;
  }
  return peak;
}

// A record whose root mean square lies outside is zeros, or NaN: its square is no normal FP32 number.
inline constexpr float kTurboSmallestRms = 0x1p-62F;
inline constexpr float kTurboLargestRms = 0x1p62F;

// The steps that are tried, in order, before they are rounded: at most three.
struct TurboCandidates {
  float step[3] = {};
  std::uint32_t count = 0;
};
[[nodiscard]] constexpr TurboCandidates turbo_candidates(KvFormat format, KvSide side,
                                                         const TurboSpread& spread) {
  const TurboSteps& steps = turbo_steps(format, side);
  TurboCandidates made{.step = {spread.rms * steps.step_per_rms[0], spread.rms * steps.step_per_rms[1],
                                spread.peak * steps.step_per_peak},
                       .count = 2};
  if (spread.peak > spread.rms * kTurboSpiky) made.count = 3;
  return made;
}

// The entry nearest to z, the lower one of two: of its magnitude where the code has a sign bit.
[[nodiscard]] constexpr std::uint32_t nearest_entry(KvFormat format, const TurboLevels& levels,
                                                    std::uint32_t row, float z) {
  const float target = turbo_has_sign_bit(format) && z < 0 ? -z : z;
  std::uint32_t nearest = 0;
  for (std::uint32_t entry = 1; entry < turbo_entries(format); ++entry) {
    if (target > levels.bound[row][entry - 1]) nearest = entry;
  }
  return nearest;
}

// Squared error of a group's nearest levels, in squared steps.
[[nodiscard]] constexpr float group_error(KvFormat format, const TurboLevels& levels, std::uint32_t row,
                                          const float* z) {
  float squares[kTurboGroup] = {};
  for (std::uint32_t i = 0; i < kTurboGroup; ++i) {
    const float target = turbo_has_sign_bit(format) && z[i] < 0 ? -z[i] : z[i];
    const float error = target - levels.level[row][nearest_entry(format, levels, row, z[i])];
    squares[i] = error * error;
  }
  return pairwise_sum(squares, kTurboGroup);
}

// Rows with the least error of each group for 1 / step; the sum of the errors.
[[nodiscard]] constexpr float choose_rows(KvFormat format, const TurboLevels& levels, const float* y,
                                          std::uint32_t dims, float inverse, std::uint8_t* rows) {
  float errors[kKvRecordDims / kTurboGroup] = {};
  for (std::uint32_t group = 0; group < dims / kTurboGroup; ++group) {
    float z[kTurboGroup] = {};
    for (std::uint32_t i = 0; i < kTurboGroup; ++i) z[i] = y[group * kTurboGroup + i] * inverse;
    errors[group] = group_error(format, levels, 0, z);
    rows[group] = 0;
    for (std::uint32_t row = 1; row < kTurboTableRows; ++row) {
      const float error = group_error(format, levels, row, z);
      if (error >= errors[group]) continue;
      errors[group] = error;
      rows[group] = static_cast<std::uint8_t>(row);
    }
  }
  return pairwise_sum(errors, kKvRecordDims / kTurboGroup);
}

// A record that reads as NaN.
[[nodiscard]] constexpr TurboRecord turbo_nan(KvFormat format, std::uint32_t dims) {
  TurboRecord record;
  record.step = StepCode{dims / kTurboGroup}.nan();
  for (std::uint8_t& row : record.rows) row = kTurboTableRows - 1;
  for (std::uint8_t& code : record.codes) {
    code = static_cast<std::uint8_t>((1U << kv_format_info(format).code_bits) - 1);
  }
  return record;
}

// The record of `dims` rotated values. Values whose squares vanish in FP32, or that no step is small enough
// for, give zeros; what is not finite, or squares to infinity, gives NaN.
[[nodiscard]] constexpr TurboRecord encode_turbo(KvFormat format, KvSide side, const float* y,
                                                 std::uint32_t dims, const TurboSpread& spread) {
  if (!(spread.rms <= kTurboLargestRms)) return turbo_nan(format, dims);
  TurboRecord record;
  if (spread.rms < kTurboSmallestRms) return record;
  const TurboLevels levels = turbo_levels(format, side);
  const StepCode coder{dims / kTurboGroup};
  const TurboCandidates candidates = turbo_candidates(format, side, spread);
  float least = 0;
  for (std::uint32_t c = 0; c < candidates.count; ++c) {
    const std::uint32_t code = coder.encode(candidates.step[c]);
    const float step = coder.decode(code);
    if (step == 0) continue;
    std::uint8_t rows[kKvRecordDims / kTurboGroup] = {};
    const float error = choose_rows(format, levels, y, dims, 1.0F / step, rows) * step * step;
    if (record.step != 0 && error >= least) continue;
    least = error;
    record.step = code;
    for (std::uint32_t group = 0; group < dims / kTurboGroup; ++group) record.rows[group] = rows[group];
  }
  if (record.step == 0) return record;
  const float inverse = 1.0F / coder.decode(record.step);
  for (std::uint32_t i = 0; i < dims; ++i) {
    const float z = y[i] * inverse;
    const std::uint32_t entry = nearest_entry(format, levels, record.rows[i / kTurboGroup], z);
    const std::uint32_t sign = turbo_has_sign_bit(format) && z < 0 ? kTurboMaxEntries : 0;
    record.codes[i] = static_cast<std::uint8_t>(entry + sign);
  }
  return record;
}

[[nodiscard]] constexpr float decode_turbo(KvFormat format, KvSide side, const TurboRecord& record,
                                           std::uint32_t dims, std::uint32_t dim) {
  const std::uint32_t code = record.codes[dim];
  const float level = turbo_level(format, side, record.rows[dim / kTurboGroup], code % turbo_entries(format));
  return (code >= turbo_entries(format) ? -level : level) * StepCode{dims / kTurboGroup}.decode(record.step);
}

}  // namespace metrale::quant
