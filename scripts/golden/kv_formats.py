# SPDX-License-Identifier: Apache-2.0
"""The KV formats of docs/formats in NumPy: what a stripe's bytes are, and what they read as.

Written from those pages alone, as a second opinion about the code. Numbers are rounded by looking for the nearest
value in a list of all that a type has, and bits are placed one by one; every FP32 operation of an encoder is one NumPy
operation on float32.
"""

import re
from pathlib import Path

import numpy as np

TABLES = Path(__file__).resolve().parents[2] / "include/metrale/quant/turbo_tables.h"
F = np.float32
LARGEST_FLOAT = np.finfo(F).max
RECORD, GROUP, SCALE_GROUP = 128, 8, 16
CODE_BITS = {"bf16": 16, "fp32": 32, "fp16": 16, "fp8": 8, "nvfp4": 4, "turbo4": 4, "turbo3": 3, "turbo2": 2,
             "turbo8": 8, "turbo8i": 8, "nvfp4_searched": 4}
TURBO = ("turbo4", "turbo3", "turbo2")
ROTATED = (*TURBO, "turbo8", "turbo8i")


# Small numbers: the values of a type by code, without sign.

def small_floats(exponent_bits, mantissa_bits, bias):
    """All codes of such a number, exact in float64, as if none of them were kept for infinity or NaN."""
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    return np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - float(bias)))


def nearest(values, x):
    """Index of the value nearest to each x >= 0, of two the even one; the last value where x is beyond it."""
    x = np.asarray(x, np.float64)
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    low, high = x - values[above - 1], values[above] - x
    below = (low < high) | ((low == high) & ((above - 1) % 2 == 0))
    return np.where(below, above - 1, above)


E4M3 = small_floats(4, 3, 7)[:0x7F]
E2M1 = small_floats(2, 1, 1)
HALF = small_floats(5, 10, 15)[:0x7C01]  # the last one stands for infinity
BFLOAT = small_floats(8, 7, 127)[:0x7F81]


def signed_code(values, x, sign_bit, nan_code):
    """Codes of x; `nan_code(x)` gives those of NaN, without sign."""
    code = nearest(values, np.abs(np.where(np.isnan(x), 0, x)))
    code = np.where(np.isnan(x), nan_code(x), code)
    return code | np.where(np.signbit(x), sign_bit, 0)


def e4m3_code(x):
    return signed_code(E4M3, x, 0x80, lambda _: 0x7F)


def e4m3_value(code):
    code = np.asarray(code)
    magnitude = np.append(E4M3, np.nan)[code & 0x7F]
    return np.where(code & 0x80, -magnitude, magnitude).astype(F)


def bf16_code(x):
    return signed_code(BFLOAT, x, 0x8000, lambda x: np.asarray(x, F).view(np.uint32) >> 16 & 0x7FFF | 0x40)


def bf16_value(code):
    return (np.asarray(code, np.uint32) << 16).view(F)


def fp16_code(x):
    return signed_code(HALF, x, 0x8000, lambda _: 0x7E00)


def fp16_value(code):
    return np.asarray(code, np.uint16).view(np.float16).astype(F)


def e2m1_code(x):
    return signed_code(E2M1, x, 8, lambda _: 0)


def e2m1_value(code):
    return np.where(code & 8, -E2M1[code & 7], E2M1[code & 7]).astype(F)


# docs/formats/rotation.md

def hadamard(x):
    x = np.array(x, F)
    block = min(len(x) & -len(x), 512)
    distance = 1
    while distance < block:
        pairs = x.reshape(-1, 2, distance)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(-1)
        distance *= 2
    return x * F(1 / np.sqrt(np.float64(block)))


def signs(seed, count):
    """The top bits of SplitMix64's outputs."""
    mask, state, out = (1 << 64) - 1, seed, []
    for _ in range(count):
        state = state + 0x9E3779B97F4A7C15 & mask
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        out.append(-1.0 if (z ^ z >> 31) >> 63 else 1.0)
    return np.array(out, F)


