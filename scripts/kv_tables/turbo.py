# SPDX-License-Identifier: Apache-2.0
"""The turbo record in numpy: rotation, step rounding, the encoder's choice, and the error it leaves."""

import dataclasses

import numpy as np

GROUP = 8
ROWS = 8
SPIKY = 4.0  # peak / rms above which the candidate of the peak is tried too


@dataclasses.dataclass(frozen=True)
class Format:
    """One side of one format."""

    bits: int
    side: str
    grid: str  # "half": T + 0.5 with T of 0..127; "int8": -127..127; "e4m3"
    bound: float  # of the NMSE on Gaussian vectors of 128

    @property
    def name(self):
        return f"turbo{self.bits} {self.side}"

    @property
    def signed(self):
        """Whether a row holds signed levels; else it holds magnitudes and each code has a sign bit of its own."""
        return self.bits < 4

    @property
    def levels(self):
        """Entries of a row."""
        return 2**self.bits if self.signed else 2 ** (self.bits - 1)


FORMATS = tuple(
    Format(bits, side, grid, bound)
    for bits, bound, grids in ((4, 4.0e-3, ("half", "e4m3")), (3, 15.2e-3, ("int8", "e4m3")),
                               (2, 60.5e-3, ("int8", "e4m3")))
    for side, grid in zip("KV", grids))


@dataclasses.dataclass
class Codebook:
    """What the header holds of one side: levels in table units and the constants of the encoder."""

    signed: bool
    levels: np.ndarray  # [ROWS, levels], each row ascending
    step_per_rms: np.ndarray  # candidates that every record tries
    step_per_peak: float  # the candidate of spiky records


def e4m3_values():
    """The 127 finite non-negative E4M3 numbers, by their byte."""
    byte = np.arange(127)
    exponent, mantissa = byte >> 3, byte & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def to_grid(grid, levels):
    """The nearest levels that a table can hold."""
    if grid == "half":
        return np.clip(np.rint(levels - 0.5), 0, 127) + 0.5
    if grid == "int8":
        return np.clip(np.rint(levels), -127, 127)
    values = e4m3_values()
    return np.copysign(values[nearest(values, np.abs(levels))], levels) + 0.0


def walsh_hadamard(x, block):
    """Of consecutive blocks of so many dims, orthonormal."""
    shape = x.shape
    y = x.reshape(-1, block)
    half = 1
    while half < block:
        pair = y.reshape(-1, block // (2 * half), 2, half)
        y = np.stack([pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]], 2).reshape(-1, block)
        half *= 2
    return (y / np.sqrt(block)).reshape(shape)


def rotate(x, signs):
    dims = x.shape[1]
    return walsh_hadamard(x * signs, dims & -dims)


def round_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def round_small(x, bits):
    """To an unsigned float of so many bits: bits / 2 - 1 of mantissa, subnormals, saturating."""
    mantissa, bias = bits // 2 - 1, {8: 20, 10: 36, 12: 68}[bits]
    exponent = np.frexp(x)[1] - 1
    quantum = np.exp2(np.maximum(exponent, 1 - bias) - mantissa)
    largest = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (bits // 2 + 1) - 2 - bias)
    return np.minimum(np.rint(x / quantum) * quantum, largest)


def round_step(x, dims):
    return round_bf16(x) if dims == 128 else round_small(x, dims // GROUP)


def nearest(row, z):
    """Index of the row's level nearest to each z."""
    return np.searchsorted((row[1:] + row[:-1]) / 2, z)


def group_errors(levels, z):
    """[record, group, row] squared errors in table units, z = y / step (its magnitude where levels are magnitudes)."""
    out = np.empty((len(z), z.shape[1] // GROUP, len(levels)))
    for index, row in enumerate(levels):
        error = z - row[nearest(row, z)]
        out[:, :, index] = (error * error).reshape(len(z), -1, GROUP).sum(2)
    return out


def candidate_steps(book, y):
    """[record, candidate] steps before rounding; the last is that of the peak, or a repeated one where it is not tried."""
    rms = np.sqrt((y * y).mean(1))
    peak = np.abs(y).max(1)
    steps = rms[:, None] * book.step_per_rms
    spiky = np.where(peak > SPIKY * rms, peak * book.step_per_peak, steps[:, 0])
    return np.concatenate([steps, spiky[:, None]], 1)


def choose(book, y):
    """The encoder's choice for records of at most 128 dims: step [record], row [record, group], error [record]."""
    target = y if book.signed else np.abs(y)
    steps = round_step(candidate_steps(book, y), y.shape[1])
    best = np.full(len(y), np.inf)
    step = np.zeros(len(y))
    rows = np.zeros((len(y), y.shape[1] // GROUP), int)
    for candidate in range(steps.shape[1]):
        tried = np.arange(len(y))
        if candidate == steps.shape[1] - 1:
            tried = np.flatnonzero(steps[:, candidate] != steps[:, 0])
        tried = tried[steps[tried, candidate] > 0]
        if not len(tried):
            continue
        scale = steps[tried, candidate]
        z = target[tried] / scale[:, None]
        errors = group_errors(book.levels, z)
        total = errors.min(2).sum(1) * scale**2
        better = total < best[tried]
        best[tried[better]] = total[better]
        step[tried[better]] = scale[better]
        rows[tried[better]] = errors.argmin(2)[better]
    return step, rows, best


def nmse(book, y):
    """Of rotated vectors of any length that the records divide."""
    dims = y.shape[1]
    error = sum(choose(book, y[:, at:at + 128])[2].sum() for at in range(0, dims, 128))
    return error / (y * y).sum()


def nvfp4_nmse(x):
    """Groups of 16, scale absmax / 6 in E4M3 over a second level in FP32, as plain encoders find it."""
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = e4m3_values()
    groups = np.abs(x).reshape(len(x), -1, 16)
    scale = groups.max(2) / 6
    tensor = scale.max() / 448
    scale = values[nearest(values, scale / tensor)][..., None] * tensor
    z = groups / np.maximum(scale, 1e-30)
    error = groups - grid[nearest(grid, z)] * scale
    return (error * error).sum() / (x * x).sum()
