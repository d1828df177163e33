"""Make thumbnails of records, and keep the most recently used thumbnails."""

from __future__ import annotations

import threading
from itertools import chain, repeat
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.errors import OptionError
from dbloader.ext.images.preview import draw_over, thumbnail
from dbloader.ext.queries.lru import LRUCache
from dbloader.ext.viewing.record import boxes_of, image_of

if TYPE_CHECKING:
    from dbloader.stores.base import Store

SIDES = (160, 240, 320, 480, 640, 1600)
"""Pixels of the longer side. The page requests the size that it shows.

1600 is for images that a browser cannot show as they are stored.
"""

_CACHE_BYTES = 64 * 2**20


class Thumbnails:
    """Makes thumbnails, and keeps the most recently used ones. Threads may share this object.

    Images that need more than 50 MB for decoding are decoded one at a time.

    Args:
        cache_bytes: Most bytes of thumbnails to keep.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES) -> None:
        self.kept = LRUCache[tuple[bytes, str]](cache_bytes, lambda picture: len(picture[0]))
        self._large = threading.Lock()

    def get(
        self, store: Store, index: int, px: int, field: int | None = None, over: tuple[str, ...] = ()
    ) -> tuple[bytes, str]:
        """Return a picture of a record, or of the file in a field, and its media type. See ``thumbnail``.

        Args:
            store: The store.
            index: Index of the record.
            px: Pixels of the longer side, one of ``SIDES``.
            field: Number of the file field; None for the image.
            over: What to draw over the image: ``"boxes"``, and numbers of file fields with masks.

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
        key = (store.place, store.manifest.digest, index, field, px, over)
        return self.kept.get(key, lambda: self._make(store, index, px, field, over))

    def _make(self, store: Store, index: int, px: int, field: int | None, over: tuple[str, ...]) -> tuple[bytes, str]:
        record = store.read([index])[0]
        image = image_of(store, record, field)
        made = thumbnail(image, px, is_field=field is not None, large=self._large)
        names = [name for number, name in enumerate(store.manifest.file_fields) if str(number) in over]
        masks = [mask for name in names if isinstance(mask := record.fields.get(name), bytes)]
        boxes, labels = boxes_of(store, record) if "boxes" in over and record.width and record.height else ([], [])
        if not masks and not boxes:
            return made
        colored = [(box, _color(label)) for box, label in zip(boxes, chain(labels, repeat("")), strict=False)]
        return draw_over(made[0], image, (record.width or 1, record.height or 1), colored, masks)


def _color(label: str) -> str:
    """Return Pillow's name for the color in which the page of a record draws the boxes of a class."""
    hue = 7
    for letter in label:
        hue = (hue * 31 + ord(letter)) % 360
    return f"hsl({hue}, 95%, 60%)"
