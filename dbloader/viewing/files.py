"""The image files of a record, and the form in which a browser gets them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from PIL import ExifTags, Image

from dbloader.errors import DamagedImageError, NotAnImageError, OptionError
from dbloader.images.info import read_facts
from dbloader.images.pillow import EIGHT_BITS, open_pillow, translate_errors

if TYPE_CHECKING:
    from dbloader.images.info import Facts
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_MOST_PIXELS = 2**27  # of an image that a browser gets as it is stored
_MAGIC = re.compile(
    rb"(?P<jpeg>\xff\xd8\xff)|(?P<png>\x89PNG\r\n\x1a\n)|(?P<gif>GIF8[79]a)|"
    rb"(?P<webp>RIFF.{4}WEBP)|(?P<avif>.{4}ftypavi[fs])",
    re.DOTALL,
)


def media_type(data: bytes) -> str | None:
    """Return the media type of a file whose first bytes are of a format that every browser shows; None for others."""
    match = _MAGIC.match(data)
    return None if match is None else f"image/{match.lastgroup}"


def image_of(store: Store, record: Record, field: int | None) -> Any:
    """Return the image of a record, bytes or an array; with ``field``, the file in this file field of the store."""
    names = store.manifest.file_fields
    if field is not None and not 0 <= field < len(names):
        raise OptionError(f"{store.place} has {len(names)} file fields, numbered from 0; got field={field}")
    image, what = (record.image, "image") if field is None else (record.fields.get(names[field]), names[field])
    if image is None:
        raise NotAnImageError(f"record {record.index} has no {what}")
    return image


def stored_file(store: Store, index: int, field: int | None, *, download: bool) -> tuple[bytes, dict[str, str]]:
    """Return the image file of a record, or the file in a field, and the headers of the response.

    A browser shows only formats that contain nothing but pixels. It saves all others, such as SVG, and runs none.

    Raises:
        DamagedRecordError: The record is damaged.
        RecordIndexError: No record has this index.
        OptionError: The store has no such field.
        NotAnImageError: The image is missing, or is an array.
    """
    record = store.read([index])[0]
    image = image_of(store, record, field)
    if not isinstance(image, bytes):
        raise NotAnImageError(f"the image of record {index} is an array: there is no file")
    name = (record.name or "").rpartition("/")[2] or str(index)
    if field is not None:
        name = f"{store.manifest.file_fields[field]}-{name}"
    safe = "".join(letter if letter.isprintable() and letter not in '\\/:*?"<>|' else "_" for letter in name[-100:])
    shown = None if download else media_type(image)
    return image, {
        "Content-Type": shown or "application/octet-stream",
        "Content-Disposition": f"{'inline' if shown else 'attachment'}; filename*=UTF-8''{quote(safe, safe='')}",
    }


def header_of(image: bytes) -> Facts:
    """Return the facts in the header of an image file; raise NotAnImageError, a sentence for the page, without one."""
    try:
        return read_facts(image)
    except NotAnImageError as error:
        raise NotAnImageError(f"{error}" if f"{error}".startswith("its ") else f"the image {error}") from error


def why_rendered(image: Any) -> str | None:
    """Return the reason why a browser gets a picture made of an image; None if it gets the stored image."""
    if not isinstance(image, bytes):
        return "it is an array"
    try:
        facts = header_of(image)
    except NotAnImageError as error:
        return str(error)
    if media_type(image) is None:
        return f"browsers do not show {facts.format}"
    if facts.format == "PNG" and facts.depth != EIGHT_BITS:
        return f"browsers show only a part of its {facts.depth} values"
    pixels = facts.width * facts.height
    return f"it has {pixels:,} pixels, too many for a page" if pixels > _MOST_PIXELS else None


def shown_orientation(image: Any) -> int:
    """Return the EXIF orientation, 1 to 8, that browsers apply to an image; 1 if it is an array or has no valid EXIF.

    Browsers ignore XMP, and the EXIF of WebP. They do not show TIFF: Pillow applies the orientation of a TIFF.
    """
    value = 1
    with suppress(DamagedImageError), translate_errors("its EXIF cannot be read"), open_pillow(image) as opened:
        exif = opened.getexif() if opened.format == "TIFF" else Image.Exif()
        if opened.format not in ("TIFF", "WEBP"):
            exif.load(opened.info.get("exif", b""))
        value = exif.get(ExifTags.Base.Orientation, 1)
    return value if value in range(1, 9) else 1
