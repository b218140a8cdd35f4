#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/sampling/cases.json: what a sampler must keep, and with which probability, in float64.

Usage: sampling_golden.py          write the file and its SHA-256
       sampling_golden.py --check  fail if the committed file differs from what this script makes
"""
import hashlib
import json
import pathlib
import sys

import numpy as np

SEED = 20240229
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "sampling"
MARGIN = 1e-4  # no decision of a case is closer than this, so rounding cannot turn it


class SplitMix:
    """A generator whose numbers do not change with the numpy release."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    def uniform(self):
        return self.bits() / 2**64

    def below(self, bound):
        return self.bits() % bound

    def pick(self, *choices):
        return choices[self.below(len(choices))]

    def normal(self):
        return sum(self.uniform() for _ in range(12)) - 6.0


class TooClose(Exception):
    """A decision of the case lies within MARGIN of its threshold."""


def decided(difference):
    if 0 < abs(difference) < MARGIN:
        raise TooClose
    return difference


def dry_lengths(history, breakers):
    """token -> length of the longest earlier match of the end of the history that the token followed."""
    lengths = {}
    for end in range(len(history) - 1):
        length = 0
        while length <= end and history[end - length] == history[-1 - length] not in breakers:
            length += 1
        token = history[end + 1]
        if length and token not in breakers:
            lengths[token] = max(lengths.get(token, 0), length)
    return lengths


def lz_amounts(history):
    """token -> sum over n = 3..5 of (n - 2) * how often the last n - 1 tokens were followed by it."""
    amounts = {}
    recent = history[-256:]
    if len(recent) < 4:
        return amounts
    for n in (3, 4, 5):
        suffix = recent[len(recent) - (n - 1):]
        for start in range(len(recent) - n + 1):
            if len(suffix) == n - 1 and recent[start:start + n - 1] == suffix:
                token = recent[start + n - 1]
                amounts[token] = amounts.get(token, 0) + (n - 2)
    return amounts


def edited(case):
    p = case["params"]
    row = np.array(case["logits"], dtype=np.float64)
    vocab = len(row)
    for token, bias in p.get("logit_bias", []):
        row[token] += bias
    window = p.get("penalty_window", 0)
    joined = [(t, False) for t in case["prompt"]] + [(t, True) for t in case["output"]]
    seen = joined[-window:] if window > 0 else joined
    r = p.get("repetition_penalty", 1.0)
    for token in {t for t, _ in seen if t < vocab}:
        row[token] = row[token] / r if row[token] > 0 else row[token] * r
    written = [t for t, is_output in seen if is_output]
    for token in {t for t in written if t < vocab}:
        row[token] -= p.get("frequency_penalty", 0.0) * written.count(token) + p.get("presence_penalty", 0.0)
    history = case["prompt"] + case["output"]
    if p.get("dry_multiplier", 0.0):
        allowed = p.get("dry_allowed_length", 2)
        for token, length in dry_lengths(history, p.get("dry_breakers", [])).items():
            if token < vocab and length >= allowed:
                row[token] -= p["dry_multiplier"] * p.get("dry_base", 1.75) ** (length - allowed)
    for token, amount in lz_amounts(history).items():
        if token < vocab:
            row[token] -= p.get("lz_penalty", 0.0) * amount
    if "allowed" in case:
        for token in set(range(vocab)) - set(case["allowed"]):
            row[token] = -np.inf
    return row


def softmax(row, temperature):
    weights = np.exp((row - row.max()) / temperature)
    return weights / weights.sum()


def expected(case):
    p = case["params"]
    row = edited(case)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    decided(row[order[0]] - row[order[1]])
    greedy = order[0]

    sigmas = p.get("top_n_sigma", 0.0)
    if sigmas:
        cut = row.max() - sigmas * row[np.isfinite(row)].std()
        row = np.array([x if decided(x - cut) >= 0 else -np.inf for x in row])
    temperature = p.get("temperature", 1.0)
    filtered_at = 1.0 if p.get("temperature_last", False) else temperature

    k = p.get("top_k", 0)
    if 0 < k < len(row):
        if np.isfinite(row[order[k]]):
            decided(row[order[k - 1]] - row[order[k]])
        row[order[k:]] = -np.inf
    top_p = p.get("top_p", 1.0)
    if top_p < 1.0:
        mass = 0.0
        probabilities = softmax(row, filtered_at)
        for i in order:
            if mass >= top_p:
                row[i] = -np.inf
            mass += probabilities[i]
            decided(mass - top_p)
    min_p = p.get("min_p", 0.0)
    probabilities = softmax(row, filtered_at)
    row = np.array([x if decided(q / probabilities.max() - min_p) >= 0 else -np.inf
                    for x, q in zip(row, probabilities)])
    probabilities = softmax(row, temperature)
    kept = [i for i in range(len(row)) if np.isfinite(row[i])]
    return {"greedy": greedy, "kept": kept, "probabilities": [float(probabilities[i]) for i in kept]}


