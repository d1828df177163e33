"""A random order of n things that is computed, not stored.

The permutation is a Feistel network (Luby and Rackoff: How to Construct Pseudorandom Permutations from Pseudorandom
Functions, SIAM Journal on Computing 17, 1988), generalized to any n (Black and Rogaway: Ciphers with Arbitrary Finite
Domains, CT-RSA 2002, method 3). A position is the number of a cell in a table with at least n cells and about sqrt(n)
rows and columns. One round adds a random function of the column to the row, modulo the number of rows. The next round
adds a random function of the row to the column. Rounds can be undone. A result of n or above goes through the network
again until it is below n ("cycle walking"). The table has few surplus cells: for n above 4,096, fewer than 2 % of the
positions go through the network again. With 2**k rows and 2**k columns, up to three quarters go through again. The
number of rows is even, and rounds add instead of xor. Otherwise, some tables would have only even permutations.
"""

from __future__ import annotations

from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from dbloader.sampling.rng import bits, derive_keys, scramble

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.rng import Array

# With too few rounds, this test fails: take two positions in one column, and count how many rows are between their
# values (chi-square). In 1,464 orders of 4,097 values, 4 rounds differ from chance by 7,000 standard deviations, and 6
# rounds pass. In 3,000 orders of 1,000 values, 6 rounds differ by 10 standard deviations, and 8 pass. With fewer than
# 10 rounds, not all 5! orders of 5 values are equally frequent. So there are 8 rounds, but a table for a small n.
ROUNDS = 8
LARGEST_TABLE = 4096

# Number of positions computed at a time. All temporary arrays fit into a core's second-level cache. A million positions
# take 18 to 23 ms in one thread, and 22 to 29 ms in blocks of 8,192.
_BLOCK = 16_384


class Permutation:
    """A random order of ``range(n)``: position -> value, a pure function of ``(n, seed, epoch, purpose)``.

    Memory and the time for one position do not grow with n, which is at most 2**62. The values are the same with every
    version of dbloader and NumPy and on every machine. Orders with another seed, epoch or purpose are unrelated. Do not
    use this for cryptography.
    """

    def __init__(self, n: int, seed: int, epoch: int = 0, *purpose: int | str) -> None:
        self.n = n
        self._purpose = (n, seed, epoch, *purpose)

    def __call__(self, positions: Array) -> Array:
        """Return the values at these positions, 0 to n - 1: int64, shape (positions,)."""
        if self.n <= LARGEST_TABLE:
            return self._table[positions]
        return self._walk(positions, self._network.forward)

    def inverse(self, values: Array) -> Array:
        """Return the positions of these values, 0 to n - 1: int64, shape (values,)."""
        if self.n <= LARGEST_TABLE:
            return np.argsort(self._table)[values]
        return self._walk(values, self._network.backward)

    def _walk(self, numbers: Array, step: Callable[[Array], Array]) -> Array:
        limit = np.uint64(self.n)
        result = numbers.astype(np.uint64)
        for begin in range(0, result.size, _BLOCK):
            part = step(result[begin : begin + _BLOCK])
            outside = np.flatnonzero(part >= limit)
            while outside.size:
                part[outside] = step(part[outside])
                outside = outside[part[outside] >= limit]
            result[begin : begin + _BLOCK] = part
        return result.astype(np.int64)

    @cached_property
    def _table(self) -> Array:
        # Sort the positions by random numbers of 64 bits. Only one in 10**12 tables has two equal numbers.
        random = bits(np.arange(self.n), derive_keys(2, "table", *self._purpose))
        return np.argsort(random, kind="stable")

    @cached_property
    def _network(self) -> _Network:
        return _Network(self.n, derive_keys(ROUNDS, "network", *self._purpose))


class _Network:
    """A Feistel network over the cells of a table, with one round for each key."""

    def __init__(self, n: int, round_keys: Array) -> None:
        rows = isqrt(n - 1) + 1
        rows += rows % 2
        self._rows = np.uint64(rows)
        self._columns = np.uint64(-(-n // rows))
        self._keys = round_keys

    def forward(self, cells: Array) -> Array:
        row, column = self._split(cells)
        for even, odd in self._keys.reshape(-1, 2):
            row += _random(column, even, self._rows)
            row = np.minimum(row, row - self._rows)  # modulo: a difference below 0 wraps around to a huge number
            column += _random(row, odd, self._columns)
            column = np.minimum(column, column - self._columns)
        return row * self._columns + column

    def backward(self, cells: Array) -> Array:
        row, column = self._split(cells)
        for even, odd in self._keys.reshape(-1, 2)[::-1]:
            column -= _random(row, odd, self._columns)
            column = np.minimum(column, column + self._columns)
            row -= _random(column, even, self._rows)
            row = np.minimum(row, row + self._rows)
        return row * self._columns + column

    def _split(self, cells: Array) -> tuple[Array, Array]:
        row = cells // self._columns
        return row, cells - row * self._columns


def _random(half: Array, key: np.uint64, limit: np.uint64) -> Array:
    """Return a random number from 0 to ``limit`` - 1 for each row or column in ``half``; the limit is at most 2**31."""
    values = half ^ key
    scramble(values)
    values >>= 32
    values *= limit
    values >>= 32
    return values
