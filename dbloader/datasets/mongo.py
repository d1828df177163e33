"""A dataset of the images and labels of a store in MongoDB."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from typing_extensions import override

from dbloader._extensions import extension
from dbloader.datasets.store import StoreDataset, checked_place
from dbloader.decoding.open import decode_pil
from dbloader.errors import NotAStoreError, OptionError
from dbloader.stores.mongo.store import MongoStore
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping


class MongoDataset(StoreDataset):
    """Makes samples from a store in MongoDB. Replaces torchvision's ImageFolder.

    MongoDataset works like LMDBDataset. It sends one query for each batch, and makes one client in each process.
    Reading continues after dropped connections, restarts of the server and elections. A minute without an answer is an
    error.

    Args:
        place: ``mongodb://host/database.collection`` or ``mongodb+srv://...``. Pickling the dataset leaves out the
            credentials, except for the workers of a DataLoader.
        transform, target_transform, decode, transforms, target, fields, resize, where: As in LMDBDataset.
        query: Selects records by a MongoDB query, in place of ``where``: ``{"label": {"$in": [3, 5]}, "width": {"$gte":
            256}}``. The query may name any field. The server runs the query when the dataset is made. Records keep the
            store's order. Index 0 is the first record found. The field ``"index"`` is the index in the store.
        cache, cache_bytes, root: As in LMDBDataset. dbloader copies the records to the folder in shards of about 64 MB.

    Raises:
        PlaceError: The place is not a MongoDB URI, or names no database or collection.
        StoreUnreachableError: No server answers within seconds.
        StoreAccessError: The server refuses the user.
        OptionError: As in LMDBDataset. Or the query contains values that MongoDB does not have.
        NotAStoreError: As in LMDBDataset. Or the cache belongs to another store.
        StoreError: As in LMDBDataset.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        transforms: Callable[..., Any] | None = None,
        target: str | None = None,
        fields: Iterable[str] | Mapping[str, str] | None = None,
        resize: str | None = None,
        where: str | None = None,
        query: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        origin = MongoStore(checked_place(place, root, "a URI such as mongodb://host/database.collection"))
        if query is not None and where is not None:
            raise OptionError("query and where both select records: give one of them")
        self.query = None if query is None else _check_query(query)
        cached = cache is not None or cache_bytes is not None
        super().__init__(
            open_store(origin.uri, cache=cache, cache_bytes=cache_bytes) if cached else origin,
            transform,
            target_transform,
            decode=decode,
            transforms=transforms,
            target=target,
            fields=fields,
            resize=resize,
            where=where,
        )
        if self.query is not None:
            self._indices = self._find(origin, self.query)

    @staticmethod
    def from_listing(place: str | os.PathLike[str], listing: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        """Return a CollectionDataset: samples of a collection that another program made (docs/mongodb.md)."""
        return extension("CollectionDataset")(place, listing, *args, **options)

    def _find(self, origin: MongoStore, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the indices of the records that a query finds, as uint32 if possible."""
        indices = origin.matching(query)
        if origin.manifest.digest != self.manifest.digest:
            raise NotAStoreError(f"the store at {self.root} has been replaced just now: make the dataset again")
        if not len(indices):
            warnings.warn(f"the query {query!r} finds no record of {self.root}", UserWarning, stacklevel=3)
        return indices.astype(np.uint32 if self.manifest.length < 2**32 else np.int64)

    @override
    def __repr__(self) -> str:
        text = super().__repr__()
        if self.query is not None:
            text += f"\n    Query: {self.query!r} ({len(self):,} of {self.manifest.length:,} records)"
        return text


def _check_query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Check that BSON can encode a query, and return a copy of the query."""
    try:
        bson.encode(query)
    except (bson.errors.BSONError, TypeError, OverflowError) as error:
        raise OptionError(
            f"query must be a MongoDB query of Python's own numbers, texts, lists and dicts: {error}"
        ) from error
    return copy.deepcopy(dict(query))
