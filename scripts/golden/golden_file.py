# SPDX-License-Identifier: Apache-2.0
"""Writes and reads golden files: NAME.json (facts, and a table of the arrays) beside NAME.bin (the arrays).

tests/golden/engine/README.md describes the layout; tests/support/golden.h is the reader for C++.
"""

import hashlib
import json
import re

import numpy as np
import xxhash

DTYPES = {"f32": "<f4", "u32": "<u4", "u16": "<u2"}
ALIGNMENT = 8


def xxh3(data):
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def to_json(value):
    """Indented, but a list of plain values stays on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # A JSON string holds no raw line break, so "[" and a line break are never inside one.
    return re.sub(r"\[\n([^\[\]{}]*?)\n *\]", lambda found: "[" + re.sub(r"\n *", " ", found[1]).strip() + "]", text) + "\n"


class GoldenWriter:
    def __init__(self, facts):
        self.facts = facts
        self.arrays = {}
        self.blob = bytearray()

    def add(self, name, dtype, array):
        """Keeps `array` under `name`; a value that the dtype cannot hold is an error, not a wrap."""
        source = np.asarray(array)
        stored = np.ascontiguousarray(source.astype(DTYPES[dtype]))
        if dtype != "f32" and not np.array_equal(stored.astype(np.int64), source.astype(np.int64)):
            raise ValueError(f"array '{name}' does not fit {dtype}")
        self.blob += b"\0" * (-len(self.blob) % ALIGNMENT)
        self.arrays[name] = {"dtype": dtype, "shape": list(stored.shape), "offset": len(self.blob)}
        self.blob += stored.tobytes()

    def write(self, directory, name):
        """NAME.bin is left out where there are no arrays."""
        document, data = dict(self.facts), bytes(self.blob)
        if self.arrays:
            (directory / f"{name}.bin").write_bytes(data)
            document["binary"] = {
                "file": f"{name}.bin",
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "xxh3_64": xxh3(data),
            }
            document["arrays"] = self.arrays
        text = to_json(document)
        (directory / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(data)} + {len(text.encode())} bytes")


class GoldenReader:
    def __init__(self, directory, name):
        self.facts = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
        self.blob = (directory / self.facts["binary"]["file"]).read_bytes()
        if hashlib.sha256(self.blob).hexdigest() != self.facts["binary"]["sha256"]:
            raise ValueError(f"{name}.bin is not the file that {name}.json describes")

    def array(self, name):
        entry = self.facts["arrays"][name]
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(self.blob, DTYPES[entry["dtype"]], count, entry["offset"])
        return flat.reshape(entry["shape"])
