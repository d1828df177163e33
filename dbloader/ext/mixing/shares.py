"""Compute the order of a mixture of sources at any position. The order is not stored.

The positions are cut into windows. The length of a window is the sum of the weights. The weight of a source is the
number of its positions in a window. Each window is shuffled. The k-th draw from a source of n samples is sample ``k %
n`` of its pass ``k // n``, and each pass has its own order. So a source gives all of its samples before it repeats one.

A window of more than ``SHUFFLED`` positions is halved, and its halves are halved again, until the resulting blocks are
short enough. Each half gets half of the draws from each source. If the number of draws is odd, random numbers decide
which half gets one more. So in each block, the number of draws from a source differs by less than two from the exact
proportion. The difference is less than one if the number of positions in a window is a power of two.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.sampling.permutation import Permutation
from dbloader.sampling.rng import bits, derive_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dbloader.sampling.rng import Array

# The most positions that are shuffled at once, in 0.1 ms. Halving a longer window takes 0.03 ms.
SHUFFLED = 1024

# Weights become integers with exactly the same ratios. If the sum of these integers would exceed _EXACT, for example
# for square roots, they only approximate the ratios, and their sum is _ROUNDED.
_EXACT, _ROUNDED = 2**40, 2**48


AT_A_TIME = 2**16  # most numbers in a temporary table


def shuffled_rows(starts: Array, length: int, key: Array) -> Array:
    """Return a random order of ``range(length)`` for each of ``starts``: shape (len(starts), length).

    A row uses the random numbers from its start on. So starts must differ by at least ``length``.
    """
    return np.argsort(bits(starts[:, None] + np.arange(length), key), axis=1, kind="stable")


def exact(weight: Any) -> Fraction:
    """Return a real number as a fraction. A float counts as the decimal number that ``print`` shows: 0.1 is a tenth."""
    return Fraction(str(weight))


def whole_shares(weights: Iterable[Any]) -> tuple[int, ...]:
    """Return the smallest integers with the ratios of the weights. No weight is below 0, and not all are 0.

    If these integers would have a sum above 2**40, integers with the sum 2**48 approximate the weights. No weight above
    0 becomes 0.
    """
    fractions = [exact(weight) for weight in weights]
    common = lcm(*(weight.denominator for weight in fractions))
    shares = [int(weight * common) for weight in fractions]
    shares = [share // gcd(*shares) for share in shares]
    total = sum(shares)
    if total > _EXACT:
        shares = [max(1, share * _ROUNDED // total) if share else 0 for share in shares]
        shares[shares.index(max(shares))] += _ROUNDED - sum(shares)
    return tuple(shares)


class MixtureOrder:
    """The draws from several sources in proportion to weights.

    Args:
        lengths: The number of samples of each source. In the mixture, the indices of a source follow the indices of the
            source before it.
        schedule: Pairs of a position and the weights of all sources from this position on. The first position is 0.

    Attributes:
        length: Draws in an epoch; the caller sets it.
    """

    length: int

    def __init__(self, lengths: Sequence[int], schedule: Sequence[tuple[int, Any]]) -> None:
        self.lengths = lengths
        self.starts = [start for start, _ in schedule]
        self.shares = [whole_shares(weights) for _, weights in schedule]

    def walk(self, seed: int) -> MixtureWalk:
        """Return the order for a seed. Threads must not share this MixtureWalk, because each call changes its state."""
        return MixtureWalk(self, seed)

    def epochs(self) -> list[int]:
        """Return, for each source with a first weight above 0, an epoch length that draws all its samples."""
        total, needed = sum(self.shares[0]), []
        # ``missing`` is the most draws by which a source may be behind its share. Up to two blocks of each size end
        # before a position, and each may lack two draws. ``SHUFFLED`` covers draws at the end of the next block.
        missing = 4 * max(0, (total // SHUFFLED).bit_length() + 1)
        for length, share in zip(self.lengths, self.shares[0], strict=True):
            if share:
                in_blocks = -(-(length + missing) * total // share) + SHUFFLED
                needed.append(min(-(-length // share) * total, in_blocks))
        return needed


class MixtureWalk:
    """The order of a mixture for one seed; see ``MixtureOrder``."""

    def __init__(self, order: MixtureOrder, seed: int) -> None:
        self._order, self._seed = order, seed
        self._firsts = [0, *accumulate(order.lengths)]
        # Each entry of the schedule has an order of sources, and the number of earlier draws from each source.
        self._parts: list[tuple[_Interleaving, Array]] = []
        for start, shares in zip(order.starts, order.shares, strict=True):
            before = self.before(start) if start else np.zeros(len(shares), np.int64)
            self._parts.append((_Interleaving(shares, derive_keys(2, "mixture", seed, start)), before))

    def __call__(self, positions: Array) -> Array:
        """Return the indices at some positions, from 0: int64, shape (positions,)."""
        sources, draws = self.draws(positions)
        order = np.argsort(sources, kind="stable")
        numbers, begins = np.unique(sources[order], return_index=True)
        for number, chosen in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            draws[chosen] = self._firsts[number] + self._samples(number, draws[chosen])
        return draws

    def _samples(self, source: int, draws: Array) -> Array:
        """Return the sample of each draw. A source gives all samples in random order, then in another order."""
        length = self._order.lengths[source]
        passes, samples = np.divmod(draws, length)
        numbers, rows = np.unique(passes, return_inverse=True)
        if length > SHUFFLED:
            for number in numbers.tolist():
                chosen = passes == number
                samples[chosen] = Permutation(length, self._seed, number, "mixture", source)(samples[chosen])
        else:  # compute many passes at once: a batch may contain many passes of a short source
            key = derive_keys(2, "mixture samples", self._seed, source)
            step = max(1, AT_A_TIME // length)
            for at in range(0, len(numbers), step):
                chosen = (rows >= at) & (rows < at + step)
                orders = shuffled_rows(numbers[at : at + step] * length, length, key)
                samples[chosen] = orders[rows[chosen] - at, samples[chosen]]
        return samples

    def draws(self, positions: Array) -> tuple[Array, Array]:
        """Return the source at each position, and the number of earlier draws from it: int64, shape (positions,)."""
        sources, draws = np.empty((2, len(positions)), np.int64)
        at = np.searchsorted(self._order.starts, positions, "right") - 1
        for number in np.unique(at).tolist():
            chosen = np.flatnonzero(at == number)
            part, before = self._parts[number]
            sources[chosen], drawn = part(positions[chosen] - self._order.starts[number])
            draws[chosen] = drawn + before[sources[chosen]]
        return sources, draws

    def before(self, position: int) -> Array:
        """Return the number of draws from each source before a position: int64, shape (sources,)."""
        number = int(np.searchsorted(self._order.starts[: len(self._parts)], position, "right")) - 1
        part, before = self._parts[number]
        counts: Array = before + part.before(position - self._order.starts[number])
        return counts


class _Block(NamedTuple):
    """Consecutive positions with constant weights."""

    start: int
    length: int
    draws: Array  # number of draws from each source in the block
    before: Array  # number of draws from each source before the block


class _Interleaving:
    """The source at each position under constant weights. Position 0 is the first position with these weights."""

    def __init__(self, shares: Sequence[int], key: Array) -> None:
        self._shares = np.array(shares, np.int64)
        self._length = sum(shares)
        self._key = key
        self._path: list[_Block] = []  # the latest window, one of its halves, a half of this half, …

    def __call__(self, positions: Array) -> tuple[Array, Array]:
        """Return the source at each position, and the number of earlier draws from it."""
        sources, draws = np.empty((2, len(positions)), np.int64)
        order = np.argsort(positions, kind="stable")
        ascending, at = positions[order], 0
        while at < len(order):
            block = self._find(int(ascending[at]))
            if self._length > SHUFFLED:
                starts, before = np.array([block.start]), block.before
                end = int(np.searchsorted(ascending, block.start + block.length))
            else:  # look up many windows at once
                starts = np.unique(ascending[at : at + AT_A_TIME // self._length] // self._length) * self._length
                end, before = int(np.searchsorted(ascending, starts[-1] + self._length)), 0 * block.before
            table, ranks = self._shuffle(block.draws, starts)
            rows = np.searchsorted(starts, ascending[at:end], "right") - 1
            inside, chosen = ascending[at:end] - starts[rows], order[at:end]
            sources[chosen], draws[chosen] = table[rows, inside], ranks[rows, inside]
            draws[chosen] += before[sources[chosen]]
            at = end
        if self._length <= SHUFFLED:
            draws += positions // self._length * self._shares[sources]
        return sources, draws

    def before(self, position: int) -> Array:
        """Return the number of draws from each source before a position."""
        block = self._find(position)
        table, _ = self._shuffle(block.draws, np.array([block.start]))
        counts: Array = block.before + np.bincount(table[0, : position - block.start], minlength=len(self._shares))
        return counts

    def _find(self, position: int) -> _Block:
        """Return the block that contains a position. Halve longer blocks until the block is short enough to shuffle."""
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
        """Shuffle the draws of a block once for each start.

        Return two arrays of shape (starts, draws): each position's source, and how many earlier draws of the block are
        from it.
        """
        numbers = np.arange(len(draws), dtype=np.uint16 if len(draws) <= 2**16 else np.int64)
        unshuffled = np.repeat(numbers, draws)
        ranks = np.arange(len(unshuffled)) - np.repeat(np.cumsum(draws) - draws, draws)
        sources = unshuffled[shuffled_rows(starts, len(unshuffled), self._key)]
        result = np.empty(sources.shape, np.int64)
        # A stable sort by source keeps the draws of each source in order, and ``ranks`` numbers these draws from 0.
        np.put_along_axis(result, np.argsort(sources, axis=1, kind="stable"), ranks[None], axis=1)
        return sources, result
