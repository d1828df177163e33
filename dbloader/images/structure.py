"""Describe an image file for people: the markers and tiles of a JPEG, and EXIF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import ExifTags

from dbloader.errors import DamagedImageError, NotTiledError
from dbloader.images import markers
from dbloader.images.jpeg import State, examine
from dbloader.images.pillow import open_pillow, translate_errors
from dbloader.images.tiled.layout import read_grid, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKERS = {
    markers.DHT: "DHT", markers.DAC: "DAC", markers.EOI: "EOI", markers.SOS: "SOS", markers.DQT: "DQT",
    markers.DRI: "DRI", markers.COM: "COM", **{markers.APP0 + number: f"APP{number}" for number in range(16)},
    **{code: f"SOF{code - markers.SOF0}" for code in markers.FRAMES},
}  # fmt: skip
_PROCESSES = {markers.SOF0: "baseline", markers.SOF1: "extended", markers.SOF2: "progressive"}
_SUBSAMPLINGS = {(1, 1): "4:4:4", (1, 2): "4:4:0", (2, 1): "4:2:2", (2, 2): "4:2:0", (4, 1): "4:1:1"}


def describe_jpeg(data: bytes) -> dict[str, Any]:
    """Return what the markers of a JPEG say, as far as they can be read; nothing of another file."""
    found = examine(data)
    if found.state is State.NOT_JPEG:
        return {}
    facts: dict[str, Any] = {"structure": found.reason or "complete"}
    if found.frame:
        process, sampling = found.frame.process, found.frame.sampling
        facts["process"] = f"{_PROCESSES.get(process, f'SOF{process - markers.SOF0}')}, {found.frame.precision} bits"
        usual = sampling[1:] == ((1, 1), (1, 1)) and sampling[0] in _SUBSAMPLINGS
        factors = ", ".join(f"{h}x{v}" for h, v in sampling)
        facts["subsampling"] = "gray" if len(sampling) == 1 else _SUBSAMPLINGS[sampling[0]] if usual else factors
    try:
        header = read_header(memoryview(data))
        facts["restart_interval"] = header.interval
        facts["tiles"] = read_grid(header)._asdict()
    except (NotTiledError, DamagedImageError):
        pass  # the reason why it has no tiles is in what is known by now
    facts["segments"] = [*_segments(data)]
    return facts


def _segments(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the segments of a JPEG up to its end, or to where they cannot be followed; a scan has its coded data."""
    position = len(markers.START)
    try:
        while segment := markers.next_segment(data, position):
            position = markers.find_scan_end(data, segment.end) if segment.code == markers.SOS else segment.end
            name = _MARKERS.get(segment.code, f"FF{segment.code:02X}")
            yield {"marker": name, "begin": segment.start, "bytes": position - segment.start}
            if segment.code == markers.EOI:
                return
    except DamagedImageError:
        return


def read_exif(data: bytes) -> dict[str, Any]:
    """Return the values of EXIF by their names; DamagedImageError if it, or the header of the image, cannot be read."""
    with translate_errors("its EXIF cannot be read"), open_pillow(data) as image:
        exif = image.getexif()
        values = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
        values.pop(ExifTags.IFD.Exif, None)
        return {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in values.items()}
