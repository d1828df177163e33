"""Parse the marker segments of a JPEG.

"T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dbloader.errors import DamagedImageError

# Second bytes of markers (T.81 table B.1).
SOF0, SOF1, SOF2, DHT, DAC, SOI, EOI, SOS, DQT, DRI, COM = (
    0xC0, 0xC1, 0xC2, 0xC4, 0xCC, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE,
)  # fmt: skip
TEM, RST0, APP0, APP14, APP15 = 0x01, 0xD0, 0xE0, 0xEE, 0xEF
FRAMES = frozenset(range(SOF0, 0xD0)) - {DHT, 0xC8, DAC}
SEQUENTIAL, PROGRESSIVE = (SOF0, SOF1), SOF2  # DCT with Huffman codes
START, END = bytes((0xFF, SOI)), bytes((0xFF, EOI))

# A byte FF begins a marker. But FF FF is a fill byte (T.81 B.1.1.2), and FF 00 is stuffed data (B.1.1.5).
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_NO_RESTART = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class Segment(NamedTuple):
    """A marker and the position of its parameters."""

    code: int  # second byte of the marker
    start: int  # offset of the marker, after fill bytes
    begin: int  # offset of the parameters, after their length
    end: int  # offset after the parameters

    def error(self, why: str) -> DamagedImageError:
        """Return an error about this segment."""
        return DamagedImageError(f"segment FF{self.code:02X} at byte {self.start} {why}")


class Frame(NamedTuple):
    """A frame header (T.81 B.2.2)."""

    process: int  # second byte of its marker
    precision: int  # bits of a sample
    height: int  # in pixels; 0 if a DNL segment follows, which libjpeg does not read
    width: int  # in pixels, at least 1
    identifiers: bytes  # one byte for each component
    sampling: tuple[tuple[int, int], ...]  # horizontal and vertical factor of each component, 1 to 4

    def mcu_size(self) -> tuple[int, int]:
        """Return width and height in pixels of a minimum coded unit (T.81 A.2.3)."""
        if len(self.sampling) == 1:  # an MCU of one component is one block, even if its factors are not 1 (T.81 A.2.2)
            return 8, 8
        return 8 * max(h for h, _ in self.sampling), 8 * max(v for _, v in self.sampling)


def next_segment(data: bytes | memoryview, position: int) -> Segment | None:
    """Return the first segment at or after a position; None if no marker follows."""
    marker = _MARKER.search(data, position)
    if marker is None:
        return None
    start, begin = marker.span()
    code = data[begin - 1]
    if code in (EOI, TEM):
        return Segment(code, start, begin, begin)
    if code < SOF0 or RST0 <= code <= SOI:  # a reserved marker, a restart, or the start of a second image
        what = "a second image begins" if code == SOI else f"marker FF{code:02X} is out of place"
        raise DamagedImageError(f"{what} at byte {start}")
    size = int.from_bytes(data[begin : begin + 2], "big")
    segment = Segment(code, start, begin + 2, begin + size)
    if begin + max(size, 2) > len(data):
        raise segment.error("is cut short")
    if size < 2:
        raise segment.error(f"contradicts itself: its length is {size}, below 2")
    return segment


def find_scan_end(data: bytes | memoryview, start: int) -> int:
    """Return where a scan's coded data end: at the next marker other than a restart, or at the end of the file."""
    marker = _NO_RESTART.search(data, start)
    return marker.start() if marker else len(data)


def parse_frame(data: bytes | memoryview, segment: Segment) -> Frame:
    """Parse a frame header; raise DamagedImageError if it is inconsistent."""
    header = bytes(data[segment.begin : segment.end])
    if len(header) < 9 or len(header) != 6 + 3 * header[5]:
        raise segment.error("contradicts itself: its length does not fit its components")
    height, width = int.from_bytes(header[1:3], "big"), int.from_bytes(header[3:5], "big")
    sampling = tuple((factors >> 4, factors & 15) for factors in header[7::3])
    if not width or not all(1 <= h <= 4 and 1 <= v <= 4 for h, v in sampling):
        raise segment.error("contradicts itself: it has no width, or a sampling factor that is not 1 to 4")
    return Frame(segment.code, header[0], height, width, header[6::3], sampling)
