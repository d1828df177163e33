"""The order of a mixture of sources: computed at any position, not stored.

In every window, whose length is the sum of the weights, each source has exactly its share of the positions. The window
is shuffled, so a source's positions in it are random. The k-th draw from a source of n samples is sample ``k % n`` of
its pass ``k // n``, and each pass has its own order. So a source gives all of its samples before it repeats one.

A long window is halved until its blocks have at most ``SHUFFLED`` positions. Half of the draws from a source are in
each half. If that is no integer, random numbers decide which half gets one more. So a block has less than two draws
more or fewer than a source's share. If windows have a power of two of positions, the difference is below one.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dbloader.sampling.permutation import Permutation
from dbloader.sampling.rng import bits, derive_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dbloader.sampling.rng import Array

# Positions that are shuffled as a whole, which takes 0.1 ms. Splitting a longer window takes 0.03 ms for each half.
SHUFFLED = 1024

# The largest sum of weights that is kept exactly, and the sum that replaces larger ones, such as the sum of roots.
_EXACT, _ROUNDED = 2**40, 2**48

_AT_A_TIME = 2**16  # numbers in a temporary table


class Source(Protocol):
    """Anything whose draws have an order: the samples of a dataset, or another mixture.

    Attributes:
        length: Draws in one pass.
    """

    length: int

    def walk(self, seed: int, *path: int) -> Callable[[Array], Array]:
        """Return a function from draws to indices; ``path`` is the place of the source in the mixture."""


def whole_shares(weights: Iterable[Any]) -> tuple[int, ...]:
    """Return the smallest integers with the ratios of some weights: real numbers from 0, not all 0.

    A float counts as the decimal number that it is printed as: 0.1 is a tenth. Weights that need integers with a sum
    above 2**40 are rounded to multiples of 2**-48 of their sum; none of them becomes 0.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    common = lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * common) for weight in exact]
    divisor = int(np.gcd.reduce(np.array(shares, object)))
    shares = [share // divisor for share in shares]
    total = sum(shares)
    if total > _EXACT:
        shares = [max(1, share * _ROUNDED // total) if share else 0 for share in shares]
        shares[shares.index(max(shares))] += _ROUNDED - sum(shares)
    return tuple(shares)


def positions_needed(length: int, share: int, total: int) -> int:
    """Return in how many positions a source with a share of ``total`` is drawn from at least ``length`` times."""
    whole_windows = -(-length // share) * total
    # Before a position are at most two blocks of each size. A part of a block may have none of its draws.
    splits = max(0, (total // SHUFFLED).bit_length() + 1)
    return min(whole_windows, -(-(length + 4 * splits) * total // share) + SHUFFLED)


class SampleOrder:
    """The draws from the samples of one source: all of them in a random order, then again in another order.

    Args:
        length: The number of samples.
        first: The index of the first sample in the mixture.
        indices: Integers from 0, shape (length,): the place of each sample after ``first``. None for all in a row.
    """

    def __init__(self, length: int, first: int = 0, indices: Array | None = None) -> None:
        self.length = length
        self._first = first
        self._indices = indices

    def walk(self, seed: int, *path: int) -> Callable[[Array], Array]:
        """Return the function from draws, from 0, to indices in the mixture: int64, shape (draws,)."""
        key = derive_keys(2, "mixture samples", seed, *path)
        return lambda draws: self._look_up(self._shuffle(draws, key, seed, *path))

    def _look_up(self, samples: Array) -> Array:
        return self._first + (samples if self._indices is None else self._indices[samples].astype(np.int64))

    def _shuffle(self, draws: Array, key: Array, seed: int, *path: int) -> Array:
        passes, within = np.divmod(draws, self.length)
        result = np.empty_like(draws)
        if self.length <= SHUFFLED:  # there may be many passes
            for chosen, rows, row in _groups(passes, self.length):
                tables = np.argsort(_random_rows(rows * self.length, self.length, key), axis=1, kind="stable")
                result[chosen] = tables[row, within[chosen]]
            return result
        for number in np.unique(passes).tolist():
            chosen = passes == number
            result[chosen] = Permutation(self.length, seed, number, "mixture", *path)(within[chosen])
        return result


class MixtureOrder:
    """The draws from several sources in proportion to weights.

    Args:
        sources: The sources.
        schedule: From which position on which weights count, one for each source: the first position is 0.
    """

    length: int

    def __init__(self, sources: Sequence[Source], schedule: Sequence[tuple[int, Any]]) -> None:
        self.sources = sources
        self.starts = [start for start, _ in schedule]
        self.shares = [whole_shares(weights) for _, weights in schedule]

    def walk(self, seed: int, *path: int) -> MixtureWalk:
        """Return the order for a seed. Threads must not share it, because it keeps the latest window."""
        return MixtureWalk(self, seed, *path)

    def epochs(self) -> list[int]:
        """Return in how many positions each source that is drawn from at first gives all of its samples."""
        total = sum(self.shares[0])
        drawn = zip(self.sources, self.shares[0], strict=True)
        return [positions_needed(source.length, share, total) for source, share in drawn if share]


class MixtureWalk:
    """The order of a mixture for one seed; see ``MixtureOrder``."""

    def __init__(self, order: MixtureOrder, seed: int, *path: int) -> None:
        self._order = order
        self._sources = [source.walk(seed, *path, number) for number, source in enumerate(order.sources)]
        self._parts: list[tuple[_Interleaving, Array]] = []  # from each start on, and the draws before it
        before = np.zeros(len(order.sources), np.int64)
        for number, (start, shares) in enumerate(zip(order.starts, order.shares, strict=True)):
            if number:
                before = before + self._parts[-1][0].before(start - order.starts[number - 1])
            self._parts.append((_Interleaving(shares, derive_keys(2, "mixture", seed, start, *path)), before))

    def __call__(self, positions: Array) -> Array:
        """Return the indices at some positions, from 0: int64, shape (positions,)."""
        sources, draws = self.draws(positions)
        result = np.empty_like(draws)
        order = np.argsort(sources, kind="stable")
        numbers, begins = np.unique(sources[order], return_index=True)
        for number, chosen in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            result[chosen] = self._sources[number](draws[chosen])
        return result

    def draws(self, positions: Array) -> tuple[Array, Array]:
        """Return the source at each position, and how often it was drawn from before: int64, shape (positions,)."""
        sources, draws = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        at = np.searchsorted(self._order.starts, positions, "right") - 1
        for number in np.unique(at).tolist():
            chosen = np.flatnonzero(at == number)
            part, before = self._parts[number]
            sources[chosen], drawn = part(positions[chosen].astype(np.int64) - self._order.starts[number])
            draws[chosen] = drawn + before[sources[chosen]]
        return sources, draws

    def before(self, position: int) -> Array:
        """Return how often each source is drawn from before a position: int64, shape (sources,)."""
        number = int(np.searchsorted(self._order.starts, position, "right")) - 1
        part, before = self._parts[number]
        counts: Array = before + part.before(position - self._order.starts[number])
        return counts


class _Block(NamedTuple):
    """Positions in a row, how often each source is drawn from there, and how often before them."""

    start: int
    length: int
    draws: Array
    before: Array


class _Interleaving:
    """Which source each position belongs to while the weights do not change, with positions from there on."""

    def __init__(self, shares: Sequence[int], key: Array) -> None:
        self._shares = np.array(shares, np.int64)
        self._length = int(self._shares.sum())
        self._key = key
        self._path: list[_Block] = []  # the latest window, and the halves that were chosen in it

    def __call__(self, positions: Array) -> tuple[Array, Array]:
        """Return the source at each position, and how often it was drawn from before."""
        if self._length > SHUFFLED:
            return self._in_blocks(positions)
        sources, draws = np.empty_like(positions), np.empty_like(positions)
        windows, offsets = np.divmod(positions, self._length)
        for chosen, rows, row in _groups(windows, self._length):
            table, ranks = self._shuffle(self._shares, rows * self._length)
            sources[chosen], draws[chosen] = table[row, offsets[chosen]], ranks[row, offsets[chosen]]
        return sources, draws + windows * self._shares[sources]

    def _in_blocks(self, positions: Array) -> tuple[Array, Array]:
        sources, draws = np.empty_like(positions), np.empty_like(positions)
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        at = 0
        while at < len(order):
            block = self._find(int(ascending[at]))
            end = int(np.searchsorted(ascending, block.start + block.length))
            chosen, inside = order[at:end], ascending[at:end] - block.start
            table, ranks = self._shuffle(block.draws, np.array([block.start]))
            sources[chosen] = table[0, inside]
            draws[chosen] = ranks[0, inside] + block.before[sources[chosen]]
            at = end
        return sources, draws

    def before(self, position: int) -> Array:
        """Return how often each source is drawn from before a position."""
        block = self._find(position)
        table, _ = self._shuffle(block.draws, np.array([block.start]))
        counts: Array = block.before + np.bincount(table[0, : position - block.start], minlength=len(self._shares))
        return counts

    def _find(self, position: int) -> _Block:
        """Return the block with a position that is shuffled as a whole."""
        while self._path and not 0 <= position - self._path[-1].start < self._path[-1].length:
            self._path.pop()
        if not self._path:
            window = position // self._length
            self._path.append(_Block(window * self._length, self._length, self._shares, window * self._shares))
        while self._path[-1].length > SHUFFLED:
            left, right = self._split(self._path[-1])
            self._path.append(left if position < right.start else right)
        return self._path[-1]

    def _split(self, block: _Block) -> tuple[_Block, _Block]:
        odd = np.flatnonzero(block.draws & 1)
        random = bits(odd, derive_keys(2, "split", *self._key.tolist(), block.start, block.length))
        more = odd[np.argsort(random, kind="stable")[: (len(odd) + 1) // 2]]
        draws = block.draws // 2
        draws[more] += 1
        length = (block.length + 1) // 2
        return (
            _Block(block.start, length, draws, block.before),
            _Block(block.start + length, block.length - length, block.draws - draws, block.before + draws),
        )

    def _shuffle(self, draws: Array, starts: Array) -> tuple[Array, Array]:
        """Shuffle blocks with the same draws.

        Return the source at each of their positions, and how often it was drawn from before in the block: both of shape
        (blocks, positions).
        """
        numbers = np.arange(len(draws), dtype=np.uint16 if len(draws) <= 2**16 else np.int64)
        unshuffled = np.repeat(numbers, draws)
        ranks = np.arange(len(unshuffled)) - np.repeat(np.cumsum(draws) - draws, draws)
        sources = unshuffled[np.argsort(_random_rows(starts, len(unshuffled), self._key), axis=1, kind="stable")]
        result = np.empty(sources.shape, np.int64)
        # Sorted by source, each row is ``unshuffled`` again, and its draws are in the order of their positions.
        np.put_along_axis(result, np.argsort(sources, axis=1, kind="stable"), ranks[None], axis=1)
        return sources, result


def _random_rows(starts: Array, length: int, key: Array) -> Array:
    """Return random bits for the positions from each start on: uint64, shape (starts, length)."""
    return bits(starts[:, None] + np.arange(length), key)


def _groups(rows: Array, length: int) -> Iterator[tuple[Array, Array, Array]]:
    """Group elements by their rows of a table, few rows at a time.

    Yield the elements, the rows, and which of these rows belongs to each element.
    """
    unique, inverse = np.unique(rows, return_inverse=True)
    step = max(1, _AT_A_TIME // length)
    for begin in range(0, len(unique), step):
        chosen = np.flatnonzero((inverse >= begin) & (inverse < begin + step))
        yield chosen, unique[begin : begin + step], inverse[chosen] - begin