def rotate(x, diagonal, mean):
    return hadamard((np.asarray(x, F) - mean) * diagonal)


def unrotate(y, diagonal, mean):
    return hadamard(y) / diagonal + mean


def pairwise(x):
    """Sums along the last axis: neighbours first, as if zeros filled it up to a power of two."""
    x = np.asarray(x, F)
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = np.concatenate([x, np.zeros((*x.shape[:-1], size - x.shape[-1]), F)], -1)
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


# docs/formats/turbo.md

class Book:
    """The levels of one side of a turbo format, and the constants of its encoder."""

    def __init__(self, format_name, side):
        text = TABLES.read_text(encoding="utf-8")
        name = f"kTurbo{format_name[-1]}{side.upper()}"
        rows = re.search(rf"{name}Rows\{{\{{(.*?)\}}\}};", text, re.DOTALL).group(1)
        numbers = np.array([int(number, 0) for number in re.findall(r"-?\w+", rows)]).reshape(8, -1)
        if side == "v":
            self.levels = e4m3_value(numbers)
        else:
            self.levels = (numbers + (0.5 if format_name == "turbo4" else 0)).astype(F)
        steps = re.search(rf"{name}Steps\{{\{{(.*?)F, (.*?)F\}}, (.*?)F\}};", text).groups()
        *self.per_rms, self.per_peak = (F(step) for step in steps)
        self.has_sign = format_name == "turbo4"
        self.bounds = (self.levels[:, :-1] + self.levels[:, 1:]) * F(0.5)

    def nearest(self, row, z):
        """The level nearest to z: the lower one of two."""
        return (z[..., None] > self.bounds[row]).sum(-1)


BOOKS = {(name, side): Book(name, side) for name in TURBO for side in "kv"}


