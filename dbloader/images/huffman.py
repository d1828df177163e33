"""Huffman-coded coefficients of a JPEG, followed but not decoded: only how many bits each one takes counts.

"T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard. Each walk goes through one restart interval.
It returns the MCU that it reached and the bits that it took; the end of the bits, an invalid code or a run
that leaves the band stop it before the last MCU.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dbloader.errors import DamagedImageError

LONGEST = 16  # bits of a code (T.81 B.2.4.2)

_PADDING = bytes(320)  # one block takes less: at most 64 codes of 16 bits, each with 15 more
_END_OF_BLOCK = 128  # a step past every coefficient, which no run of zeros is long enough for
_INVALID = 1024  # another, in which the bit of _END_OF_BLOCK is clear
# Where in a machine word a byte and the three after it must lie for the word to read as big-endian.
_PLACES = (3, 2, 1, 0) if sys.byteorder == "little" else (0, 1, 2, 3)


class Interval(NamedTuple):
    """MCUs from `begin` to before `end`, and the bits that code them.

    `windows` has, for each byte, the 32 bits that begin with it, so that any 16 bits are one look-up and one
    shift away. It goes on past the bits for as much as one block can take, so that a walk looks for the end
    once a block.
    """

    windows: Sequence[int]
    bits: int
    begin: int
    end: int


def open_interval(coded: bytes, begin: int, end: int) -> Interval:
    """The interval of these MCUs whose bytes are `coded`, with no stuffed zeros among them."""
    count = len(coded) + len(_PADDING) - 4
    padded = coded + _PADDING
    words = bytearray(4 * count)
    for distance, place in enumerate(_PLACES):
        words[place::4] = padded[distance : distance + count]
    return Interval(array("I", words), 8 * len(coded), begin, end)


def expand_dc(table: bytes) -> list[int]:
    """For any 16 bits: how many a code and the difference after it take (T.81 F.1.2.1), 0 without one."""
    return _expand(table, lambda length, symbol: length + symbol if symbol < 16 else 0, 0)


def expand_ac(table: bytes) -> list[int]:
    """For any 16 bits: a step in zigzag order above five bits, which count what it takes (F.1.2.2)."""

    def encode(length: int, symbol: int) -> int:
        run, size = symbol >> 4, symbol & 15
        if size or run == 15:
            return (run + 1) << 5 | (length + size)
        return (_INVALID if run else _END_OF_BLOCK) << 5 | length

    return _expand(table, encode, _INVALID << 5)


def expand_symbols(table: bytes) -> list[int]:
    """For any 16 bits: the symbol, above five bits that count its code, 0 without one."""
    return _expand(table, lambda length, symbol: symbol << 5 | length, 0)


def _expand(table: bytes, encode: Callable[[int, int], int], invalid: int) -> list[int]:
    # Codes are given out by length and continue each other (T.81 annex C), so that each fills as many
    # neighboring places as there are ways to go on after it. The code of all ones stays free (K.2); decoders
    # refuse tables that use it.
    counts, symbols = table[:16], iter(table[16:])
    if sum(count << (LONGEST - length) for length, count in enumerate(counts, 1)) >= 1 << LONGEST:
        raise DamagedImageError("a Huffman table has more codes than there are")
    meanings: list[int] = []
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            meanings += [encode(length, next(symbols))] * (1 << (LONGEST - length))
    return meanings + [invalid] * ((1 << LONGEST) - len(meanings))


def walk_sequential(units: list[tuple[list[int], list[int]]], interval: Interval) -> tuple[int, int]:
    """Whole blocks (T.81 F.1.2); `units` has, for each block of an MCU, the `expand_dc` and `expand_ac`."""
    windows, bits, begin, end = interval
    at = 0
    for mcu in range(begin, end):
        for dc, ac in units:
            taken = dc[windows[at >> 3] >> 16 - (at & 7) & 0xFFFF]
            at += taken
            coefficient = 1
            while coefficient < 64:
                meaning = ac[windows[at >> 3] >> 16 - (at & 7) & 0xFFFF]
                at += meaning & 31
                coefficient += meaning >> 5
            if at > bits or not taken or (coefficient > 64 and not coefficient & _END_OF_BLOCK):
                return mcu, at
    return end, at


def walk_dc(units: list[list[int]], interval: Interval) -> tuple[int, int]:
    """The first scan of DC (T.81 G.1.2.1); `units` has, for each block of an MCU, what `expand_dc` gave."""
    windows, bits, begin, end = interval
    at = 0
    for mcu in range(begin, end):
        for dc in units:
            taken = dc[windows[at >> 3] >> 16 - (at & 7) & 0xFFFF]
            at += taken
            if at > bits or not taken:
                return mcu, at
    return end, at


def walk_dc_refinement(units: int, interval: Interval) -> tuple[int, int]:
    """A further scan of DC: one bit for each of the `units` blocks of an MCU (T.81 G.1.2.1)."""
    whole = min(interval.end - interval.begin, interval.bits // units)
    return interval.begin + whole, whole * units


class Band(NamedTuple):
    """Coefficients `first` to `last` of one component, in zigzag order, with what `expand_symbols` gave.

    `nonzero` has, by block, a mask of the coefficients that are not zero; the walks keep it up to date.
    """

    first: int
    last: int
    symbols: list[int]
    nonzero: dict[int, int]


def walk_ac(band: Band, interval: Interval) -> tuple[int, int]:
    """The first scan of a band: runs of zeros, and of blocks in which the band is over (T.81 G.1.2.2)."""
    first, last, symbols, nonzero = band
    windows, bits, block, end = interval
    at = 0
    while block < end:
        coefficient, found, blocks = first, 0, 1
        while coefficient <= last:
            symbol = symbols[windows[at >> 3] >> 16 - (at & 7) & 0xFFFF]
            at += symbol & 31
            run, size = symbol >> 9, symbol >> 5 & 15
            if not symbol or (size and coefficient + run > last):
                return block, at
            if size:
                at += size
                found |= 1 << coefficient + run
            elif run < 15:
                blocks = _read_blocks(windows, at, run)
                at += run
                break
            coefficient += run + 1
        if at > bits:
            return block, at
        if found:
            nonzero[block] = nonzero.get(block, 0) | found
        block += blocks
    return block, at


def walk_ac_refinement(band: Band, interval: Interval) -> tuple[int, int]:
    """A further scan of a band: a bit for each coefficient not zero, runs of the others (T.81 G.1.2.3)."""
    first, last, symbols, nonzero = band
    windows, bits, begin, end = interval
    at, blocks, mask = 0, 0, (2 << last) - (1 << first)
    for block in range(begin, end):
        known, found, coefficient = nonzero.get(block, 0), 0, first
        while coefficient <= last and not blocks:
            symbol = symbols[windows[at >> 3] >> 16 - (at & 7) & 0xFFFF]
            at += symbol & 31
            run, size = symbol >> 9, symbol >> 5 & 15
            if not symbol or size > 1:
                return block, at
            if size == 0 and run < 15:
                blocks = _read_blocks(windows, at, run)
                at += run
                break
            at += size  # the sign
            while coefficient <= last and (run or known >> coefficient & 1):
                correction = known >> coefficient & 1
                at += correction
                run -= 1 - correction
                coefficient += 1
            if coefficient > last:
                return block, at
            found |= size << coefficient
            coefficient += 1
        if blocks:
            at += (known & mask & -1 << coefficient).bit_count()
            blocks -= 1
        if at > bits:
            return block, at
        if found:
            nonzero[block] = known | found
    return end + blocks, at


def _read_blocks(windows: Sequence[int], at: int, size: int) -> int:
    """How many blocks the band is over in: a power of two plus the next `size` bits (T.81 G.1.2.2)."""
    return 1 << size | (windows[at >> 3] << (at & 7) & 0xFFFFFFFF) >> 32 - size
