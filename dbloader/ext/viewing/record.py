"""Make what the page shows of a record: facts for JSON, image files and thumbnails."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import DamagedRecordError, DamagedStoreError, ImageError, NotAnImageError, OptionError
from dbloader.ext.images.preview import (
    draw_over,
    header_of,
    legend_of,
    media_type,
    shown_orientation,
    thumbnail,
    value_range,
)
from dbloader.ext.images.record_facts import record_facts
from dbloader.ext.queries.lru import LRUCache
from dbloader.ext.viewing.sorting import vector_of
from dbloader.images.pillow import EIGHT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# Pixels of a thumbnail's longer side. A thumbnail of 1600 replaces an image that browsers cannot show.
SIDES = (160, 240, 320, 480, 640, 1600)
_CACHE_BYTES = 64 * 2**20
_BOXES = 2000  # number of boxes that the page draws
_MOST_PIXELS = 2**27  # an image with more pixels is converted for browsers


def show_record(store: Store, index: int) -> dict[str, Any]:
    """Return the facts that the page shows about a record.

    The result contains the facts of `record_facts` and these facts:

    - ``crc``: always "verified", because a record with a wrong checksum has only an ``error``;
    - ``depth``: the depth of an image file, such as "16-bit"; otherwise None;
    - ``orientation``: the EXIF orientation, 1 to 8, that browsers apply to the image;
    - ``rendered``: the reason why browsers get a converted picture; None if they get the stored image;
    - ``range``: the least and the greatest value of an image of more than 8 bits; None for other images;
    - ``boxes``: the first 2,000 boxes, in pixels of the stored image;
    - ``box_colors``, ``box_labels``: the colors and class names of these boxes;
    - ``vectors``: the names of fields with a vector;
    - ``files``: the number, name and ``range`` of each field with a file. For a mask, ``legend`` has the value, color,
      fraction of the pixels and name of each class.

    For a damaged record, return only its ``index``, ``name`` and ``error``.

    Raises:
        RecordIndexError: No record has this index.
    """
    try:
        record = store.read([index])[0]
    except (DamagedRecordError, DamagedStoreError) as error:
        name = None
        with suppress(DamagedRecordError, DamagedStoreError):
            name = store.name(index)
        return {"index": index, "name": name, "error": str(error)}
    facts = record_facts(store, record)
    boxes, labels = boxes_of(record)
    return {
        **facts,
        "crc": "verified",
        "depth": _depth(record.image),
        "orientation": shown_orientation(record.image),
        "rendered": None if record.image is None else why_rendered(record.image),
        "range": None if record.image is None else value_range(record.image),
        "boxes": boxes,
        "box_labels": [store.manifest.class_name(label) or str(label) for label in labels],
        "box_colors": [color for _, color in _colored(boxes, labels)],
        "vectors": [name for name, value in record.fields.items() if vector_of(value) is not None],
        "files": [
            {"field": number, "name": name, "legend": _legend(store, name, data), "range": value_range(data)}
            for number, name in enumerate(store.manifest.file_fields)
            if isinstance(data := record.fields.get(name), bytes)
        ],
    }


def boxes_of(record: Record) -> tuple[list[list[float]], list[int]]:
    """Return the first 2,000 boxes of a record, in pixels of the stored image, and the labels of their classes."""
    boxes, labels = (_array(record.fields.get(name), shape) for name, shape in (("boxes", (4,)), ("box_labels", ())))
    return np.nan_to_num(boxes[:_BOXES]).tolist(), labels[:_BOXES].astype(int).tolist()


def masks_of(record: Record) -> dict[str, bytes]:
    """Return the fields with a gray or palette image of at most 64 different values, such as a segmentation mask."""
    files = {name: value for name, value in record.fields.items() if isinstance(value, bytes)}
    with suppress(ImageError):
        return {name: data for name, data in files.items() if media_type(data) and legend_of(data)}
    return {}


def draw_layers(
    made: tuple[bytes, str], record: Record, boxes: list[list[float]], labels: list[int], masks: Iterable[bytes]
) -> tuple[bytes, str]:
    """Draw boxes and masks over a thumbnail of a record. ``made`` is the thumbnail and its media type."""
    boxes, masks = boxes if record.width and record.height else [], [*masks]
    if not masks and not boxes:
        return made
    size = record.width or 1, record.height or 1
    return draw_over(made[0], record.image, size, _colored(boxes, labels), masks)


def _legend(store: Store, field: str, data: bytes) -> list[tuple[int, str, float, str]]:
    names = dict(enumerate(store.manifest.field_classes.get(field) or ()))
    with suppress(ImageError):  # the page shows this error when it requests the mask
        return [(value, color, share, names.get(value) or "") for value, color, share in legend_of(data)]
    return []


def _array(value: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a value as float64 with the shape (rows, *shape). If the value has another shape, return no rows."""
    with suppress(ValueError):  # the rows have different lengths
        found = np.asarray(value)
        if found.ndim and found.shape[1:] == shape and found.dtype.kind in "iuf":
            return found.astype(np.float64)
    return np.zeros((0, *shape))


