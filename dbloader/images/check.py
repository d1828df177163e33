"""Check the structure and the header of an image file, and whether it decodes. Repair a JPEG's missing end."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import UnidentifiedImageError

from dbloader._describe import short_repr
from dbloader._parallel import reserved
from dbloader.errors import DamagedImageError, ImageError, NotAnImageError
from dbloader.images.info import find_facts, read_facts
from dbloader.images.jpeg import State, examine, find_warning, repair, without_oddities
from dbloader.images.markers import END
from dbloader.images.pillow import (
    EIGHT_BITS,
    decoding_bytes,
    describe,
    has_transparent_pixels,
    open_pillow,
    translate_errors,
    value_depth,
)
from dbloader.images.png import lacks_pixels, read_chunks, without_refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from PIL import Image

    from dbloader._parallel import Hold
    from dbloader.images.info import Facts

# libjpeg warns about bytes after the last pixel. Some cameras write padding there, and the pixels are right. But of
# 3,000 photos with one flipped bit, 705 caused only this warning, and all 705 had wrong pixels. The bytes show the
# difference: padding repeats one value, and the left-over bytes of the 705 photos had several values.
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")

_NOISE = b"\xa5\x5a" * 32  # bytes that libjpeg decodes as if they were coded pixels

UNREAD_TIFF = (
    "damaged, or a TIFF of a kind that Pillow does not read: save it with 8 or 16 bits, one or three channels, and LZW "
    "or Deflate; or store it unchanged (check='none', --check none, without --raw), and give the dataset a decode= of "
    "your own"
)

# First bytes of PNG, GIF and JPEG 2000 files. JPEGs are examined separately.
_BEGINNINGS = (b"\x89PNG", b"GIF8", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


class CheckedImage(NamedTuple):
    """An image file that has passed the check."""

    data: bytes  # the file, with its end marker
    facts: Facts | None  # None for an unknown format; only ``check="none"`` accepts such files
    repaired: str  # description of the repair; "" if there was none
    transparent: bool = False  # whether any pixel is not opaque; False if the check does not decode pixels


def check_image(data: bytes, hold: Hold, check: str = "decode") -> CheckedImage:
    """Check an image file. If a JPEG lacks only its end marker, append the marker. Raise ImageError for a bad file."""
    if check == "none":
        return CheckedImage(data, find_facts(data), "")
    structure, repaired = examine(data), ""
    if structure.state is State.DAMAGED:
        raise DamagedImageError(f"is damaged: {structure.reason}")
    if structure.state is State.NO_END:
        with reserved(hold, structure.coefficient_bytes):
            data = repair(data, structure)
        repaired = "its end marker was missing: appended FF D9"
    facts = intact_facts(data)
    if check == "decode":
        pixels = decoding_bytes(facts.format) * facts.width * facts.height
        with reserved(hold, pixels if structure.state is State.NOT_JPEG else structure.coefficient_bytes):
            return CheckedImage(data, facts, repaired, check_decodes(data, facts))
    return CheckedImage(data, facts, repaired)


def check_file_fields(
    fields: Mapping[str, Any], names: Sequence[str], hold: Hold, files: Mapping[str, str], check: str = "decode"
) -> tuple[dict[str, Any], str]:
    """Check and repair the image files in some fields of a record, like `check_image`.

    ``files`` maps each field to the name of its file, for messages; {} if the fields were not read from files.
    Return the fields with repaired files, and a description of the repairs. Raise ImageError for a bad file. The
    message names the field.
    """
    fields, repaired = dict(fields), []
    for name in names:
        if fields[name] is None:
            continue
        title = " ".join(filter(None, ("its", name, files.get(name))))
        try:
            if not isinstance(fields[name], bytes):
                raise NotAnImageError(f"is not an image file: {short_repr(fields[name])}")
            checked = check_image(fields[name], hold, check)
        except ImageError as error:
            raise type(error)(f"{title} {error}") from error
        fields[name] = checked.data
        if checked.repaired:
            repaired.append(f"{title}: {checked.repaired}")
    return fields, "; ".join(repaired)


def intact_facts(data: bytes) -> Facts:
    """Return the facts in an image file's header. Raise DamagedImageError if the header is cut short or wrong."""
    try:
        return read_facts(data)
    except NotAnImageError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception):  # dbloader itself refuses the image, for example as too large
            raise
        if data.startswith(_TIFF):
            raise DamagedImageError(f"is {UNREAD_TIFF}") from error
        if data.startswith(_BEGINNINGS) or (data.startswith(b"RIFF") and b"WEBP".startswith(data[8:12])):
            why = "" if isinstance(cause, UnidentifiedImageError) else f": {describe(cause)}"
            raise DamagedImageError(f"is damaged: its header is cut short or wrong{why}") from error
        raise


