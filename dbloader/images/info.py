"""Read the header of an image file, check whether it decodes, and describe its structure."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejpeg
from PIL import ExifTags, UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError, NotTiledError, OptionError
from dbloader.images import markers
from dbloader.images.jpeg import State, examine, find_warning
from dbloader.images.markers import END
from dbloader.images.pillow import EIGHT_BITS, describe, max_pixels, open_pillow, translate_errors, value_depth
from dbloader.images.tiled.decode import read_grid, read_header

if TYPE_CHECKING:
    from PIL import Image, ImageFile

# libjpeg warns about bytes after the last pixel. Some cameras write padding there, and the pixels are right. But of
# 3,000 photos with one flipped bit, 705 caused only this warning, and all 705 had wrong pixels. The bytes show the
# difference: padding repeats one value, and the left-over bytes of the 705 photos had several values.
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")

_NOISE = b"\xa5\x5a" * 32  # bytes that libjpeg decodes as coded data

UNREAD_TIFF = (
    "damaged, or a TIFF of a kind that Pillow does not read: save it as another kind (8 or 16 bits, one or three "
    "channels, LZW or Deflate), or store it byte for byte, with check='none' (--check none) and without raw (--raw), "
    "and give the dataset a decode= of your own"
)

# A JPEG 2000 codestream begins with the markers SOC and SIZ. It is at the start of the file, or in a box "jp2c", whose
# header may have 8 more bytes for the length (ITU-T T.800 (11/2015), A.5.1 and I.4). Other boxes may contain any bytes,
# including these markers.
_CODESTREAM = re.compile(rb"(?:\A|jp2c(?:.{8})?)\xff\x4f\xff\x51", re.DOTALL)

_PROCESSES = {markers.SOF0: "baseline", markers.SOF1: "extended", markers.SOF2: "progressive"}
_SUBSAMPLINGS = {(1, 1): "4:4:4", (1, 2): "4:4:0", (2, 1): "4:2:2", (2, 2): "4:2:0", (4, 1): "4:1:1"}


class Facts(NamedTuple):
    """Properties of an image file, read from its header."""

    format: str  # Pillow's name
    width: int  # in pixels, as encoded
    height: int
    depth: str = EIGHT_BITS  # bits of a pixel value: "8-bit" (or fewer), "10-bit", "16-bit", "32-bit float" and so on
    frames: bool = False  # whether there are several frames or pages; decoders read only the first
    transparent: bool = False  # whether there is an alpha channel or a transparent color


def read_facts(data: bytes) -> Facts:
    """Read the header of an image file without decoding pixels. Raise NotAnImageError if it cannot be read."""
    if data.startswith(b"\xff\xd8"):
        # simplejpeg takes 3 us. Pillow takes 45 us, which would slow conversions with check="none".
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if height * width <= max_pixels():
                return Facts("JPEG", width, height)
        except (ValueError, KeyError):
            pass  # Pillow may read this kind of JPEG
    try:
        with open_pillow(data) as image:
            name = format_name(image)
            # Pillow's has_transparency_data fails if a palette is missing.
            depth, transparent = _depth(data, image), "A" in image.getbands() or "transparency" in image.info
            return Facts(name, image.width, image.height, depth, _has_frames(image), transparent)
    except UnidentifiedImageError as error:
        reason = f"is in no known image format (it begins with {data[:4]!r})" if data else "is empty"
        raise NotAnImageError(reason) from error
    except (NotAnImageError, OptionError):
        raise
    except Exception as error:  # Pillow's parsers raise many types of errors
        raise NotAnImageError(f"its header cannot be read: {describe(error)}") from error


def find_facts(data: bytes) -> Facts | None:
    """Return what `read_facts` returns, or None if the file is not an image."""
    with suppress(NotAnImageError):
        return read_facts(data)
    return None


def _depth(data: bytes, image: ImageFile.ImageFile) -> str:
    """Return the depth that the header contains. Pillow's mode does not show it, because deep colors become 8 bits."""
    bits = 8
    if image.format == "PNG":
        bits = data[24]  # https://www.w3.org/TR/png-3/#11IHDR
    elif image.format == "PPM" and image.mode == "RGB" and isinstance(options := image.tile[0][3], tuple):
        bits = 16 if options[1] > 255 else 8  # the greatest value, https://netpbm.sourceforge.net/doc/ppm.html
    elif image.format == "JPEG2000":
        size = _CODESTREAM.search(data).end() - 2  # type: ignore[union-attr] # Pillow has found one
        components = int.from_bytes(data[size + 38 : size + 40], "big")
        bits = max((depth & 0x7F) + 1 for depth in data[size + 40 : size + 40 + 3 * components : 3])
    elif image.format == "AVIF":
        # https://aomediacodec.github.io/av1-isobmff/#av1codecconfigurationbox-syntax
        flags = data[data.find(b"av1C") + 6]
        if flags & 0x40:
            bits = 12 if flags & 0x20 else 10
    elif image.format == "HEIF":
        bits = image.info["bit_depth"]
    return f"{bits}-bit" if bits > 8 else value_depth(image)


