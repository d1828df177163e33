"""A random order of n things that is computed, not stored.

The permutation is a Feistel network (Luby and Rackoff: How to Construct Pseudorandom Permutations from Pseudorandom
Functions, SIAM Journal on Computing 17, 1988) in the generalized form of Black and Rogaway (Ciphers with Arbitrary
Finite Domains, CT-RSA 2002, method 3). A position is a cell, (row, column), of a table that has at least n cells and
about sqrt(n) rows and columns. Each round adds a random function of the column to the row, modulo the rows, or the
other way round, which can be undone. What comes out at n or above is put in again until it is below n ("cycle
walking"). The table has less than a column too many, so for n above 4,096 that happens to less than 2 % of the
positions, where with halves of whole bits it can be three quarters. Were both sides odd or both powers of two with
xor, a full table would have only even permutations; so the rows are even, and it is addition.
"""

from __future__ import annotations

from functools import cached_property
from math import isqrt
from operator import index as as_index
from typing import TYPE_CHECKING, overload

import numpy as np

from dbloader.errors import OptionError, RecordIndexError
from dbloader.sampling.rng import bits, derive_keys, mix

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.rng import Array

MOST = 2**62

# The sensitive statistic is how many rows apart two positions of one column come out (chi-square). With 4 rounds it is
# 7,000 standard deviations off over 1,464 orders of n = 4,097, with 6 not there but still 10 over 3,000 orders of
# n = 1,000, and with 8 in neither. All the n! orders of n = 5 come out equally often only with 10 rounds. So: 8 rounds,
# and where n is small no network but an exact shuffle, of 32 kB at most.
ROUNDS = 8
LARGEST_TABLE = 4096

# Positions computed at a time: with the temporary arrays, this fits into a core's second-level cache. A million
# positions of any n above the table take 18 to 23 ms, in one thread; in blocks of 8,192 it is 22 to 29 ms.
_BLOCK = 16_384

_HALF = np.uint64(32)


class Permutation:
    """A random order of ``range(n)``: position -> value, a pure function of ``(n, seed, epoch, purpose)``.

    Memory does not grow with n, nor the time of asking for one position. The values of given arguments are the same
    with every version of dbloader and NumPy and on every machine. Not for cryptography.

        >>> order = Permutation(10_000_000, seed=1, epoch=3)
        >>> order[9_000_000]
        8614738
        >>> order[9_000_000:9_000_003]
        array([8614738, 5949102, 7322317])
        >>> order.inverse(8614738)
        9000000

    Args:
        n: Number of things, 0 to 2**62.
        seed: Any integer.
        epoch: Any integer.
        purpose: Told apart from other permutations of the same seed and epoch by this.

    Raises:
        OptionError: ``n`` is out of its range.
        RecordIndexError: A position or value asked for is not in 0 to n - 1; also negative ones are not.
        TypeError: One is no integer.
    """

    def __init__(self, n: int, seed: int, epoch: int = 0, *purpose: int | str) -> None:
        self.n = as_index(n)
        self.seed = as_index(seed)
        self.epoch = as_index(epoch)
        self.purpose = purpose
        if not 0 <= self.n <= MOST:
            raise OptionError(f"n must be 0 to 2**62, got {n}")

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, positions: int) -> int: ...
    @overload
    def __getitem__(self, positions: slice | Array | list[int]) -> Array: ...
    def __getitem__(self, positions: int | slice | Array | list[int]) -> int | Array:
        """Return the value at a position as an int; those of a slice or array of positions as int64 of its shape."""
        return self._computed(positions, self._value_at)

    @overload
    def inverse(self, values: int) -> int: ...
    @overload
    def inverse(self, values: slice | Array | list[int]) -> Array: ...
    def inverse(self, values: int | slice | Array | list[int]) -> int | Array:
        """Return the positions at which values are; takes and return what indexing does."""
        return self._computed(values, self._position_of)

    def __repr__(self) -> str:
        purpose = "".join(f", {part!r}" for part in self.purpose)
        return f"Permutation({self.n}, {self.seed}, {self.epoch}{purpose})"

    def _computed(self, asked: int | slice | Array | list[int], function: Callable[[Array], Array]) -> int | Array:
        if isinstance(asked, slice):
            part = range(self.n)[asked]
            asked = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        numbers = np.asarray(asked)
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"positions and values are integers, got {numbers.dtype}")
        outside = numbers[(numbers < 0) | (numbers >= self.n)]
        if outside.size:
            raise RecordIndexError(f"no position or value {outside[0]} in a permutation of {self.n}, from 0")
        flat = numbers.astype(np.uint64).reshape(-1)
        for begin in range(0, flat.size, _BLOCK):
            flat[begin : begin + _BLOCK] = function(flat[begin : begin + _BLOCK])
        result = flat.astype(np.int64).reshape(numbers.shape)
        return result if result.ndim else int(result)

    def _value_at(self, positions: Array) -> Array:
        if self.n <= LARGEST_TABLE:
            return self._table[positions]
        return self._walk(positions, self._network.forward)

    def _position_of(self, values: Array) -> Array:
        if self.n <= LARGEST_TABLE:
            return np.argsort(self._table)[values]
        return self._walk(values, self._network.backward)

    def _walk(self, numbers: Array, step: Callable[[Array], Array]) -> Array:
        limit = np.uint64(self.n)
        numbers = step(numbers)
        outside = np.flatnonzero(numbers >= limit)
        while outside.size:
            numbers[outside] = step(numbers[outside])
            outside = outside[numbers[outside] >= limit]
        return numbers

    @cached_property
    def _table(self) -> Array:
        # Sorted by 64 random bits each, so uniform but for ties, of which there is one in 10**12 tables.
        random = bits(np.arange(self.n), derive_keys(2, "table", self.n, self.seed, self.epoch, *self.purpose))
        return np.argsort(random, kind="stable").astype(np.uint64)

    @cached_property
    def _network(self) -> _Network:
        return _Network(self.n, derive_keys(ROUNDS, "network", self.n, self.seed, self.epoch, *self.purpose))


class _Network:
    """The Feistel network over the cells of a table; one round for each key."""

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
            row = np.minimum(row, row - self._rows)  # modulo: below 0 wraps round to what is larger
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
    """Return a random function of the half: from 0 to ``limit`` - 1, of which 2**31 is the largest."""
    values = half ^ key
    mix(values)
    values >>= _HALF
    values *= limit
    values >>= _HALF
    return values