def step_values(bits):
    if bits == 16:
        return BFLOAT[:-1]
    values = small_floats(bits // 2 + 1, bits // 2 - 1, 2 ** (bits // 2) + 4)
    return values[:-(1 << (bits // 2 - 1))]  # all exponent bits set: NaN


def turbo_record(book, y):
    """(step code, rows, codes) of a record."""
    groups, ones = len(y) // GROUP, (len(y) // GROUP)
    rms = np.sqrt(pairwise(y * y) / F(len(y)))
    peak = np.abs(y).max()
    if not rms <= F(2.0**62):
        everything = book.levels.shape[1] * (2 if book.has_sign else 1) - 1
        return (1 << groups) - 1, np.full(groups, 7), np.full(len(y), everything)
    zeros = (0, np.zeros(groups, int), np.zeros(len(y), int))
    if rms < F(2.0**-62):
        return zeros
    candidates = [rms * book.per_rms[0], rms * book.per_rms[1]]
    if peak > F(4) * rms:
        candidates.append(peak * book.per_peak)
    best, values = None, step_values(ones)
    for candidate in candidates:
        code = int(nearest(values, candidate))
        step = F(values[code])
        if step == 0:
            continue
        z = (y * (F(1) / step)).reshape(groups, GROUP)
        target = np.abs(z) if book.has_sign else z
        entries = np.stack([book.nearest(row, target) for row in range(8)])
        missed = target - np.stack([book.levels[row][entries[row]] for row in range(8)])
        errors = pairwise(missed * missed)
        rows = errors.argmin(0)
        own = np.arange(groups)
        error = pairwise(errors[rows, own]) * step * step
        if best is None or error < best[0]:
            codes = entries[rows, own] + np.where((z < 0) & book.has_sign, 8, 0)
            best = (error, (code, rows, codes.reshape(-1)))
    return best[1] if best else zeros


def turbo_values(book, step_code, rows, codes):
    values = step_values(len(rows))
    if len(rows) == 16:
        step = bf16_value(step_code)[()]
    else:
        step = F(values[step_code]) if step_code < len(values) else F(np.nan)
    level = book.levels[np.repeat(rows, GROUP), codes & 7]
    return np.where((codes & 8) != 0, -level, level) * step


# docs/formats/kv_block.md

class Stripe:
    """A stripe as bits, the lowest of each byte first; memory that nobody wrote has them all set."""

    def __init__(self, name, side, block_size, head_dim):
        self.name, self.side, self.head_dim, self.block_size = name, side, head_dim, block_size
        self.row_bytes = head_dim * CODE_BITS[name] // 8
        records = -(-head_dim // RECORD)
        kind = {**dict.fromkeys(TURBO, head_dim // 16), "nvfp4": head_dim // 16, "nvfp4_searched": head_dim // 16,
                "turbo8": 2 * records, "turbo8i": 2 * records}
        self.header_bytes = kind.get(name, 0)
        self.bits = np.ones(8 * block_size * (self.row_bytes + self.header_bytes), np.uint8)

    def bytes(self):
        return np.packbits(self.bits, bitorder="little").tobytes()

    def header_bit(self, token):
        return 8 * (self.block_size * self.row_bytes + token * self.header_bytes)

    def put(self, first, count, number):
        self.bits[first:first + count] = [int(number) >> i & 1 for i in range(count)]

    def get(self, first, count):
        return sum(int(bit) << i for i, bit in enumerate(self.bits[first:first + count]))

    def records(self):
        return [(first, min(RECORD, self.head_dim - first)) for first in range(0, self.head_dim, RECORD)]

    def code_place(self, token, dim, bit):
        """Where bit `bit` of a turbo code lies."""
        group, e, row = dim // 8, dim % 8, 8 * token * self.row_bytes
        if self.name == "turbo4":
            sign = (3, 11, 19, 27, 7, 15, 23, 31)[e]
            return row + 32 * group + (4 * e + bit if bit < 3 else sign)
        if self.name == "turbo2":
            return row + 32 * (group // 2) + 4 * e + 2 * (group % 2) + bit
        if self.side == "v":
            row = 8 * (8 * self.row_bytes * (token // 8) + 2 * self.row_bytes * (token % 4) + 12 * (dim // 16))
            group = 2 * (token % 8 // 4) + group % 2
        else:
            row, left = row + 96 * (dim // 32), self.head_dim - dim // 32 * 32
            group %= 4
            if left == 16 and group == 1:
                return row + (4 * e + 3 if bit == 2 else 32 + 2 * e + bit)
        return row + (32 * group + 4 * e + bit if group < 3 else 32 * bit + 4 * e + 3)

    def turbo_codes(self, token):
        return np.array([[self.code_place(token, dim, bit) for bit in range(CODE_BITS[self.name])]
                         for dim in range(self.head_dim)])

    def encode(self, token, x, scale=F(1), diagonal=F(1), mean=F(0)):
        x = np.asarray(x, F)
        if self.name in ROTATED:
            x = rotate(x, diagonal, mean)
        if self.name in TURBO:
            self.encode_turbo(token, x)
        elif self.name in ("turbo8", "turbo8i"):
            self.encode_records(token, x)
        elif self.name.startswith("nvfp4"):
            self.encode_groups(token, x, F(scale))
        else:
            self.put_codes(token, {"bf16": bf16_code, "fp16": fp16_code, "fp32": lambda x: x.view(np.uint32),
                                   "fp8": lambda x: e4m3_code(x * (F(1) / F(scale)))}[self.name](x))

    def decode(self, token, scale=F(1)):
        if self.name in TURBO:
            return self.decode_turbo(token)
        codes = self.get_codes(token)
        if self.name in ("turbo8", "turbo8i"):
            scales = bf16_value([self.get(self.header_bit(token) + 16 * i, 16) for i in range(len(self.records()))])
            level = e4m3_value(codes) if self.name == "turbo8" else codes.astype(np.uint8).view(np.int8).astype(F)
            return level * scales[np.arange(self.head_dim) // RECORD]
        if self.name.startswith("nvfp4"):
            groups = e4m3_value([self.get(self.header_bit(token) + 8 * i, 8) for i in range(self.header_bytes)])
            return e2m1_value(codes) * np.repeat(groups * F(scale), SCALE_GROUP)
        if self.name == "fp8":
            return e4m3_value(codes) * F(scale)
        return {"bf16": bf16_value, "fp16": fp16_value, "fp32": lambda c: c.astype(np.uint32).view(F)}[self.name](codes)

    def put_codes(self, token, codes):
        bits = CODE_BITS[self.name]
        row = (np.asarray(codes, np.uint64)[:, None] >> np.arange(bits, dtype=np.uint64) & np.uint64(1)).reshape(-1)
        first = 8 * token * self.row_bytes
        self.bits[first:first + len(row)] = row

    def get_codes(self, token):
        bits = CODE_BITS[self.name]
        first = 8 * token * self.row_bytes
        row = self.bits[first:first + self.head_dim * bits].reshape(self.head_dim, bits).astype(np.int64)
        return (row << np.arange(bits)).sum(1)

    def encode_turbo(self, token, y):
        header, codes = self.header_bit(token), []
        for first, dims in self.records():
            step, rows, own = turbo_record(BOOKS[self.name, self.side], y[first:first + dims])
            groups = dims // GROUP
            self.put(header, groups, step)
            for group in range(groups):
                self.put(header + groups + 3 * group, 3, rows[group])
            header += 4 * groups
            codes.append(own)
        places = self.turbo_codes(token)
        self.bits[places] = np.concatenate(codes)[:, None] >> np.arange(places.shape[1]) & 1

    def decode_turbo(self, token):
        header, values = self.header_bit(token), []
        places = self.turbo_codes(token)
        codes = (self.bits[places].astype(int) << np.arange(places.shape[1])).sum(1)
        for first, dims in self.records():
            groups = dims // GROUP
            rows = np.array([self.get(header + groups + 3 * group, 3) for group in range(groups)])
            values.append(turbo_values(BOOKS[self.name, self.side], self.get(header, groups), rows,
                                       codes[first:first + dims]))
            header += 4 * groups
        return np.concatenate(values)

    def encode_records(self, token, y):
        largest_code, codes = F(448 if self.name == "turbo8" else 127), []
        for index, (first, dims) in enumerate(self.records()):
            part = y[first:first + dims]
            if np.isfinite(part).all():
                scale = int(bf16_code(np.abs(part).max() / largest_code))
                scale = 0 if scale < 0x80 else scale  # subnormal
                z = part * (F(1) / bf16_value(scale)) if scale else part * F(0)
                if self.name == "turbo8":
                    own = e4m3_code(z) if scale else np.zeros(dims, int)
                else:
                    own = np.rint(np.clip(z, -largest_code, largest_code)).astype(np.int64) & 0xFF
            else:
                scale, own = 0xFFFF, np.full(dims, 0xFF)
            self.put(self.header_bit(token) + 16 * index, 16, scale)
            codes.append(own)
        self.put_codes(token, np.concatenate(codes))

    def encode_groups(self, token, x, scale):
        codes = []
        for index, group in enumerate(x.reshape(-1, SCALE_GROUP)):
            code, own = nvfp4_group(group, scale, self.name == "nvfp4_searched")
            self.put(self.header_bit(token) + 8 * index, 8, code)
            codes.append(own)
        self.put_codes(token, np.concatenate(codes))


# docs/formats/nvfp4.md

def nvfp4_group(x, scale, searched):
    """(scale code, codes) of sixteen elements."""
    if not np.isfinite(x).all():
        return 0x7F, np.full(SCALE_GROUP, 0xF)

    def attempt(code):
        step = e4m3_value(code)[()] * scale
        own = e2m1_code(x * (F(1) / step if step else F(0)))
        missed = x - e2m1_value(own) * step
        return pairwise(missed * missed), code, own

    plain = int(e4m3_code(np.abs(x).max() / F(6) / scale))
    best = attempt(plain)
    for code in range(max(1, plain - 2), min(0x7E, plain + 6) + 1) if searched else ():
        tried = attempt(code)
        best = tried if tried[0] < best[0] else best
    return best[1:]
