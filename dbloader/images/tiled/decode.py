"""Find the tiles of a tiled JPEG, and decode crops from a few of them.

A tiled JPEG is a baseline JPEG with a restart marker after every k MCUs (minimum coded units). The number of
MCUs in a row is a multiple of k. The MCUs between two markers are a tile, k MCUs wide and one high
(docs/notes/tiled-jpeg.md). "T.81" is ITU-T Recommendation T.81 (09/92), the JPEG standard.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simplejpeg

from dbloader.errors import DamagedImageError, NotAnImageError, NotTiledError, OptionError
from dbloader.images import markers

if TYPE_CHECKING:
    import numpy.typing as npt

# Segments that a decoder needs. APP0 (JFIF) and APP14 (Adobe) determine the color space.
_NEEDED = (markers.DHT, markers.DAC, markers.DQT, markers.APP0, markers.APP14)

_RESTARTS = bytes(range(markers.RST0, markers.RST0 + 8))

_LONGEST = 2**16 - 1  # most bytes of a tile

# If an image is at most four pixels (two chroma samples) wide, libjpeg-turbo upsamples chroma without using neighbors
# (jdsample.c, jinit_upsampler). If such a narrow last tile were decoded alone, its pixels would differ from the whole
# image. So it is decoded together with the tile before it.
_NARROW = 4

_SIZE = struct.Struct(">HH")


def find_lengths(jpeg: bytes) -> bytes:
    """Return how many bytes each tile of a JPEG has. `decode_crop` needs these lengths to find the tiles.

    Returns:
        Little-endian uint16, one length for each tile, in the order of the file. A length includes the two bytes of the
        marker at the tile's end.

    Raises:
        NotAnImageError: The data are not a JPEG.
        DamagedImageError: The JPEG is cut short, or a restart marker is missing or out of order.
        NotTiledError: The JPEG is not tiled, or a tile has more than 65,535 bytes.
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


def decode_crop(
    jpeg: bytes | memoryview, lengths: bytes | memoryview, left: int, top: int, width: int, height: int
) -> npt.NDArray[np.uint8]:
    """Decode a crop of a tiled JPEG. The pixels equal a crop of the whole decoded image, bit for bit.

    libjpeg-turbo decodes with its defaults, like Pillow, and releases the GIL. The function is thread-safe.

    Args:
        jpeg: The whole file. If it is a view of a memory map, only pages of the header and the crop's tiles are read.
        lengths: The result of `find_lengths` for this file.
        left: Left edge of the crop, in pixels.
        top: Upper edge of the crop, in pixels.
        width: Width of the crop, in pixels.
        height: Height of the crop, in pixels.

    Returns:
        uint8, shape (height, width, 3), RGB, 0 to 255; gray images have three equal channels. The array is a view of a
        larger array, so its rows are not contiguous in memory.

    Raises:
        OptionError: The crop is empty, or not within the image.
        NotAnImageError: The data are not a JPEG.
        DamagedImageError: The lengths belong to another JPEG, or libjpeg-turbo reports an error or a warning.
        NotTiledError: The JPEG is intact, but not tiled.
    """
    return decode_joined(*join_tiles(jpeg, lengths, left, top, width, height), width, height)


