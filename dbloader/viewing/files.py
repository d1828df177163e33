"""Return the image files of a record to a browser, and decide which images must be converted for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dbloader.errors import NotAnImageError, OptionError
from dbloader.images.pillow import EIGHT_BITS
from dbloader.images.preview import header_of, media_type

if TYPE_CHECKING:
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_MOST_PIXELS = 2**27  # an image with more pixels is converted for browsers


def image_of(store: Store, record: Record, field: int | None) -> Any:
    """Return the image of a record, as bytes or an array. With ``field``, return the file in this file field."""
    names = store.manifest.file_fields
    if field is not None and not 0 <= field < len(names):
        raise OptionError(f"{store.place} has {len(names)} file fields, numbered from 0; got field={field}")
    image, what = (record.image, "image") if field is None else (record.fields.get(names[field]), names[field])
    if image is None:
        raise NotAnImageError(f"record {record.index} has no {what}")
    return image


def stored_file(store: Store, index: int, field: int | None, *, download: bool) -> tuple[bytes, dict[str, str]]:
    """Return the image file of a record, or the file in a field, and the headers of the response.

    The headers let a browser show only formats that contain nothing but pixels. The browser saves other files, such as
    SVG.

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


def why_rendered(image: Any) -> str | None:
    """Return why an image must be converted for a browser; None if browsers can show the stored image."""
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
