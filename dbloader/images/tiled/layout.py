"""The grid of tiles in a tiled JPEG, and where the tiles lie in the file.

"T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard. A tiled JPEG is a baseline one with a restart marker
every k MCUs, where k divides the MCUs of a row, so that each restart interval is a tile: k MCUs wide, one high.
docs/notes/tiled-jpeg.md explains it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dbloader.errors import DamagedImageError, NotAnImageError, NotTiledError

if TYPE_CHECKING:
    import numpy.typing as npt

# Second bytes of markers (T.81 table B.1).
_SOF0, _SOF1, _SOF15, _DHT, _DAC, _SOS, _DQT, _DRI, _COM = 0xC0, 0xC1, 0xCF, 0xC4, 0xCC, 0xDA, 0xDB, 0xDD, 0xFE
_APP0, _APP14, _APP15 = 0xE0, 0xEE, 0xEF  # the first two are JFIF's and Adobe's: they tell a decoder the color space
_TABLES = (_DHT, _DAC, _DQT, _APP0, _APP14)
_FRAMES = frozenset(range(_SOF0, _SOF15 + 1)) - {_DHT, 0xC8, _DAC}
END = 0xD9
# Frames with Huffman codes in one pass: baseline, and extended sequential.
BASELINE = (_SOF0, _SOF1)

# As many as the tiles of nearly all images; longer ones are made anew. Its length is a multiple of 8.
_CYCLE = (np.arange(2**14, dtype=np.uint16) & 7 | 0xD0).astype(np.uint8)
_CYCLE.flags.writeable = False

_LONGEST = 2**16 - 1  # bytes of a tile
_SEGMENT = struct.Struct(">BBH")
_FRAME = struct.Struct(">BHHB")


class Header(NamedTuple):
    """What stands before the first scan of a JPEG.

    Attributes:
        parts: The parts of the file that, joined, are a header without metadata.
        nbytes: How long they are together.
        size_at: Byte of the joined header where height and width stand, 16 bits big-endian each.
        scan: Byte of the file where the data of the first scan begin.
        process: Second byte of the marker of the frame header.
        width: Of the image, in pixels.
        height: Of the image, in pixels.
        interleaved: Whether all components are in the first scan.
        interval: MCUs from one restart marker to the next; 0 if there are none.
        mcu_width: In pixels.
        mcu_height: In pixels.
        row: MCUs in a row.
        margin_x: Pixels that a decoder must have beside a crop, because it upsamples chroma from neighbors.
        margin_y: The same above and below.
    """

    parts: list[memoryview]
    nbytes: int
    size_at: int
    scan: int
    process: int
    width: int
    height: int
    interleaved: bool
    interval: int
    mcu_width: int
    mcu_height: int
    row: int
    margin_x: int
    margin_y: int


class Grid(NamedTuple):
    """The tiles of a JPEG: their width and height in pixels, how many are in a row, and how many rows there are."""

    tile_width: int
    tile_height: int
    across: int
    down: int


def read_header(data: memoryview) -> Header:
    """Read the header of a JPEG of one or three components of 8 bits.

    Raises:
        NotAnImageError: It is no JPEG.
        DamagedImageError: Its header is cut short.
        NotTiledError: It is of another kind.
    """
    if bytes(data[:2]) != b"\xff\xd8":
        raise NotAnImageError("no JPEG: the data do not begin as one does")
    try:
        return _read(data)
    except (struct.error, IndexError) as error:
        raise DamagedImageError("the header of the JPEG is cut short") from error


def read_grid(header: Header) -> Grid:
    """Return the grid of tiles.

    Raises:
        NotTiledError: The tiles are no grid, or the JPEG is not baseline (or extended with Huffman codes).
    """
    if header.process not in BASELINE:
        raise not_tiled(f"its process is SOF{header.process - _SOF0}, not baseline")
    if not header.interleaved:
        raise not_tiled("its components have scans of their own")
    if not header.interval or header.row % header.interval:
        raise not_tiled(f"its restart interval of {header.interval} MCUs does not divide the {header.row} of a row")
    across, down = header.row // header.interval, -(-header.height // header.mcu_height)
    return Grid(header.interval * header.mcu_width, header.mcu_height, across, down)


def _read(data: memoryview) -> Header:
    at, kept, dropped, frame, process, size_at, interval = 2, 0, 0, 0, 0, 0, 0
    parts = []
    while True:
        prefix, code, length = _SEGMENT.unpack_from(data, at)
        end = at + 2 + length
        if prefix != 0xFF:
            raise not_tiled(f"no marker is at byte {at}, where one is due")
        if code == _SOS:
            break
        if code in _FRAMES:
            if frame:
                raise not_tiled("it has several frames")
            frame, process, size_at = at + 4, code, at + 5 - dropped
        elif code == _DRI:
            interval = data[at + 4] << 8 | data[at + 5]
        elif (_APP0 < code <= _APP15 and code != _APP14) or code == _COM:
            parts.append(data[kept:at])
            kept, dropped = end, dropped + end - at
        elif code == 0xFF:
            end = at + 1  # a fill byte before a marker (T.81 B.1.1.2)
        elif code not in _TABLES:
            raise not_tiled(f"it has a segment FF{code:02X} in its header")
        at = end
    if end > len(data):
        raise DamagedImageError("the header of the JPEG is cut short")
    parts.append(data[kept:end])
    if not frame:
        raise DamagedImageError("the JPEG has no frame header")
    precision, height, width, components = _FRAME.unpack_from(data, frame)
    if precision != 8 or components not in (1, 3):
        raise not_tiled(f"it has {components} components of {precision} bits")
    if not height or not width:
        raise not_tiled(f"its header gives {width} x {height} pixels")
    across = [data[place] >> 4 for place in range(frame + 7, frame + 6 + 3 * components, 3)]
    down = [data[place] & 15 for place in range(frame + 7, frame + 6 + 3 * components, 3)]
    if not min(across) or not min(down):
        raise DamagedImageError("a component of the JPEG has a sampling factor of 0")
    # A scan of one component alone has MCUs of one block, whatever its factors (T.81 A.2.2).
    mcu_width, mcu_height = (8 * max(across), 8 * max(down)) if components > 1 else (8, 8)
    return Header(
        parts=parts,
        nbytes=end - dropped,
        size_at=size_at,
        scan=end,
        process=process,
        width=width,
        height=height,
        interleaved=data[at + 4] == components,
        interval=interval,
        mcu_width=mcu_width,
        mcu_height=mcu_height,
        row=-(-width // mcu_width),
        margin_x=int(min(across) < max(across)),
        margin_y=int(min(down) < max(down)),
    )


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
    codes = restart_codes(tiles).copy()
    codes[-1] = END
    return codes


def restart_codes(count: int) -> npt.NDArray[np.uint8]:
    """Return the second bytes of restart markers, RST0 to RST7 in turn (T.81 B.2.1): uint8, shape (count,)."""
    return _CYCLE[:count] if count <= len(_CYCLE) else np.resize(_CYCLE, count)


def not_tiled(why: str) -> NotTiledError:
    """Return the error of a JPEG that is whole, but must be decoded whole."""
    return NotTiledError(f"the JPEG cannot be decoded by tiles: {why}")
