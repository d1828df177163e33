"""Find out whether a JPEG is complete, and add a missing end marker if nothing else is missing."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import simplejpeg

from dbloader.errors import DamagedImageError
from dbloader.images import markers
from dbloader.images.markers import END
from dbloader.images.pillow import check_pixels

if TYPE_CHECKING:
    from dbloader.images.markers import Frame, Segment

_EMPTY_SEGMENT = 4  # bytes of a segment without content: its marker and its length
_METADATA = (markers.COM, *range(markers.APP0, markers.APP15 + 1))
_COLORS = (markers.APP0, markers.APP14)  # JFIF and Adobe: they decide how components become colors


class State(enum.Enum):
    """Whether a JPEG is complete."""

    COMPLETE = enum.auto()  # the end marker is present; more bytes may follow
    NO_END = enum.auto()  # all scans are present, but not the end marker; `repair` checks the last scan
    DAMAGED = enum.auto()  # data are missing, or the header is inconsistent
    NOT_JPEG = enum.auto()


@dataclass(frozen=True, slots=True)
class Structure:
    """Result of `examine`."""

    state: State
    reason: str = ""  # what is missing or wrong; empty if complete
    end: int = 0  # offset after the end marker, or after the last valid segment
    frame: Frame | None = None  # None if the data end before the frame header
    last_scan_end: int = 0  # offset after the coded data of the last scan; 0 without a scan

    @property
    def coefficient_bytes(self) -> int:
        """Bytes of the coefficients that libjpeg keeps during decoding; 0 if the image is not progressive."""
        if self.frame is None or self.frame.process != markers.PROGRESSIVE:
            return 0
        return 2 * self.frame.width * self.frame.height * len(self.frame.sampling)


class _Scan(NamedTuple):
    """A scan header (JPEG standard T.81, B.2.3)."""

    components: tuple[int, ...]  # positions in `Frame.sampling`
    coefficients: range  # positions in zigzag order, Ss to Se
    bit: int  # lowest bit of the coefficients in this scan, Al


def examine(data: bytes) -> Structure:
    """Find out from its markers whether a JPEG is complete. Never raise an error.

    COMPLETE: no segment is cut short, each component has a scan, and the end marker is present. Stray bytes between two
    segments are skipped, as in decoders. Only a strict decoder can find data that are missing within a scan.

    NO_END: only the end marker is missing. For this state, the scans must contain every bit of every coefficient,
    because libjpeg does not warn about a progressive image that was cut between two scans. The image must also have
    8-bit samples and Huffman codes, because libjpeg warns reliably only about these. Any other image without an end
    marker is DAMAGED, even if its encoder omitted low bits on purpose. An image with several frames is always DAMAGED.
    """
    if not data.startswith(markers.START) or data[2:3] not in (b"", b"\xff"):
        return Structure(State.NOT_JPEG, "the data do not begin as a JPEG does")
    reader = _Reader(data)
    state, reason = State.COMPLETE, ""
    try:
        if not reader.read():
            _check_complete(reader.check_frame(), reader.scans)
            state, reason = State.NO_END, "the end marker is missing"
            if reader.scan_end == len(data):  # FF bytes at the end are fill bytes, or half of a marker
                reader.position = len(data.rstrip(b"\xff"))
        reader.check_frame()
    except DamagedImageError as error:
        state, reason = State.DAMAGED, str(error)
    return Structure(state, reason, reader.position, reader.frame, reader.scan_end)


def repair(data: bytes, structure: Structure) -> bytes:
    """Add the end marker to a JPEG in the state NO_END. Raise DamagedImageError if more is missing.

    Two checks decode with libjpeg-turbo. First, the result must cause no warning. Second, the result without the last
    byte of its last scan must cause a warning. If it causes none, the scan has more data than its pixels need, such as
    zeros in place of lost data. Each check allocates `Structure.coefficient_bytes`.

    Fill bytes before the marker are dropped. All other bytes stay the same.
    """
    if structure.frame:
        check_pixels(structure.frame.width, structure.frame.height)
    body = data[: structure.end]
    warning = find_warning(body + END)
    if warning:
        raise DamagedImageError(f"is damaged: more than its end marker is missing ({warning})")
    scan_end = min(structure.last_scan_end, len(body))
    scan = body[:scan_end].rstrip(b"\xff")
    shorter = scan[: -2 if scan.endswith(b"\xff\x00") else -1]
    if not find_warning(shorter + body[scan_end:] + END):
        raise DamagedImageError("is damaged: its end marker is missing, and data are left when all pixels are decoded")
    return body + END


def find_warning(data: bytes) -> str:
    """Decode a JPEG with libjpeg-turbo, and return its first error or warning; "" if there is none."""
    try:
        # Decoding at an eighth of the size takes less time and memory, and still reads every code to find damage.
        simplejpeg.decode_jpeg(data, min_height=1, min_width=1, min_factor=8, strict=True)
    except ValueError as error:
        return f"{error}".rstrip(". ")
    return ""


def without_oddities(data: bytes) -> bytes:
    """Return a JPEG without metadata, and without two oddities that decoders tolerate.

    Stray bytes after a metadata segment are removed, unless they look like a segment with a damaged marker. Stray bytes
    after other segments are kept, because they may belong to the segment. Three zeros at the end of a sequential scan's
    header become 0, 63 and 0, as T.81 demands. Raise DamagedImageError if a segment is cut short or out of place.
    """
    parts, position, previous, is_sequential = [markers.START], len(markers.START), markers.COM, False
    while (segment := markers.next_segment(data, position)) and segment.code != markers.EOI:
        stray, header = data[position : segment.start], data[segment.start : segment.end]
        lost = len(stray) > _EMPTY_SEGMENT and int.from_bytes(stray[2:4], "big") == len(stray) - 2
        if previous not in _METADATA or lost:
            parts.append(stray)
        elif previous in _COLORS and stray.strip(b"\xff"):
            parts.pop()  # drop the color segment too: the stray bytes may belong to it. The caller compares the colors
        position, previous = segment.end, segment.code
        is_sequential |= segment.code in markers.SEQUENTIAL
        if segment.code == markers.SOS:
            position = markers.find_scan_end(data, segment.end)
            if is_sequential and header.endswith(bytes(3)) and data[segment.end] != 0:  # more zeros may be lost data
                header = header[:-3] + b"\x00\x3f\x00"
            parts += [header, data[segment.end : position]]
        elif segment.code in _COLORS or segment.code not in _METADATA:
            parts.append(header)
    return b"".join((*parts, END))


class _Reader:
    """Reads one image from marker to marker; ``position`` is the offset of the next byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = len(markers.START)
        self.frame: Frame | None = None
        self.scans: list[_Scan] = []
        self.scan_end = 0

    def read(self) -> bool:
        """Read all segments, and return whether the end marker was reached."""
        stray = -1
        while segment := markers.next_segment(self.data, self.position):
            if stray < 0 and self.data[self.position : segment.start].strip(b"\xff"):
                stray = self.position
            self.position = segment.end
            if segment.code == markers.EOI:
                return True
            if segment.code in markers.FRAMES:
                if self.frame:
                    raise segment.error("begins a second frame")
                self.frame = markers.parse_frame(self.data, segment)
            elif segment.code == markers.SOS:
                self._read_scan(segment)
        if stray < 0 and self.data[self.position :].strip(b"\xff"):
            stray = self.position
        if stray >= 0:
            raise DamagedImageError(f"no marker begins at byte {stray}, and the end marker is missing")
        return False

    def check_frame(self) -> Frame:
        """Return the frame header. Raise DamagedImageError if its height or the scan of a component is missing."""
        if self.frame is None or not self.scans:
            raise DamagedImageError(f"the image ends at byte {self.position}, before its first scan")
        if not self.frame.height:
            raise DamagedImageError("its header has no height, and libjpeg does not read a height after the first scan")
        components = len(self.frame.sampling)
        covered = {component for scan in self.scans for component in scan.components}
        if len(covered) < components:
            raise DamagedImageError(f"only {len(covered)} of {components} components have a scan")
        return self.frame

    def _read_scan(self, segment: Segment) -> None:
        header = self.data[segment.begin : segment.end]
        if not self.frame:
            raise segment.error("is before the frame header")
        if not header or not 1 <= header[0] <= 4 or len(header) != 4 + 2 * header[0]:
            raise segment.error("contradicts itself: its length does not fit its components")
        components: list[int] = []
        for identifier in header[1:-3:2]:
            # Some encoders give all components the same identifier. Decoders then use the order in the frame header.
            free = (at for at, known in enumerate(self.frame.identifiers) if known == identifier)
            component = next((at for at in free if at not in components), None)
            if component is None:
                raise segment.error("names a component that the frame does not have")
            components.append(component)
        first, last, bits = header[-3:]
        self.scans.append(_Scan(tuple(components), range(first, last + 1), bits & 15))
        self.position = self.scan_end = markers.find_scan_end(self.data, segment.end)


def _check_complete(frame: Frame, scans: list[_Scan]) -> None:
    """Raise DamagedImageError unless the scans contain all coefficients. `repair` detects contradictory scans."""
    if frame.process not in (*markers.SEQUENTIAL, markers.PROGRESSIVE) or frame.precision != 8:
        raise DamagedImageError(
            f"the end marker is missing, and a frame SOF{frame.process - markers.SOF0} of {frame.precision}-bit "
            "samples cannot be proven complete without it"
        )
    for component in range(len(frame.sampling)):
        last = [scan.coefficients for scan in scans if component in scan.components and scan.bit == 0]
        if not {*range(64)} <= {coefficient for band in last for coefficient in band}:
            raise DamagedImageError(f"a further scan of component {component + 1} of {len(frame.sampling)} is missing")
