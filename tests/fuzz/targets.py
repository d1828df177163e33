"""Readers of untrusted data, each as a function of one input.

A target raises only if a promise is broken: an undocumented error, or values that differ but must be equal. The caller
bounds time and memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import images, records, sources

TARGETS: dict[str, Callable[[bytes, Path], None]] = {  # each takes the input, and a folder that only this process uses
    "jpeg": images.jpeg,
    "record": records.record,
    "manifest": records.manifest,
    "listing": sources.listing,
    "tar": sources.tar,
    "zip": sources.zipped,
    "lmdb": sources.other_lmdb,
}


def mutate(rng: random.Random, inputs: list[bytes]) -> bytes:
    """Return an input with some bytes flipped, overwritten, removed, repeated or taken from another input."""
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at, size = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 4, 8, 64])
        other = rng.choice(inputs)
        start = rng.randrange(len(other) + 1)
        numbers = bytes(size), b"\xff" * size, b"\x7f" + b"\xff" * (size - 1)
        new = rng.choice([rng.randbytes(size), *numbers, b"", other[start : start + size]])
        if rng.random() < 0.1:
            del data[at:]
        else:
            data[at : at + rng.choice([0, len(new), size])] = new
    return bytes(data)