def check_decodes(data: bytes, facts: Facts) -> bool:
    """Decode a whole image without keeping the pixels, and return whether a pixel is not opaque.

    Raise DamagedImageError if pixels are wrong or missing.
    """
    if facts.format == "PNG":
        _check_chunks(without_refused(data))
    if facts.format == "JPEG" and _check_jpeg(data):
        return False
    try:
        with open_pillow(data) as image:
            image.load()
            if facts.format == "PNG":
                _check_last_row(image, data)
            if value_depth(image) == EIGHT_BITS:
                # Convert one pixel, to see whether Pillow can convert the mode. All pixels would take 4 bytes each.
                image.crop((0, 0, 1, 1)).convert("RGB")
            return facts.transparent and has_transparent_pixels(image)
    except MemoryError:
        raise  # the file may be intact although memory was short
    except Exception as error:  # Pillow's parsers raise many types of errors
        kind = f"; it is {UNREAD_TIFF}" if facts.format == "TIFF" else ""
        raise DamagedImageError(f"does not decode: {describe(error)}{kind}") from error


def _check_last_row(image: Image.Image, data: bytes) -> None:
    """Raise EOFError if the compressed data of a PNG end early. Pillow then makes the last row 0 if not interlaced."""
    row = image.crop((0, image.height - 1, image.width, image.height))
    if ("interlace" in image.info or not row.getbbox()) and lacks_pixels(data):
        raise EOFError("its compressed data end before the last pixel")


def _check_jpeg(data: bytes) -> bool:
    """Check a JPEG with libjpeg-turbo; return False if only Pillow can decode it."""
    with translate_errors("its header cannot be read"):
        open_pillow(data).close()  # decode_pil also opens JPEGs with Pillow, which parses more of the header
    warning = find_warning(data)
    if not warning:
        return True
    end = examine(data).end - len(END)
    # TurboJPEG refuses the subsampling ("tjDecompressHeader3(): ..."), or libjpeg-turbo does not support the JPEG.
    if warning.startswith("tj") or "nsupported" in warning:
        _check_last_scan(data, end)
        return False
    if not _LEFT_OVER.search(warning):
        # After a warning, training decodes with Pillow. The file is intact if only bytes outside the scans are wrong.
        plain = without_oddities(data)
        found = find_warning(plain)
        if (found and not _LEFT_OVER.search(found)) or not _same_pixels(data, plain):
            raise DamagedImageError(f"does not decode: {found or warning}")
        data, end, warning = plain, len(plain) - len(END), found
    left_over = _LEFT_OVER.search(warning)
    if left_over and len({*data[end - int(left_over[1]) : end]}) > 1:
        raise DamagedImageError(f"has data left when all pixels are decoded, so some pixels are wrong: {warning}")
    return True


def _check_last_scan(data: bytes, end: int) -> None:
    """Raise DamagedImageError if a JPEG's last scan is cut short. Use this for JPEGs that only Pillow decodes.

    Pillow hides the warnings of libjpeg. So this function decodes the JPEG twice, once with extra bytes after the scan.
    The extra bytes change pixels only if the scan is cut short, because libjpeg then decodes them as pixels.
    """
    if not _same_pixels(*(data[:end] + more + END for more in (b"", _NOISE))):
        raise DamagedImageError("does not decode: its last scan is cut short")


def _same_pixels(first: bytes, second: bytes) -> bool:
    """Return whether Pillow decodes two files to the same pixels."""
    with translate_errors("does not decode", MemoryError):
        one, other = (zlib.crc32(open_pillow(data).tobytes()) for data in (first, second))
    return one == other


def _check_chunks(data: bytes | bytearray | memoryview) -> None:
    """Check the CRCs of all chunks of a PNG. Pillow does not check the chunks with pixels."""
    for kind, start, end in read_chunks(data):
        if end > len(data) and kind == b"IDAT":  # Pillow tolerates this if few bytes are missing
            raise DamagedImageError(f"does not decode: its chunk IDAT at byte {start} is truncated")
        if end <= len(data) and zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            shown = kind.decode("ascii", "backslashreplace")
            raise DamagedImageError(f"does not decode: the CRC of its chunk {shown} at byte {start} is wrong")