def single(value):
    return float(np.float32(value))


def named_cases():
    example = {"logits": [3.0, 2.0, 1.0], "prompt": [], "output": []}
    yield {"name": "temperature first keeps one token", **example,
           "params": {"top_p": single(0.8), "temperature": 0.5}}
    yield {"name": "temperature last keeps two tokens", **example,
           "params": {"top_p": single(0.8), "temperature": 0.5, "temperature_last": True}}
    yield {"name": "repetition is sign aware and sees the prompt", "logits": [2.0, -2.0, 0.0, 1.0, -1.0],
           "prompt": [0, 1], "output": [2], "params": {"repetition_penalty": 2.0}}
    yield {"name": "frequency and presence see the output only", "logits": [1.0, 1.5, 0.5, 2.0],
           "prompt": [3, 3, 3], "output": [0, 0, 1],
           "params": {"frequency_penalty": 0.25, "presence_penalty": 0.5}}
    yield {"name": "dry penalises what followed the match", "logits": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
           "prompt": [0, 1, 2, 3, 4], "output": [0, 1, 2], "params": {"dry_multiplier": 0.5, "dry_base": 2.0}}
    yield {"name": "lz counts n-grams of three lengths", "logits": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
           "prompt": [5, 0, 1, 2, 3, 4, 1, 2, 4, 4], "output": [0, 1, 2], "params": {"lz_penalty": 0.25}}
    yield {"name": "sigma is measured from the best token", "logits": [10.0, 8.0, 3.0, 1.0, 0.0, -1.0],
           "prompt": [], "output": [], "params": {"top_n_sigma": 1.0}}


def random_case(rng, number):
    vocab = 4 + rng.below(28)
    alphabet = [rng.below(vocab + 3) for _ in range(5)]  # few tokens, so that they repeat; some outside
    p = {"temperature": single(rng.pick(0.5, 0.8, 1.0, 1.5, 3.0)), "temperature_last": rng.pick(False, True)}
    optional = {
        "top_k": lambda: 1 + rng.below(vocab + 4),
        "top_p": lambda: single(0.05 + 0.94 * rng.uniform()),
        "min_p": lambda: single(0.3 * rng.uniform()),
        "top_n_sigma": lambda: single(0.3 + 2 * rng.uniform()),
        "repetition_penalty": lambda: single(0.8 + rng.uniform()),
        "frequency_penalty": lambda: single(rng.uniform()),
        "presence_penalty": lambda: single(rng.uniform()),
        "penalty_window": lambda: 1 + rng.below(20),
        "dry_multiplier": lambda: single(rng.uniform()),
        "lz_penalty": lambda: single(rng.uniform()),
        "logit_bias": lambda: [[rng.below(vocab), single(2 * rng.normal())] for _ in range(3)],
    }
    for name, make in optional.items():
        if rng.uniform() < 0.4:
            p[name] = make()
    if "dry_multiplier" in p:
        p["dry_base"] = single(1 + rng.uniform())
        p["dry_allowed_length"] = 1 + rng.below(3)
        p["dry_breakers"] = [t for t in alphabet[:1] if t < vocab]
    case = {"name": f"random {number}", "logits": [single(2.5 * rng.normal()) for _ in range(vocab)],
            "prompt": [alphabet[rng.below(5)] for _ in range(rng.below(16))],
            "output": [alphabet[rng.below(5)] for _ in range(rng.below(16))], "params": p}
    if rng.uniform() < 0.3:
        case["allowed"] = [i for i in range(vocab) if rng.uniform() < 0.6] or [0, 1]
    return case


def document():
    rng = SplitMix(SEED)
    cases = [{**case, **expected(case)} for case in named_cases()]
    while len(cases) < 80:
        case = random_case(rng, len(cases))
        try:
            cases.append({**case, **expected(case)})
        except (TooClose, IndexError):
            continue
    gaps = [single(30 * rng.uniform() ** 3) for _ in range(200)]
    weights = [float(np.exp(-np.float64(gap)) * 2.0**40) for gap in gaps]
    lines = ",\n".join(json.dumps(case) for case in cases)
    return f'{{"seed": {SEED},\n"exp": {json.dumps(list(zip(gaps, weights)))},\n"cases": [\n{lines}\n]}}\n'


def main():
    text = document()
    digest = hashlib.sha256(text.encode()).hexdigest()
    files = {"cases.json": text, "cases.json.sha256": f"{digest}  cases.json\n"}
    for name, content in files.items():
        if "--check" not in sys.argv:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(content)
        elif (FOLDER / name).read_text() != content:
            sys.exit(f"tests/golden/sampling/{name} is not what {pathlib.Path(__file__).name} writes")


if __name__ == "__main__":
    main()
