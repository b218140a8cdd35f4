# SPDX-License-Identifier: Apache-2.0
"""The errors that codebooks leave on synthetic vectors, and their bounds."""

import numpy as np

import turbo

RATIO_BOUND = 2.1  # plain NVFP4's error over Turbo4's
ONE_HOT_BOUND = 5e-3
RATIO_SETS = ("gaussian", "laplace", "t(3)", "4 channels x20")


def gaussian(records, dims, seed):
    """Scaled to an rms of 1."""
    y = np.random.default_rng(seed).standard_normal((records, dims))
    return y / np.sqrt((y * y).mean(1, keepdims=True))


def data_sets(records=4000):
    """name -> vectors before rotation"""
    rng = np.random.default_rng(20)
    shape = (records, 128)
    loud, massive = np.ones(128), np.zeros(128)
    loud[[5, 40, 77, 100]] = 20
    massive[9] = 100
    sets = {
        "gaussian": rng.standard_normal(shape),
        "laplace": rng.laplace(size=shape),
        "t(3)": rng.standard_t(3, shape),
        "4 channels x20": rng.standard_normal(shape) * loud,
        "1 channel +100": rng.standard_normal(shape) + massive,
    }
    return sets | {f"gaussian {dims}": rng.standard_normal((records, dims)) for dims in (64, 80, 96)}


def one_hot():
    """What a rotated vector may be at worst: one spike, the rest zero."""
    hot = np.zeros((32, 128))
    hot[np.arange(32), np.arange(32) * 5 % 128] = np.geomspace(0.01, 100, 32) * np.where(np.arange(32) % 2, -1, 1)
    return hot


def problems(books):
    """Prints the table; returns what misses its bound."""
    rng = np.random.default_rng(21)
    found = []
    print("NMSE x1e-3".ljust(18) + "nvfp4".rjust(9) + "".join(form.name.rjust(10) for form in books) + "  nvfp4 / turbo4")
    for name, x in data_sets().items():
        y = turbo.rotate(x, rng.choice([-1.0, 1.0], x.shape[1]))
        errors = {form: turbo.nmse(book, y) for form, book in books.items()}
        plain = turbo.nvfp4_nmse(x)
        ratios = {form: plain / error for form, error in errors.items() if form.bits == 4}
        print(name.ljust(18) + f"{plain * 1e3:9.2f}" + "".join(f"{error * 1e3:10.3f}" for error in errors.values())
              + "  " + ", ".join(f"{ratio:.2f}" for ratio in ratios.values()), flush=True)
        if name == "gaussian":
            found += [f"{form.name}: NMSE {error:.3e} on Gaussian vectors, above {form.bound:.3e}"
                      for form, error in errors.items() if not error <= form.bound]
        if name in RATIO_SETS:
            found += [f"{form.name}: nvfp4's NMSE on {name} is only {ratio:.3f} times as large, not {RATIO_BOUND}"
                      for form, ratio in ratios.items() if not ratio >= RATIO_BOUND]
    errors = {form: turbo.nmse(book, one_hot()) for form, book in books.items()}
    print("one-hot, rotated".ljust(18) + " " * 9 + "".join(f"{error * 1e3:10.3f}" for error in errors.values()))
    found += [f"{form.name}: NMSE {error:.3e} on one-hot vectors, above {ONE_HOT_BOUND:.3e}"
              for form, error in errors.items() if form.bits == 4 and not error <= ONE_HOT_BOUND]
    return found
