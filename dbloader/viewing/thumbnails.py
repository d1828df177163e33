"""Make thumbnails of records, and keep the last ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dbloader.errors import OptionError
from dbloader.images.preview import thumbnail
from dbloader.queries.cache import LRUCache
from dbloader.viewing.files import image_of

if TYPE_CHECKING:
    from dbloader.stores.base import Store

SIDES = (160, 240, 320, 480, 640, 1600)
"""Pixels of the longer side. The page requests the size that it shows.

1600 is for images that a browser cannot show as they are stored.
"""

_CACHE_BYTES = 64 * 2**20


class Thumbnails:
    """Makes thumbnails and keeps the last ones. Threads may share it.

    Images that need more than 50 MB for decoding are decoded one at a time.

    Args:
        cache_bytes: Bytes of thumbnails to keep.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES) -> None:
        self.kept = LRUCache[tuple[bytes, str]](cache_bytes, lambda picture: len(picture[0]))
        self._large = threading.Lock()

    def get(self, store: Store, index: int, px: int, field: int | None = None) -> tuple[bytes, str]:
        """Return a picture of a record, or of the file in a field, and its media type.

        ``px`` must be in ``SIDES``. See ``thumbnail``.

        Raises:
            DamagedRecordError: The record is damaged.
            RecordIndexError: No record has this index.
            OptionError: ``px`` is not in ``SIDES``, or the store has no such field.
            ImageError: The image is missing, does not decode, or needs more than 400 MB for decoding.
        """
        if px not in SIDES:
            raise OptionError(f"px must be one of {', '.join(map(str, SIDES))}, got {px}")
        # The place is in the key because a damaged copy has the same digest.
        key = (store.place, store.manifest.digest, index, field, px)
        return self.kept.get(key, lambda: self._make(store, index, px, field))

    def _make(self, store: Store, index: int, px: int, field: int | None) -> tuple[bytes, str]:
        image = image_of(store, store.read([index])[0], field)
        return thumbnail(image, px, is_field=field is not None, large=self._large)
