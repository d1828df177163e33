"""The grid of tiles in a tiled JPEG, and where the tiles lie in the file.

"T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard. A tiled JPEG is a baseline one with a restart marker
every k MCUs, where k divides the MCUs of a row, so that each restart interval is a tile: k MCUs wide, one high.
docs/notes/tiled-jpeg.md explains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dbloader.errors import DamagedImageError, NotAnImageError, NotTiledError
from dbloader.images import markers

if TYPE_CHECKING:
    import numpy.typing as npt

# Segments that a decoder needs; APP0 and APP14 are JFIF's and Adobe's, which tell the color space.
_NEEDED = (markers.DHT, markers.DAC, markers.DQT, markers.APP0, markers.APP14)

_RESTARTS = bytes(range(markers.RST0, markers.RST0 + 8))

_LONGEST = 2**16 - 1  # bytes of a tile


class Header(NamedTuple):
    """Everything before the coded data of the first scan of a JPEG."""

    parts: list[memoryview]  # the parts of the file that, joined, are a header without metadata
    nbytes: int  # their length together
    size_at: int  # byte of the joined header at which height and width stand, 16 bits big-endian each
    scan: int  # byte of the file where the coded data of the first scan begin
    frame: markers.Frame
    adobe_transform: int | None  # colors: 0 is RGB or CMYK, 1 YCbCr, 2 YCCK; None without a segment of Adobe's
    interleaved: bool  # whether all components are in the first scan
    interval: int  # MCUs from one restart marker to the next; 0 if there are none
    mcu_width: int  # in pixels
    mcu_height: int
    row: int  # MCUs in a row
    margin_x: int  # pixels that a decoder needs beside a crop, because it upsamples chroma from neighbors
    margin_y: int  # the same above and below


class Grid(NamedTuple):
    """The tiles of a JPEG: width and height of one in pixels, tiles in a row, and rows of tiles."""

    tile_width: int
    tile_height: int
    across: int
    down: int


def read_header(data: memoryview) -> Header:
    """Read the header of a JPEG of one or three components of 8 bits; NotTiledError for another kind."""
    if bytes(data[:2]) != markers.START:
        raise NotAnImageError("no JPEG: the data do not begin as one does")
    position, kept, dropped, size_at, interval, frame, adobe = 2, 0, 0, 0, 0, None, None
    parts = []
    while True:
        segment = markers.next_segment(data, position)
        if segment is None:
            raise DamagedImageError("the header of the JPEG is cut short")
        code, start, begin, end = segment
        if start > position and bytes(data[position:start]).strip(b"\xff"):
            raise not_tiled(f"no marker is at byte {position}, where one is due")
        if code == markers.SOS:
            break
        if code in markers.FRAMES:
            if frame:
                raise not_tiled("it has several frames")
            frame, size_at = markers.parse_frame(data, segment), begin + 1 - dropped
        elif code == markers.DRI:
            interval = int.from_bytes(data[begin:end], "big")
        elif code == markers.COM or (code not in _NEEDED and markers.APP0 <= code <= markers.APP15):
            parts.append(data[kept:start])
            kept, dropped = end, dropped + end - start
        elif code not in _NEEDED:
            raise not_tiled(f"it has a segment FF{code:02X} in its header")
        elif code == markers.APP14 and bytes(data[begin : begin + 5]) == b"Adobe" and end - begin >= 12:
            adobe = data[begin + 11]
        position = end
    parts.append(data[kept:end])
    if not frame:
        raise DamagedImageError("the JPEG has no frame header")
    components = len(frame.sampling)
    if frame.precision != 8 or components not in (1, 3):
        raise not_tiled(f"it has {components} components of {frame.precision} bits")
    if not frame.height:
        raise not_tiled("its header gives no height")
    mcu_width, mcu_height = frame.mcu_size()
    across, down = {h for h, _ in frame.sampling}, {v for _, v in frame.sampling}
    return Header(
        parts=parts,
        nbytes=end - dropped,
        size_at=size_at,
        scan=end,
        frame=frame,
        adobe_transform=adobe,
        interleaved=data[begin] == components,
        interval=interval,
        mcu_width=mcu_width,
        mcu_height=mcu_height,
        row=-(-frame.width // mcu_width),
        margin_x=int(len(across) > 1),
        margin_y=int(len(down) > 1),
    )


def read_grid(header: Header) -> Grid:
    """Return the grid of tiles; NotTiledError if they are no grid, or the JPEG is not sequential with Huffman codes."""
    if header.frame.process not in markers.SEQUENTIAL:
        raise not_tiled(f"its process is SOF{header.frame.process - markers.SOF0}, not baseline")
    if not header.interleaved:
        raise not_tiled("its components have scans of their own")
    if not header.interval or header.row % header.interval:
        raise not_tiled(f"its restart interval of {header.interval} MCUs does not divide the {header.row} of a row")
    across, down = header.row // header.interval, -(-header.frame.height // header.mcu_height)
    return Grid(header.interval * header.mcu_width, header.mcu_height, across, down)


def find_lengths(jpeg: bytes) -> bytes:
    """Return the lengths of the tiles of a tiled JPEG, packed; `decode_crop` finds the tiles by them.

    Returns:
        Little-endian uint16, one for each tile in the order of the file: its bytes and the two of the marker that
        closes it.

    Raises:
        NotAnImageError: It is no JPEG.
        DamagedImageError: It is cut short, or a restart marker is missing or out of order.
        NotTiledError: It is a JPEG of another kind, its tiles do not lie in a grid, or one has over 65,535 bytes.
    """
    header = read_header(memoryview(jpeg))
    grid = read_grid(header)
    tiles = grid.across * grid.down
    scan = np.frombuffer(jpeg, np.uint8, offset=header.scan)
    # In a scan, FF begins a marker unless a zero follows (T.81 B.1.1.5).
    marks = np.flatnonzero((scan[:-1] == 0xFF) & (scan[1:] != 0))[:tiles]
    if not np.array_equal(scan[marks + 1], closing_codes(tiles)):
        raise DamagedImageError(f"markers of the {tiles} tiles of the JPEG are missing or out of order")
    lengths = np.diff(marks, prepend=-2)
    if lengths.max() > _LONGEST:
        raise not_tiled(f"one of its tiles has {lengths.max():,} bytes, more than {_LONGEST:,}")
    return lengths.astype("<u2").tobytes()


def closing_codes(tiles: int) -> npt.NDArray[np.uint8]:
    """Return the second bytes of the markers that close the tiles of an image: uint8, shape (tiles,)."""
    codes = restart_codes(tiles)
    codes[-1] = markers.EOI
    return codes


def restart_codes(count: int) -> npt.NDArray[np.uint8]:
    """Return the second bytes of restart markers, RST0 to RST7 in turn (T.81 B.2.1): uint8, shape (count,)."""
    return np.frombuffer(bytearray(_RESTARTS * (count // 8 + 1))[:count], np.uint8)


def not_tiled(why: str) -> NotTiledError:
    """Return the error of a JPEG that must be decoded whole."""
    return NotTiledError(f"the JPEG cannot be decoded by tiles: {why}")
