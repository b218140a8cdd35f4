# SPDX-License-Identifier: Apache-2.0
"""What golden files keep of a row of logits, and how two rows are compared. tests/support/logit_rows.h is the C++ twin."""

import numpy as np

TOP = 64
PROJECTIONS = 4
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix64(value):
    """splitmix64's output for the state `value`; takes a Python integer or a uint64 array."""
    if isinstance(value, int):
        return int(mix64(np.array([value & MASK], dtype=np.uint64))[0])
    with np.errstate(over="ignore"):
        z = value + np.uint64(GOLDEN_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def projection_signs(vocab):
    """[PROJECTIONS][vocab] of +1 and -1: the top bit of mix64(projection * 2^32 + token), set = minus."""
    signs = np.empty((PROJECTIONS, vocab))
    for index in range(PROJECTIONS):
        words = mix64(np.arange(vocab, dtype=np.uint64) + np.uint64(index << 32))
        signs[index] = 1.0 - 2.0 * (words >> np.uint64(63)).astype(np.float64)
    return signs


def project(rows, signs):
    """sum(sign * logit) / sqrt(vocab) in float64, per row and projection."""
    return rows.astype(np.float64) @ signs.T / np.sqrt(rows.shape[-1])


def log_sum_exp(rows):
    wide = rows.astype(np.float64)
    peak = wide.max(axis=-1)
    return peak + np.log(np.exp(wide - peak[..., None]).sum(axis=-1))


def top_ids(rows, count=TOP):
    """The ids of the `count` largest logits of each row, largest first, the lower id first among equals."""
    return np.argsort(-rows.astype(np.float64), axis=-1, kind="stable")[..., :count]


def full_kl(reference, rows):
    """KL(softmax(reference) || softmax(rows)) per row over the whole vocabulary, in float64."""
    log_p = reference.astype(np.float64) - log_sum_exp(reference)[..., None]
    log_q = rows.astype(np.float64) - log_sum_exp(rows)[..., None]
    return (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)


def rest_log_sum_exp(rows, ids):
    """log(sum(exp)) of every logit of a row but those of `ids`."""
    rest = rows.astype(np.float64).copy()
    np.put_along_axis(rest, ids, -np.inf, axis=-1)
    return log_sum_exp(rest)


def bucket_kl(reference, rows):
    """full_kl over the reference's top ids and one bucket for all the others: what the stored values can tell."""
    ids = top_ids(reference)

    def log_shares(values):
        top = np.take_along_axis(values.astype(np.float64), ids, -1)
        parts = np.concatenate([top, rest_log_sum_exp(values, ids)[..., None]], axis=-1)
        return parts - log_sum_exp(values)[..., None]

    log_p = log_shares(reference)
    return (np.exp(log_p) * (log_p - log_shares(rows))).sum(axis=-1)


def same_top(reference, rows):
    return top_ids(reference, 1)[..., 0] == top_ids(rows, 1)[..., 0]