def decode_joined(joined: bytearray, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode the result of `join_tiles`, and return the crop like `decode_crop`."""
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(joined, colorspace="RGB", strict=True)
    except ValueError as error:
        raise DamagedImageError(f"tiles of the JPEG do not decode: {str(error).rstrip('. ')}") from error
    return pixels[top : top + height, left : left + width]


def join_tiles(
    jpeg: bytes | memoryview,
    lengths: bytes | memoryview,
    left: int,
    top: int,
    width: int,
    height: int,
    *,
    check_lengths: bool = True,
) -> tuple[bytearray, int, int]:
    """Join the tiles of a crop into a small JPEG that any decoder can read. The tiles are not decoded.

    Arguments and errors are as in `decode_crop`, but this function does not detect damage within tiles. Pass
    ``check_lengths=False`` if a checksum, for example, has shown that the lengths belong to this JPEG.

    Returns:
        The small JPEG, without metadata, and the crop's left and upper edge in pixels of the small JPEG.
    """
    data = memoryview(jpeg)
    header = read_header(data)
    frame, grid = header.frame, read_grid(header)
    if min(width, height) < 1 or min(left, top) < 0 or left + width > frame.width or top + height > frame.height:
        raise OptionError(
            f"a crop must lie within the image of {frame.width} x {frame.height} pixels, "
            f"got {width} x {height} at ({left}, {top})"
        )
    # The crop needs the tiles in these columns and rows. The end column and the end row are not included.
    first_column = max(left - header.margin_x, 0) // grid.tile_width
    end_column = min((left + width - 1 + header.margin_x) // grid.tile_width + 1, grid.across)
    first_row = max(top - header.margin_y, 0) // grid.tile_height
    end_row = min((top + height - 1 + header.margin_y) // grid.tile_height + 1, grid.down)
    if header.margin_x and first_column and frame.width - first_column * grid.tile_width <= _NARROW:
        first_column -= 1
    x, y = first_column * grid.tile_width, first_row * grid.tile_height

    total = grid.across * grid.down
    if len(lengths) != 2 * total:
        raise _wrong(f"there are {len(lengths) // 2} lengths and {total} tiles")
    sizes = np.frombuffer(lengths, "<u2").astype(np.int64).reshape(grid.down, grid.across)
    ends = sizes.cumsum().reshape(sizes.shape)[first_row:end_row] + header.scan
    taken = sizes[first_row:end_row, first_column:end_column]
    starts, stops = ends[:, first_column] - taken[:, 0], ends[:, end_column - 1]
    if stops[-1] > len(data):
        raise _wrong(f"tiles would end at byte {stops[-1]} of {len(data)}")

    slices = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    joined = bytearray().join(header.parts + slices)
    # Each tile ends with a marker. ``marks`` are the positions of the markers' second bytes in ``joined``.
    marks = taken.cumsum() + (header.nbytes - 1)
    out = np.frombuffer(joined, np.uint8)
    if check_lengths:
        codes = closing_codes(total).reshape(grid.down, grid.across)[first_row:end_row, first_column:end_column]
        _check_markers(out, marks, codes)
        skipped = 0 if first_row or first_column else 1  # the first tile of the image has no marker before it
        codes = restart_codes(total + 7)[7:].reshape(grid.down, grid.across)[first_row:end_row, first_column]
        _check_markers(np.frombuffer(data, np.uint8), starts[skipped:] - 1, codes[skipped:])

    out[marks] = restart_codes(len(marks))
    out[-1] = markers.EOI
    size = min(end_row * grid.tile_height, frame.height) - y, min(end_column * grid.tile_width, frame.width) - x
    _SIZE.pack_into(joined, header.size_at, *size)
    return joined, left - x, top - y


def _check_markers(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], codes: npt.NDArray[np.uint8]) -> None:
    """Raise DamagedImageError if a marker is missing. ``codes`` are the markers' second bytes, at ``positions``."""
    if data[positions].tobytes() != codes.tobytes() or data[positions - 1].tobytes().strip(b"\xff"):
        raise _wrong("a tile does not begin or end at a marker")


def _wrong(why: str) -> DamagedImageError:
    return DamagedImageError(f"the lengths of the tiles do not belong to this JPEG: {why}; convert the image again")


class Header(NamedTuple):
    """Everything in a JPEG before the coded data of its first scan."""

    parts: list[memoryview]  # pieces of the header without metadata
    nbytes: int  # bytes of all ``parts``
    size_at: int  # offset of height and width in the joined ``parts``, 16 bits big-endian each
    scan: int  # offset in the file at which the first scan's coded data begin
    frame: markers.Frame
    interleaved: bool  # whether all components are in the first scan
    interval: int  # MCUs from one restart marker to the next; 0 without restart markers
    mcu_width: int  # in pixels
    mcu_height: int
    row: int  # MCUs in a row
    margin_x: int  # pixels that a decoder needs left and right of a crop, to upsample chroma
    margin_y: int  # pixels that a decoder needs above and below a crop


class Grid(NamedTuple):
    """The grid of tiles in a JPEG."""

    tile_width: int  # in pixels
    tile_height: int
    across: int  # tiles in a row
    down: int  # rows of tiles


def read_header(data: memoryview) -> Header:
    """Read the header of a JPEG with one or three components of 8 bits. Raise NotTiledError for any other JPEG."""
    if bytes(data[:2]) != markers.START:
        raise NotAnImageError("the data do not begin as a JPEG does")
    position, kept, dropped, size_at, interval, frame = 2, 0, 0, 0, 0, None
    parts = []
    while True:
        segment = markers.next_segment(data, position)
        if segment is None:
            raise DamagedImageError("the header of the JPEG is cut short")
        code, start, begin, end = segment
        if start > position and bytes(data[position:start]).strip(b"\xff"):
            raise not_tiled(f"no marker begins at byte {position}")
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
        interleaved=data[begin] == components,
        interval=interval,
        mcu_width=mcu_width,
        mcu_height=mcu_height,
        row=-(-frame.width // mcu_width),
        margin_x=int(len(across) > 1),
        margin_y=int(len(down) > 1),
    )


def read_grid(header: Header) -> Grid:
    """Return the grid of tiles. Raise NotTiledError for a JPEG that is not tiled."""
    if header.frame.process not in markers.SEQUENTIAL:
        raise not_tiled(f"its process is SOF{header.frame.process - markers.SOF0}, not baseline")
    if not header.interleaved:
        raise not_tiled("its components are in separate scans")
    if not header.interval or header.row % header.interval:
        raise not_tiled(f"its restart interval of {header.interval} MCUs does not divide a row of {header.row} MCUs")
    across, down = header.row // header.interval, -(-header.frame.height // header.mcu_height)
    return Grid(header.interval * header.mcu_width, header.mcu_height, across, down)


def closing_codes(tiles: int) -> npt.NDArray[np.uint8]:
    """Return the second byte of the marker after each tile of an image: uint8, shape (tiles,)."""
    codes = restart_codes(tiles)
    codes[-1] = markers.EOI
    return codes


def restart_codes(count: int) -> npt.NDArray[np.uint8]:
    """Return the second bytes of restart markers, RST0 to RST7 in turn (T.81 B.2.1): uint8, shape (count,)."""
    return np.frombuffer(bytearray(_RESTARTS * (count // 8 + 1))[:count], np.uint8)


def not_tiled(why: str) -> NotTiledError:
    """Return the error for a JPEG that must be decoded whole."""
    return NotTiledError(f"the JPEG cannot be decoded by tiles: {why}")
