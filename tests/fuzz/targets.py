"""Readers of untrusted data, each as a function of one input.

A target raises only if a promise is broken: an undocumented error, or values that differ but must be equal. The caller
bounds time and memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import images, records, sources


class Target(NamedTuple):
    """A reader and its first inputs."""

    run: Callable[[bytes, Path], None]  # takes the input, and a folder that only this process uses
    seeds: Callable[[], list[bytes]]


TARGETS = {
    "jpeg": Target(images.jpeg, images.jpeg_seeds),
    "record": Target(records.record, records.record_seeds),
    "manifest": Target(records.manifest, records.manifest_seeds),
    "listing": Target(sources.listing, sources.listing_seeds),
    "tar": Target(sources.tar, sources.tar_seeds),
    "zip": Target(sources.zipped, sources.zip_seeds),
    "lmdb": Target(sources.other_lmdb, sources.other_lmdb_seeds),
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
