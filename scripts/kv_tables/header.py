# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the C++ header of the codebooks."""

import re

import numpy as np

import turbo

TOP = """// SPDX-License-Identifier: Apache-2.0
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
inline constexpr float kTurboSpiky = %(spiky)s;
"""
BOTTOM = "\n}  // namespace metrale::quant\n"


def as_float(x):
    """To what a literal of six digits gives."""
    return np.array([float(np.float32(f"{value:.6g}")) for value in np.atleast_1d(x)])[() if np.ndim(x) else 0]


def literal(x):
    text = f"{x:.6g}"
    return (text if "." in text else text + ".0") + "F"


def name(form):
    return f"kTurbo{form.bits}{form.side}"


def entries(form, book):
    if form.grid == "half":
        return np.rint(book.levels - 0.5).astype(int)
    if form.grid == "int8":
        return np.rint(book.levels).astype(int)
    values = turbo.e4m3_values()
    byte = turbo.nearest(values, np.abs(book.levels))
    return byte + 128 * (book.levels < 0)


def levels(form, numbers):
    if form.grid == "half":
        return numbers + 0.5
    if form.grid == "int8":
        return numbers.astype(float)
    return turbo.e4m3_values()[numbers & 127] * np.where(numbers & 128, -1.0, 1.0)


def render(books):
    parts = [TOP % {"spiky": literal(turbo.SPIKY)}]
    for form, book in books.items():
        numbers = entries(form, book)
        write = "0x{:02X}".format if form.grid == "e4m3" else str
        kind = "std::int8_t" if form.grid == "int8" else "std::uint8_t"
        rows = "".join(f"    {{{', '.join(map(write, row))}}},\n" for row in numbers.tolist())
        first, second = map(literal, book.step_per_rms)
        parts.append(f"\ninline constexpr TurboRows<{kind}, {form.levels}> {name(form)}Rows{{{{\n{rows}}}}};\n"
                     f"inline constexpr TurboSteps {name(form)}Steps{{{{{first}, {second}}}, {literal(book.step_per_peak)}}};\n")
    return "".join(parts) + BOTTOM


def parse(text):
    books = {}
    for form in turbo.FORMATS:
        rows = re.search(rf"{name(form)}Rows\{{\{{(.*?)\}}\}};", text, re.DOTALL).group(1)
        numbers = np.array([int(number, 0) for number in re.findall(r"-?\w+", rows)]).reshape(turbo.ROWS, form.levels)
        steps = re.search(rf"{name(form)}Steps\{{\{{(.*?)F, (.*?)F\}}, (.*?)F\}};", text).groups()
        first, second, peak = (float(np.float32(step)) for step in steps)
        books[form] = turbo.Codebook(form.signed, levels(form, numbers), np.array([first, second]), peak)
    return books
