#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the codebooks of the turbo formats and writes include/metrale/quant/turbo_tables.h.

Usage: train.py          trains (some minutes, seeded: the same header on every run) and writes the header
       train.py --check  reads the header, prints the errors that its tables leave on synthetic vectors, and fails where
                         one misses its bound or where the header's text is not what this script writes

Training is on Gaussian vectors of 128 dims, which is what the rotation makes of most. First free levels by Lloyd's
iterations under the encoder's own choice of step and row, best of several starts; then the same on the grid of the
format (INT8 or E4M3), at the unit that fits best. Needs numpy (scripts/requirements.txt).
"""

import argparse
import functools
import sys
from pathlib import Path

import numpy as np

import header
import report
import turbo

HEADER = Path(__file__).resolve().parents[2] / "include/metrale/quant/turbo_tables.h"
FACTORS = np.array([0.93, 1.07])  # of the rms: the steps that the encoder tries
STARTS, ITERATIONS = 40, 60
# Lloyd-Max levels of the standard normal, positive half.
NORMAL_LEVELS = {4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6180, 2.0690, 2.7326),
                 3: (0.2451, 0.7560, 1.3439, 2.1520),
                 2: (0.4528, 1.5104)}
# Turbo4 K codes no zero: a record of one spike costs what the smallest levels are against the largest of all. So the
# first level of one row is pinned here, and that of the row with the largest level at most here.
SMALLEST, SMALLEST_OF_TOP = 0.015, 0.0155


def codebook(levels, signed, unit=1.0):
    """With the encoder's constants for a table of so many units per rms."""
    reach = min(levels.max(), -levels.min()) if signed else levels.max()
    return turbo.Codebook(signed, levels, header.as_float(FACTORS / unit), header.as_float(1 / reach))


def start(bits, seed):
    rng = np.random.default_rng([bits, seed])
    gains = np.geomspace(0.5, 1.5, turbo.ROWS)[:, None]
    levels = np.array(NORMAL_LEVELS[bits]) * gains
    if bits == 4:
            return levels * np.exp(0.1 * rng.standard_normal(levels.shape))
    levels = np.concatenate([-levels[:, ::-1], levels], 1)
    return levels * np.exp(0.3 * rng.standard_normal(levels.shape)) + 0.2 * rng.standard_normal((turbo.ROWS, 1))


def pin_small_levels(levels, signed):
    if not signed:
        top = levels[:, -1].argmax()
        first = levels[:, 0].copy()
        first[top] = np.inf
        levels[first.argmin(), 0] = SMALLEST
        levels[top, 0] = min(levels[top, 0], SMALLEST_OF_TOP * levels[top, -1])
    return levels


def settle(levels, grid, unit, signed):
    """The levels where they may stand, all in units of the rms: pinned, on the grid, rows by gain."""
    levels = pin_small_levels(np.sort(levels, 1), signed)
    levels = np.sort(grid(levels * unit), 1) / unit
    return levels[np.argsort((levels**2).sum(1), kind="stable")]


class Sample:
    """Gaussian records for training, their elements in bins of 1/512 rms, which is what makes an iteration cheap."""

    BINS = 512

    def __init__(self, bits, records, seed):
        self.signed = bits < 4
        y = report.gaussian(records, 128, [bits, seed])
        bins = [np.rint((y if self.signed else np.abs(y)) / factor * self.BINS).astype(np.int32) for factor in FACTORS]
        lowest = min(part.min() for part in bins)
        self.at = (lowest + np.arange(max(part.max() for part in bins) - lowest + 1)) / self.BINS
        # Per candidate: [element of the group, group].
        self.bins = [np.ascontiguousarray((part - lowest).reshape(-1, turbo.GROUP).T) for part in bins]
        self.records = records

    def encode(self, levels):
        """Under the encoder's choice: the mean error, and what each row was given, as [row, bin] sums of weights."""
        errors = np.empty((len(FACTORS), self.records))
        rows = []
        for index, (factor, bins) in enumerate(zip(FACTORS, self.bins)):
            least = np.full(bins.shape[1], np.inf, np.float32)
            row_of = np.zeros(bins.shape[1], np.int8)
            for row in range(turbo.ROWS):
                table = ((self.at - levels[row][turbo.nearest(levels[row], self.at)]) ** 2).astype(np.float32)
                error = table[bins].sum(0)
                row_of[error < least] = row
                least = np.minimum(least, error)
            rows.append(row_of)
            errors[index] = least.reshape(self.records, -1).sum(1, dtype=np.float64) * factor**2
        chosen = errors.argmin(0)
        given = np.zeros((turbo.ROWS, len(self.at)))
        for index, (factor, bins) in enumerate(zip(FACTORS, self.bins)):
            mine = np.repeat(chosen == index, 128 // turbo.GROUP)
            for row in range(turbo.ROWS):
                elements = bins[:, mine & (rows[index] == row)].ravel()
                given[row] += np.bincount(elements, minlength=len(self.at)) * factor**2
        return errors.min(0).mean() / 128, given


def cell_means(levels, at, given, rounds=3):
    """Lloyd-Max within each row on what it was given."""
    levels = levels.copy()
    for row, weights in zip(levels, given):
        for _ in range(rounds):
            cell = turbo.nearest(row, at)
            count = np.bincount(cell, weights, len(row))
            moment = np.bincount(cell, weights * at, len(row))
            row[count > 0] = moment[count > 0] / count[count > 0]
    return levels


def anywhere(levels):
    return levels


def lloyd(levels, sample, iterations, grid=anywhere, unit=1.0):
    """(error, levels), the best on the way: with pins or on a grid the error need not fall with every iteration."""
    levels = settle(levels, grid, unit, sample.signed)
    best = np.inf, levels
    for _ in range(iterations):
        error, given = sample.encode(levels)
        if error < best[0]:
            best = error, levels
        levels = settle(cell_means(levels, sample.at, given), grid, unit, sample.signed)
    return best


def train_free(bits):
    few, many = Sample(bits, 1500, 1), Sample(bits, 8000, 2)
    trials = [lloyd(start(bits, seed), few, ITERATIONS) for seed in range(STARTS)]
    return lloyd(min(trials, key=lambda trial: trial[0])[1], many, ITERATIONS)[1]


def train_grid(form, free):
    """The free levels on the grid of one side, at the best of several units."""
    grid = functools.partial(turbo.to_grid, form.grid)
    if form.grid == "e4m3":
        units = np.exp2(2 + np.arange(32) / 32)
    else:
        units = 127 / np.abs(free).max() * np.linspace(0.7, 1, 16)
    few, many = Sample(form.bits, 2000, 3), Sample(form.bits, 8000, 4)
    unit = min(units, key=lambda unit: lloyd(free, few, 4, grid, unit)[0])
    return codebook(grid(lloyd(free, many, 20, grid, unit)[1] * unit), form.signed, unit)


def train():
    books = {}
    for bits in (4, 3, 2):
        free = train_free(bits)
        for form in turbo.FORMATS:
            if form.bits == bits:
                books[form] = train_grid(form, free)
                print(f"{form.name}: {turbo.nmse(books[form], report.gaussian(4000, 128, 0)) * 1e3:.3f}e-3", flush=True)
    HEADER.write_text(header.render(books), encoding="utf-8")


def check():
    text = HEADER.read_text(encoding="utf-8")
    books = header.parse(text)
    problems = [] if header.render(books) == text else [f"{HEADER.name} is not what train.py writes"]
    problems += report.problems(books)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="do not train; judge the committed header")
    if parser.parse_args().check:
        sys.exit(check())
    train()