def _has_frames(image: Image.Image) -> bool:
    try:
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    except Exception:  # a later frame is damaged, but the first may be intact
        return True


def check_decodes(data: bytes, facts: Facts) -> None:
    """Decode a whole image without keeping the pixels; raise DamagedImageError if some are wrong or missing."""
    if facts.format == "PNG":
        _check_chunks(data)
    if facts.format == "JPEG" and _check_jpeg(data):
        return
    try:
        with open_pillow(data) as image:
            image.load()
            if value_depth(image) == EIGHT_BITS:
                # One pixel shows whether Pillow converts the mode to RGB. All pixels would take four bytes each.
                image.crop((0, 0, 1, 1)).convert("RGB")
    except MemoryError:
        raise  # the file may be intact
    except Exception as error:  # Pillow's parsers raise many types of errors
        kind = f"; it is {UNREAD_TIFF}" if facts.format == "TIFF" else ""
        raise DamagedImageError(f"does not decode: {describe(error)}{kind}") from error


def _check_jpeg(data: bytes) -> bool:
    """Check a JPEG with libjpeg-turbo; return False if only Pillow can decode it."""
    with translate_errors("its header cannot be read"):
        open_pillow(data).close()  # training opens the file with Pillow, which parses more of the header
    warning = find_warning(data)
    if not warning:
        return True
    end = examine(data).end - len(END)
    # TurboJPEG refuses the sampling factors ("tjDecompressHeader3(): ..."), or libjpeg-turbo cannot decode the process.
    if warning.startswith("tj") or "nsupported" in warning:
        _check_last_scan(data, end)
        return False
    left_over = _LEFT_OVER.search(warning)
    if not left_over:
        raise DamagedImageError(f"does not decode: {warning}")
    if len({*data[end - int(left_over[1]) : end]}) > 1:
        raise DamagedImageError(f"has data left when all pixels are decoded, so some pixels are wrong: {warning}")
    return True


def _check_last_scan(data: bytes, end: int) -> None:
    """Raise DamagedImageError if the last scan of a JPEG that only Pillow decodes is cut short.

    Pillow hides the warnings of libjpeg. So this function decodes the JPEG twice, once with extra bytes after the scan.
    The extra bytes change pixels only if the scan is cut short, because libjpeg then decodes them as pixels.
    """
    with translate_errors("does not decode", MemoryError):
        whole, longer = (zlib.crc32(open_pillow(data[:end] + more + END).tobytes()) for more in (b"", _NOISE))
    if whole != longer:
        raise DamagedImageError("does not decode: its last scan is cut short")


def _check_chunks(data: bytes) -> None:
    """Check the CRCs of all chunks of a PNG. Pillow does not check the chunks with pixels."""
    start = 8  # https://www.w3.org/TR/png-3/#5Chunk-layout: length, type, data, CRC
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        if end <= len(data) and zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            kind = data[start + 4 : start + 8].decode("ascii", "backslashreplace")
            raise DamagedImageError(f"does not decode: the CRC of its chunk {kind} at byte {start} is wrong")
        start = len(data) if data[start + 4 : start + 8] == b"IEND" else end


def format_name(image: Image.Image) -> str:
    """Return Pillow's name of the format; "JPEG" for a multi-picture file (MPO), because it begins with a JPEG."""
    return "JPEG" if image.format == "MPO" else image.format or ""


def describe_jpeg(data: bytes) -> dict[str, Any]:
    """Describe the structure of a JPEG for people, up to any damage; return an empty dict for other files."""
    found = examine(data)
    if found.state is State.NOT_JPEG:
        return {}
    facts: dict[str, Any] = {"structure": found.reason or "complete"}
    if found.frame:
        process, sampling = found.frame.process, found.frame.sampling
        facts["process"] = f"{_PROCESSES.get(process, f'SOF{process - markers.SOF0}')}, {found.frame.precision} bits"
        if len(sampling) == 1:
            facts["subsampling"] = "gray"
        elif sampling[1:] == ((1, 1), (1, 1)) and sampling[0] in _SUBSAMPLINGS:
            facts["subsampling"] = _SUBSAMPLINGS[sampling[0]]
        else:
            facts["subsampling"] = ", ".join(f"{h}x{v}" for h, v in sampling)
    try:
        header = read_header(memoryview(data))
        facts["restart_interval"] = header.interval
        facts["tiles"] = read_grid(header)._asdict()
    except (NotTiledError, DamagedImageError):
        pass  # not tiled
    return facts


def read_exif(data: bytes) -> dict[str, Any]:
    """Return the EXIF values by name; raise DamagedImageError if EXIF or the header is damaged."""
    with translate_errors("its EXIF cannot be read"), open_pillow(data) as image:
        exif = image.getexif()
        values = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
        values.pop(ExifTags.IFD.Exif, None)
        return {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in values.items()}