def image_of(store: Store, record: Record, field: int | None) -> Any:
    """Return the image of a record, as bytes or an array. ``field`` is the number of a file field to return instead."""
    names = store.manifest.file_fields
    if field is not None and not 0 <= field < len(names):
        raise OptionError(f"{store.place} has {len(names)} file fields, numbered from 0; got field={field}")
    image, what = (record.image, "image") if field is None else (record.fields.get(names[field]), names[field])
    if image is None:
        raise NotAnImageError(f"record {record.index} has no {what}")
    return image


def stored_file(store: Store, index: int, field: int | None, *, download: bool) -> tuple[bytes, dict[str, str]]:
    """Return the image file of a record, or the file in a field, and the headers of the response.

    With these headers, a browser displays only formats without scripts. It saves other files, such as SVG.

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


def _depth(image: Any) -> str | None:
    with suppress(NotAnImageError):
        return header_of(image).depth if isinstance(image, bytes) else None
    return None


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


class Thumbnails:
    """Makes thumbnails, and keeps the most recently used ones. Threads may share this object.

    Images that need more than 50 MB for decoding are decoded one at a time.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES) -> None:
        self.kept = LRUCache[tuple[bytes, str]](cache_bytes, lambda picture: len(picture[0]))
        self._large = threading.Lock()

    def get(
        self,
        store: Store,
        index: int,
        px: int,
        field: int | None = None,
        over: tuple[str, ...] = (),
        window: Any = None,
    ) -> tuple[bytes, str]:
        """Return a picture of a record, and its media type. See ``thumbnail``.

        ``px`` is one of ``SIDES``. With ``field``, show the file in the file field with this number. ``over`` contains
        what to draw over the image: ``"boxes"``, and numbers of file fields with masks. ``window`` is passed to
        ``thumbnail``.

        Raises:
            DamagedRecordError: The record is damaged.
            RecordIndexError: No record has this index.
            OptionError: ``px`` is not in ``SIDES``, the store has no such field, or ``over`` is wrong.
            ImageError: The image is missing, cannot be decoded, or needs more than 400 MB for decoding.
        """
        if px not in SIDES:
            raise OptionError(f"px must be one of {', '.join(map(str, SIDES))}, got {px}")
        fields = [*map(str, range(len(store.manifest.file_fields)))]
        if wrong := {*over} - {"boxes", *fields}:
            raise OptionError(f"over must be boxes, or numbers of file fields, got {short_repr(min(wrong), 50)}")
        # The key contains the place, because a store and its damaged copy have the same digest.
        key = (store.place, store.manifest.digest, index, field, px, over, window)
        return self.kept.get(key, lambda: self._make(store, *key[2:]))

    def _make(self, store: Store, index: int, field: int | None, px: int, over: Any, window: Any) -> tuple[bytes, str]:
        record = store.read([index])[0]
        image = image_of(store, record, field)
        made = thumbnail(image, px, is_field=field is not None, large=self._large, window=window)
        names = [name for number, name in enumerate(store.manifest.file_fields) if str(number) in over]
        masks = [mask for name in names if isinstance(mask := record.fields.get(name), bytes)]
        return draw_layers(made, record, *(boxes_of(record) if "boxes" in over else ([], [])), masks)


def _colored(boxes: list[list[float]], labels: list[int]) -> list[tuple[list[float], str]]:
    """Return each box with the color of its label, for Pillow and CSS."""
    hues = (label * 137.5 % 360 for label in chain(labels, repeat(0)))  # the golden angle gives very different hues
    return [(box, f"hsl({hue}, 95%, 60%)") for box, hue in zip(boxes, hues, strict=False)]
