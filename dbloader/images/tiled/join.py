"""Join the tiles that a crop touches to a small JPEG, and decode the crop from it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from dbloader.errors import DamagedImageError, OptionError
from dbloader.images import markers
from dbloader.images.tiled.layout import closing_codes, read_grid, read_header, restart_codes

if TYPE_CHECKING:
    import numpy.typing as npt

# libjpeg-turbo upsamples rows of at most two chroma samples, which are four pixels, without looking at neighbors
# (jdsample.c, jinit_upsampler). So that the last tile of a row, if so narrow, is not taken for such an image, it is
# decoded with the one before it.
_NARROW = 4

_SIZE = struct.Struct(">HH")


def decode_crop(
    jpeg: bytes | memoryview, lengths: bytes | memoryview, left: int, top: int, width: int, height: int
) -> npt.NDArray[np.uint8]:
    """Decode a crop of a tiled JPEG, bit for bit as if the whole were decoded and then cropped.

    The pixels are those of libjpeg-turbo with its defaults, which are Pillow's. The GIL is released while they are
    decoded. Threads and processes can call this as they like; it keeps nothing.

    Args:
        jpeg: The whole file. Of a view of a memory map, only the pages of the header and the tiles are read.
        lengths: The result of `find_lengths` for it.
        left: Left edge of the crop, in pixels as the other three.
        top: Its upper edge.
        width: Its width.
        height: Its height.

    Returns:
        uint8, shape (height, width, 3), RGB, 0 to 255; gray images have three equal channels. It is a view of a
        somewhat larger array, so its rows do not follow each other in memory.

    Raises:
        OptionError: The crop is empty or leaves the image.
        NotAnImageError: The data are not a JPEG.
        DamagedImageError: The lengths are not those of its tiles, or the tiles do not decode, or only with a warning.
        NotTiledError: The JPEG is intact, but not tiled.
    """
    return decode_joined(*join_tiles(jpeg, lengths, left, top, width, height), width, height)


def decode_joined(joined: bytearray, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode the JPEG that `join_tiles` returned, and cut out the crop; the rest is as in `decode_crop`."""
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
    known_intact: bool = False,
) -> tuple[bytearray, int, int]:
    """Join the tiles that a crop touches to a small JPEG that any decoder reads; decode nothing.

    Arguments and errors are those of `decode_crop`, but damage within the tiles is not found. ``known_intact`` says
    that the lengths are known to belong to this JPEG, for example because a checksum covers both.

    Returns:
        The JPEG, without metadata; the crop's left and upper edge in it, in pixels.
    """
    data = memoryview(jpeg)
    header = read_header(data)
    frame, grid = header.frame, read_grid(header)
    if min(width, height) < 1 or min(left, top) < 0 or left + width > frame.width or top + height > frame.height:
        raise OptionError(
            f"a crop must lie within the image of {frame.width} x {frame.height} pixels, "
            f"got {width} x {height} at ({left}, {top})"
        )
    # The tiles from `column` and `row` to before `columns` and `rows`.
    column = max(left - header.margin_x, 0) // grid.tile_width
    columns = min((left + width - 1 + header.margin_x) // grid.tile_width + 1, grid.across)
    row = max(top - header.margin_y, 0) // grid.tile_height
    rows = min((top + height - 1 + header.margin_y) // grid.tile_height + 1, grid.down)
    if header.margin_x and column and frame.width - column * grid.tile_width <= _NARROW:
        column -= 1
    x, y = column * grid.tile_width, row * grid.tile_height

    total = grid.across * grid.down
    if len(lengths) != 2 * total:
        raise _wrong(f"they are {len(lengths) // 2}, not {total}")
    sizes = np.frombuffer(lengths, "<u2").astype(np.int64).reshape(grid.down, grid.across)
    ends = sizes.cumsum().reshape(sizes.shape)[row:rows] + header.scan
    taken = sizes[row:rows, column:columns]
    starts, stops = ends[:, column] - taken[:, 0], ends[:, columns - 1]
    if stops[-1] > len(data):
        raise _wrong(f"tiles would end at byte {stops[-1]} of {len(data)}")

    slices = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    joined = bytearray().join(header.parts + slices)
    # Each tile ends with the marker that closes it.
    marks = taken.cumsum() + (header.nbytes - 1)
    out = np.frombuffer(joined, np.uint8)
    if not known_intact:
        codes = closing_codes(total).reshape(grid.down, grid.across)[row:rows, column:columns]
        _check_markers(out, marks, codes)
        first = 0 if row or column else 1  # no marker stands before the image's first tile
        codes = restart_codes(total + 7)[7:].reshape(grid.down, grid.across)[row:rows, column]
        _check_markers(np.frombuffer(data, np.uint8), starts[first:] - 1, codes[first:])

    out[marks] = restart_codes(len(marks))
    out[-1] = markers.EOI
    size = min(rows * grid.tile_height, frame.height) - y, min(columns * grid.tile_width, frame.width) - x
    _SIZE.pack_into(joined, header.size_at, *size)
    return joined, left - x, top - y


def _check_markers(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], codes: npt.NDArray[np.uint8]) -> None:
    """Raise unless the second bytes of markers stand at these positions, each behind an FF."""
    if data[positions].tobytes() != codes.tobytes() or data[positions - 1].tobytes().strip(b"\xff"):
        raise _wrong("no marker is where one begins or ends")


def _wrong(why: str) -> DamagedImageError:
    return DamagedImageError(f"the lengths of the tiles are not those of this JPEG, convert the image again: {why}")
