"""The images and labels of a store in MongoDB."""

from __future__ import annotations

import copy
import hashlib
import warnings
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
from typing_extensions import override

from dbloader._options import checked_flag
from dbloader.datasets.collection import CollectionStore
from dbloader.datasets.store import StoreDataset, checked_place
from dbloader.decoding.pillow import decode_pil
from dbloader.errors import NotAStoreError, OptionError, RecordNotFoundError
from dbloader.stores.cache import CachedStore
from dbloader.stores.mongo.store import MongoStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.stores.base import Store


class ListedDataset(StoreDataset):
    """Image files of a collection, as ``MongoDataset.from_listing`` gives them."""

    def __init__(self, store: CollectionStore, *arguments: Any, with_index: bool, **options: Any) -> None:
        with_index = checked_flag("with_index", with_index)
        if with_index and options.get("fields") is not None:
            raise OptionError("fields gives dicts, which with_index does not: name 'index' among the fields")
        super().__init__(store, *arguments, **options)
        self.with_index = with_index

    @override
    def _others(self, record: Record) -> Any:
        others = super()._others(record)
        return (*others, record.index) if self.with_index else others


class MongoDataset(StoreDataset):
    """The images and labels of a store in MongoDB, in place of torchvision's ImageFolder.

    It is what LMDBDataset is, and needs no other change in the training code: one query for each batch, a client for
    each process, made at its first read. Reading goes on by itself after a dropped connection, a restart of the server
    or an election, and ends in one clear error when that takes over a minute.

    Args:
        place: ``mongodb://host/database.collection`` or ``mongodb+srv://...``. Credentials reach the workers of a
            DataLoader; a dataset that is pickled otherwise, to be kept or sent elsewhere, has none.
        transform: Called with each decoded image; not where there is none.
        target_transform: Called with each label; not where there is none.
        decode: Called with the bytes of each image file; None gives the bytes themselves.
        fields: Names of fields to give in a dict, in place of ``(image, label)``; see LMDBDataset.
        query: Take only the records that this query of MongoDB's finds, such as ``{"label": {"$in": [3, 5]}, "width":
            {"$gte": 256}}``; also further fields of the records can be asked about. Which ones these are is settled
            here, in the order of the store, and again by ``refresh`` only. Index 0 is then the first of them; the field
            ``"index"`` is the record's index in the store.
        cache: Path of a file on a disk of this machine (not NFS) in which records are kept as they are read, for all
            processes that use it, and read from there afterwards. It is made where there is none; a store that
            ``dbloader copy`` made is used as it is. When its disk is full, a warning says so, and what is not in it
            is read from the server.
        cache_bytes: Largest size of the cache; what does not fit is read from the server every time.

    Raises:
        PlaceError: The place is no such URI, or names no database or collection.
        StoreUnreachableError: No server answers within seconds.
        StoreAccessError: The server refuses the user.
        StoreNotFoundError: Nothing is at the place.
        NotAStoreError: Something else is, or a store whose conversion is not finished; or the cache is that of another
            store.
        StoreVersionError: The store has a newer format.
        OptionError: No record has one of the fields; or none has a label and no fields were chosen.
        TypeError: As from LMDBDataset.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        fields: Iterable[str] | None = None,
        query: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        size: Any = cache_bytes
        if size is not None and (cache is None or not isinstance(size, int) or size < 1):
            raise OptionError(f"cache_bytes must be at least 1, and needs a cache, got {cache_bytes!r}")
        self._origin = MongoStore(checked_place(place, "a URI such as mongodb://host/database.collection"))
        self.query = None if query is None else _checked(query)
        self._cache, self._cache_bytes = cache, size
        super().__init__(self._store_of(self._origin), transform, target_transform, decode=decode, fields=fields)
        self._indices = self._matching(self._origin, self.manifest)

    def _store_of(self, origin: MongoStore) -> Store:
        """Return what the records are read from: the store on the server, or its cache."""
        return origin if self._cache is None else CachedStore(origin, self._cache, max_bytes=self._cache_bytes)

    @staticmethod
    def from_listing(
        place: str | os.PathLike[str],
        listing: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        key: str = "img_name",
        image: str = "bson_img",
        decode: Callable[[bytes], Any] | None = decode_pil,
        fields: Iterable[str] | None = None,
        with_index: bool = False,
    ) -> ListedDataset:
        """Return a dataset of image files that lie in a collection of some other program's, one in each document.

        Nothing is copied: a batch is one query by names. ``dbloader convert`` makes a store of them, which is checked,
        and faster.

        Args:
            place: ``mongodb://host/database.collection``.
            listing: File that names the images and their labels: ``{"path_list": [...], "label_list": [...]}`` in a
                .json, or any other listing that ``dbloader convert --list`` takes.
            transform: As of a MongoDataset.
            target_transform: As of a MongoDataset.
            key: Field of a document with the file's name, as the listing has it.
            image: Field with its bytes. JPEGs that lack only their end marker get it.
            decode: As of a MongoDataset.
            fields: As of a MongoDataset.
            with_index: Give ``(image, label, index)``.

        Raises:
            NotAStoreError: There is no such collection, or its documents have no such fields.
            SourceError: The listing has a mistake; the message names the row.
            OptionError: Both ``fields`` and ``with_index`` are given, or no row has a label and neither is.
            TypeError: ``with_index`` is no bool; or as from LMDBDataset.
        """
        store = CollectionStore(place, listing, key=key, image=image)
        for warning in store.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return ListedDataset(store, transform, target_transform, decode=decode, fields=fields, with_index=with_index)

    @property
    def state(self) -> dict[str, Any]:
        """Which records the dataset has: to be kept with a run, and compared.

        The store's place and digest, the query, the number of records, and the SHA-256 (hex) of their indices (int64,
        little-endian).
        """
        if self._indices is None:
            digest = hashlib.sha256(np.arange(len(self), dtype="<i8").tobytes()).hexdigest()
        else:
            digest = self._indices_digest
        return {
            "place": self.root,
            "digest": self.manifest.digest,
            "query": copy.deepcopy(self.query),
            "length": len(self),
            "indices_sha256": digest,
        }

    @override
    def find(self, name: str) -> int:
        try:
            return super().find(name)
        except RecordNotFoundError:
            if self._indices is None:
                raise
            # The first record of that name is not one of the query's; another one may be.
            positions = np.flatnonzero(np.isin(self._indices, self._origin.named(name)))
            if not len(positions):
                self._origin.check_counts()  # that it is not there may be a loss
                raise
            return int(positions[0])

    def refresh(self) -> None:
        """Take in what has changed at the place since the dataset was made: the store, and what the query finds.

        Make the loaders of the dataset again: their samplers have the length that it had before. An epoch of
        ``create_loader`` or a ThreadLoader that is under way ends with the samples that it began with, and so do worker
        processes. A later epoch of an old loader may read either. A DataLoader without workers reads the dataset
        itself, so its iterators that are under way would give old and new samples: refresh between epochs. If it
        fails, the dataset is what it was.

        Raises:
            NotAStoreError: The cache is that of the store before: remove it, or name another.
            StoreError: As when the dataset is made.
        """
        origin = copy.copy(self._origin)  # another: what was made of the dataset before keeps the one that it has
        store = self._store_of(origin)
        manifest = store.manifest
        self._check_fields(manifest)
        indices = self._matching(origin, manifest)
        self._forget()
        self._origin, self.store, self.manifest, self._indices = origin, store, manifest, indices

    def _matching(self, origin: MongoStore, manifest: Manifest) -> np.ndarray[Any, Any] | None:
        """Return the indices of the records that the query finds in a store, 4 bytes each; None for all."""
        if self.query is None:
            return None
        indices = origin.matching(self.query)
        if origin.manifest.digest != manifest.digest:
            raise NotAStoreError(f"the store at {self.root} has been replaced just now: make the dataset again")
        if not len(indices):
            warnings.warn(f"no record of {self.root} is found by the query {self.query!r}", UserWarning, stacklevel=3)
        return indices.astype(np.uint32 if manifest.length < 2**32 else np.int64)

    @override
    def __repr__(self) -> str:
        text = super().__repr__()
        if self.query is not None:
            text += f"\n    Query: {self.query!r} ({len(self):,} of {self.manifest.length:,} records)"
        return text


def _checked(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query, as it is now, if it can be sent to a server."""
    try:
        bson.encode(query)
    except (bson.errors.BSONError, TypeError, OverflowError) as error:
        raise OptionError(
            f"query must be one of MongoDB's, of Python's own numbers, texts, lists and dicts: {error}"
        ) from error
    return copy.deepcopy(dict(query))
