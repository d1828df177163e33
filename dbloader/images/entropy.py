"""The scans of a JPEG: has every coefficient of every component come, down to its last bit?

"T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard. An MCU is the unit in which a scan is coded:
one block of 8 x 8 coefficients, or a group of them (A.2). Restart markers part a scan into intervals of MCUs,
each of which begins at a byte of its own (E.1.4).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dbloader.errors import DamagedImageError
from dbloader.images import huffman

SEQUENTIAL = (0xC0, 0xC1)  # baseline and extended, both Huffman-coded (T.81 table B.1)
PROGRESSIVE = 0xC2

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame header (T.81 B.2.2).

    `process` is the second byte of its marker; `sampling` has the factors (H, V) of each component.
    """

    process: int
    precision: int
    height: int
    width: int
    sampling: tuple[tuple[int, int], ...]

    def count_units(self, components: Sequence[int]) -> int:
        """How many MCUs a scan of these components has (T.81 A.2.2, A.2.3)."""
        across = 8 * max(h for h, _ in self.sampling)
        down = 8 * max(v for _, v in self.sampling)
        h, v = self.sampling[components[0]] if len(components) == 1 else (1, 1)
        return -(-self.width * h // across) * -(-self.height * v // down)


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan header (T.81 B.2.3), what was in force at it, and where its entropy-coded data lie.

    `components` are places in `Frame.sampling`, `selectors` their tables Td and Ta; `first` to `last` are
    coefficients in zigzag order (Ss, Se); `high` and `low` are bit positions (Ah, Al); `restart_interval`
    counts MCUs, 0 for none. `tables` are the Huffman tables by class and destination (one byte, as in DHT):
    16 counts, then the symbols.
    """

    start: int
    stop: int
    components: tuple[int, ...]
    selectors: bytes
    first: int
    last: int
    high: int
    low: int
    restart_interval: int
    tables: dict[int, bytes]


class FrameWalk:
    """Follows the scans of one frame in their order and knows what they have not brought yet.

    Raises:
        DamagedImageError: If the frame has not 8-bit samples or is not coded by DCT and Huffman.
    """

    def __init__(self, frame: Frame) -> None:
        if frame.process not in (*SEQUENTIAL, PROGRESSIVE) or frame.precision != 8:
            raise DamagedImageError(
                f"the end marker is missing, and a frame SOF{frame.process - 0xC0} of {frame.precision}-bit "
                "samples cannot be proven whole without it"
            )
        self._frame = frame
        self._scans = 0
        # By component and coefficient: the bit position known so far, None before the first scan.
        self._known: list[list[int | None]] = [[None] * 64 for _ in frame.sampling]
        # By component and block: a mask of the coefficients that are not zero.
        self._nonzero: list[dict[int, int]] = [{} for _ in frame.sampling]

    def follow(self, data: bytes, scan: Scan, *, closed: bool) -> bool:
        """Prove that one scan is whole, from its first to its last MCU.

        When no marker closes it, one FF at its end is in doubt: the first byte of a marker, or, if bits are
        wanted, a byte of data whose stuffed zero (T.81 B.1.1.5) was cut off.

        Returns:
            Whether there is such an FF and its bits are wanted.

        Raises:
            DamagedImageError: If bits are missing, left over or no code, or the header does not fit.
        """
        self._scans += 1
        self._note_bits(scan)
        walk = self._choose_walk(scan)
        total = self._frame.count_units(scan.components)
        interval = scan.restart_interval or total
        pieces = _RESTART.split(data[scan.start : scan.stop])
        done, wanted = 0, False
        for number, piece in enumerate(pieces, 1):
            body = piece.rstrip(b"\xff")  # fill bytes before a marker (T.81 B.1.1.2)
            doubtful = not closed and number == len(pieces) and len(piece) - len(body) == 1
            if b"\xff\xff" in body:
                raise DamagedImageError(f"scan {self._scans} has fill bytes where no marker follows")
            coded = body.replace(b"\xff\x00", b"\xff") + b"\xff" * doubtful
            bits, goal = 8 * len(coded), min(done + interval, total)
            reached, taken = walk(huffman.open_interval(coded, done, goal))
            if reached < goal:
                what = "ends" if taken + huffman.LONGEST > bits else "is corrupt"
                raise DamagedImageError(f"scan {self._scans} {what} after {reached} of {total} MCUs")
            wanted = doubtful and bits - taken < 8
            if reached > goal or bits - taken >= (16 if doubtful and not wanted else 8):
                raise DamagedImageError(f"scan {self._scans} goes on after MCU {goal} of {total}")
            done = goal
        if done < total:
            raise DamagedImageError(f"scan {self._scans} ends after {done} of {total} MCUs")
        return wanted

    def find_missing(self) -> str:
        """What no scan has brought, as a clause; empty when all coefficients are known to the last bit."""
        for component, known in enumerate(self._known, 1):
            if known != [0] * 64:
                what = "scan of" if known == [None] * 64 else "further scan of"
                return f"a {what} component {component} of {len(self._known)} is missing"
        return ""

    def _note_bits(self, scan: Scan) -> None:
        misfit = DamagedImageError(f"scan {self._scans} does not fit the frame and the scans before it")
        if self._frame.process == PROGRESSIVE:  # T.81 G.1.1.1: DC, or a band of AC of one component
            band = 0 < scan.first <= scan.last < 64 and len(scan.components) == 1
            bit = scan.low == scan.high - 1 if scan.high else scan.low < 14
            if not bit or not (band or scan.first == scan.last == 0):
                raise misfit
        elif (scan.first, scan.last, scan.high, scan.low) != (0, 63, 0, 0):  # T.81 table B.3
            raise misfit
        for component in scan.components:
            known = self._known[component]
            expected = [scan.high or None] * (scan.last + 1 - scan.first)
            # DC comes before AC, and each bit position after the one above it (T.81 G.1.1.1).
            if known[scan.first : scan.last + 1] != expected or (scan.first and known[0] is None):
                raise misfit
            known[scan.first : scan.last + 1] = [scan.low] * len(expected)

    def _choose_walk(self, scan: Scan) -> Callable[[huffman.Interval], tuple[int, int]]:
        if scan.first:
            symbols = huffman.expand_symbols(_get_table(scan, 0x10 | scan.selectors[0] & 15))
            band = huffman.Band(scan.first, scan.last, symbols, self._nonzero[scan.components[0]])
            return partial(huffman.walk_ac_refinement if scan.high else huffman.walk_ac, band)
        # The blocks of one MCU, each by the place of its component in the scan header (T.81 A.2.2, A.2.3).
        sizes = [h * v for h, v in (self._frame.sampling[component] for component in scan.components)]
        blocks = [place for place, size in enumerate(sizes) for _ in range(size if len(sizes) > 1 else 1)]
        if scan.high:
            return partial(huffman.walk_dc_refinement, len(blocks))
        dc = [huffman.expand_dc(_get_table(scan, selector >> 4)) for selector in scan.selectors]
        if self._frame.process == PROGRESSIVE:
            return partial(huffman.walk_dc, [dc[place] for place in blocks])
        ac = [huffman.expand_ac(_get_table(scan, 0x10 | selector & 15)) for selector in scan.selectors]
        return partial(huffman.walk_sequential, [(dc[place], ac[place]) for place in blocks])


def _get_table(scan: Scan, name: int) -> bytes:
    try:
        return scan.tables[name]
    except KeyError:
        kind = "AC" if name >> 4 else "DC"
        raise DamagedImageError(f"Huffman table {name & 15} for {kind} coefficients is missing") from None
