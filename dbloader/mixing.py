"""Random numbers computed from what they are for, in place of a generator's state.

A generator has to be run from its beginning to come to the number at position 10 million. Here the number is a function
of a key and the position (Salmon, Moraes, Dror and Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The
function is the finalizer of SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
2014), with Stafford's 13th set of constants, written out here so that no library's version can change it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: neighbours lie far apart
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = (np.uint64(bits) for bits in (27, 30, 31))
_FRACTION_BITS = 53  # of a float64


def keys(count: int, *purpose: int | str) -> Array:
    """Gives keys for a purpose: uint64, shape (count,).

    Args:
        count: How many.
        purpose: What they are for, such as a seed, an epoch and a name. Integers of any size; those that differ in
            anything have unrelated keys. No str holds a ``/``.
    """
    text = "/".join(str(part) for part in purpose)
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * count), "<u8").astype(np.uint64)


def mix(values: Array) -> None:
    """Scrambles uint64 values of any shape in place: a bijection in which each bit depends on all."""
    values ^= values >> _S30
    values *= _FIRST
    values ^= values >> _S27
    values *= _SECOND
    values ^= values >> _S31


def bits(positions: Array, key: Array) -> Array:
    """Gives the random bits at positions of the stream that a key names: uint64, the shape of ``positions``.

    Args:
        positions: Integers from 0.
        key: uint64, shape (2,), as ``keys`` gives it.
    """
    values = positions.astype(np.uint64)
    values *= _GOLDEN
    values += key[0]
    mix(values)
    values ^= key[1]  # a second key: two streams are not parts of one sequence
    mix(values)
    return values


def uniform(positions: Array, key: Array) -> Array:
    """Gives the random numbers in [0, 1) at positions of the stream that a key names: float64; see ``bits``."""
    return (bits(positions, key) >> np.uint64(64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS
