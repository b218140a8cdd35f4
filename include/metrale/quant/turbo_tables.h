// SPDX-License-Identifier: Apache-2.0
// The codebooks of the turbo formats and the constants of their encoder. Frozen: what is stored is read by
// these numbers. Made by scripts/kv_tables/train.py; docs/adr/0015-turbo-tables.md says how they came about.
//
// A record has a step and, for each group of 8 dims, a row. With level = kTurbo...Rows[row][code]:
//   Turbo4 K            value = sign * (level + 0.5) * step, the sign being a bit beside the code
//   Turbo4 V            value = sign * e4m3(level) * step, likewise
//   Turbo3 K, Turbo2 K  value = level * step
//   Turbo3 V, Turbo2 V  value = e4m3(level) * step
// The values of a row ascend with the code; the rows ascend by the mean square of their values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace metrale::quant {

template <typename Level, std::size_t kCodes>
using TurboRows = std::array<std::array<Level, kCodes>, 8>;

// The steps that an encoder tries for a record: the root mean square of the record times each of
// step_per_rms, and, for a record whose largest magnitude is above kTurboSpiky root mean squares, that
// magnitude times step_per_peak, which makes it the table's outermost value.
struct TurboSteps {
  std::array<float, 2> step_per_rms;
  float step_per_peak;
};
inline constexpr float kTurboSpiky = 4.0F;

inline constexpr TurboRows<std::uint8_t, 8> kTurbo4KRows{{
    {0, 7, 14, 20, 27, 35, 44, 55},
    {2, 8, 15, 22, 30, 38, 48, 68},
    {3, 10, 17, 25, 33, 41, 51, 62},
    {3, 11, 19, 28, 37, 47, 60, 75},
    {5, 14, 23, 33, 43, 55, 67, 80},
    {3, 11, 20, 30, 40, 54, 83, 98},
    {5, 16, 27, 39, 53, 70, 90, 109},
    {1, 12, 22, 34, 47, 62, 89, 124},
}};
inline constexpr TurboSteps kTurbo4KSteps{{0.0258945F, 0.0297926F}, 0.00803213F};

inline constexpr TurboRows<std::uint8_t, 8> kTurbo4VRows{{
    {0x1A, 0x39, 0x40, 0x44, 0x48, 0x4A, 0x4D, 0x50},
    {0x2C, 0x3A, 0x41, 0x45, 0x49, 0x4B, 0x4E, 0x52},
    {0x30, 0x3C, 0x42, 0x47, 0x4A, 0x4C, 0x4F, 0x51},
    {0x30, 0x3D, 0x43, 0x48, 0x4B, 0x4E, 0x51, 0x53},
    {0x34, 0x40, 0x46, 0x4A, 0x4D, 0x50, 0x52, 0x54},
    {0x31, 0x3D, 0x44, 0x49, 0x4C, 0x50, 0x54, 0x56},
    {0x35, 0x42, 0x48, 0x4B, 0x50, 0x52, 0x55, 0x58},
    {0x29, 0x3E, 0x45, 0x4A, 0x4E, 0x51, 0x55, 0x59},
}};
inline constexpr TurboSteps kTurbo4VSteps{{0.179282F, 0.206271F}, 0.0555556F};

inline constexpr TurboRows<std::int8_t, 8> kTurbo3KRows{{
    {-64, -42, -25, -10, 4, 18, 34, 53},
    {-56, -36, -20, -5, 9, 25, 41, 61},
    {-50, -31, -15, 0, 15, 31, 49, 73},
    {-76, -47, -25, -6, 12, 32, 59, 87},
    {-76, -51, -30, -12, 6, 24, 45, 101},
    {-93, -61, -35, -14, 5, 25, 48, 82},
    {-116, -70, -39, -18, 0, 19, 40, 68},
    {-89, -47, -23, -3, 16, 38, 65, 119},
}};
inline constexpr TurboSteps kTurbo3KSteps{{0.0236138F, 0.0271686F}, 0.00862069F};

inline constexpr TurboRows<std::uint8_t, 8> kTurbo3VRows{{
    {0xCD, 0xC9, 0xC3, 0xB9, 0x2D, 0x3F, 0x46, 0x4B},
    {0xCC, 0xC7, 0xC0, 0xB1, 0x38, 0x42, 0x49, 0x4D},
    {0xCA, 0xC5, 0xBD, 0x98, 0x3C, 0x45, 0x4A, 0x4F},
    {0xD0, 0xCA, 0xC2, 0xB2, 0x3A, 0x45, 0x4C, 0x51},
    {0xD0, 0xCB, 0xC5, 0xBA, 0x32, 0x42, 0x49, 0x52},
    {0xD2, 0xCD, 0xC7, 0xBC, 0x30, 0x42, 0x4A, 0x50},
    {0xD4, 0xCF, 0xC8, 0xBF, 0x0E, 0x40, 0x48, 0x4E},
    {0xD1, 0xCA, 0xC2, 0xAB, 0x3E, 0x48, 0x4D, 0x54},
}};
inline constexpr TurboSteps kTurbo3VSteps{{0.227518F, 0.261768F}, 0.0833333F};

inline constexpr TurboRows<std::int8_t, 4> kTurbo2KRows{{
    {-46, -18, 6, 31},
    {-39, -9, 17, 47},
    {-27, 0, 26, 60},
    {-60, -21, 9, 46},
    {-73, -34, -4, 28},
    {-57, -13, 21, 71},
    {-36, 1, 37, 88},
    {-91, -28, 10, 53},
}};
inline constexpr TurboSteps kTurbo2KSteps{{0.0267537F, 0.0307811F}, 0.0113636F};

inline constexpr TurboRows<std::uint8_t, 4> kTurbo2VRows{{
    {0xD1, 0xC6, 0x3A, 0x4C},
    {0xCF, 0xBF, 0x45, 0x51},
    {0xCB, 0x9C, 0x4A, 0x54},
    {0xD4, 0xC8, 0x3E, 0x51},
    {0xD7, 0xCE, 0xB5, 0x4B},
    {0xD3, 0xC2, 0x48, 0x56},
    {0xCE, 0x27, 0x4F, 0x59},
    {0xD9, 0xCB, 0x40, 0x53},
}};
inline constexpr TurboSteps kTurbo2VSteps{{0.135283F, 0.155648F}, 0.0555556F};

}  // namespace metrale::quant
