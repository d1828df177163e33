"""The image files in a store, to be made smaller, tiled, shuffled or checked again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader.errors import DamagedRecordError, SourceError
from dbloader.records.columns import NO_LABEL
from dbloader.sources.base import Entry, Loaded, Problem, Source, Tally, full_path
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_REMEDY = "dbloader copy copies a store as it is"
_READ_BYTES = 8 * 2**20
"""Bytes of images that are read at once."""


class _Location(NamedTuple):
    """Which record is meant."""

    number: int
    nbytes: int  # of its image
    crc32: int  # in the list of files, so a resumed conversion notices that the store is another one


def read_store(place: str | os.PathLike[str]) -> StoreSource:
    """Return the source of the image files in a store; SourceError if there are none, StoreError if it is no store."""
    store = open_store(place)
    source = StoreSource(store, store.place if is_mongo(place) else full_path(place))
    try:
        source.check()
    except BaseException:
        source.close()
        raise
    return source


class StoreSource(Source):
    """The image files in a store, in its order; made by ``read_store``.

    All that a record has is kept, but for the field ``tiles`` of tiled images, which are tiled again or decoded whole.
    """

    def __init__(self, store: Store, place: str) -> None:
        super().__init__(Path(os.sep), (), place=place)
        self._store, self._is_tiled = store, False
        self.stores = (store,)
        self._crc32: np.ndarray | None = None

    def check(self) -> None:
        """Read what is known of all records; SourceError if they are not files."""
        manifest = self._store.manifest
        self.classes, self._is_tiled = manifest.classes, bool(manifest.source.get("tile"))
        self.file_fields, self.field_classes = manifest.file_fields, manifest.field_classes
        if self._is_tiled:
            what = "they lose their tiles without tile (--tile); dbloader copy keeps them"
            self.warnings = (f"the store is of tiled images: {what}",)
        if not manifest.length:
            raise SourceError(f"{self.place}: is a store without records; {_REMEDY}")
        with suppress(DamagedRecordError):  # others may be intact
            first = self._store[0]
            if not isinstance(first.image, bytes):
                raise SourceError(f"{self.place}: its record 0 {_what_it_is(first)}")

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        names = self._store.names()
        columns = (self._store.column(name) for name in ("label", "nbytes", "crc32"))
        for index, (label, nbytes, crc32) in enumerate(zip(*columns, strict=True)):
            name = names[index] or f"record {index}"
            location = _Location(index, int(nbytes), int(crc32))
            yield Entry(name, location, None if label == NO_LABEL else int(label), {})
        return Tally()

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[Loaded | Problem]:
        block: list[Entry] = []
        size = 0
        for entry in entries:
            nbytes = _Location(*entry.location).nbytes
            if block and size + nbytes > _READ_BYTES:
                yield from self._load(block)
                block, size = [], 0
            hold(nbytes)
            block.append(entry)
            size += nbytes
        yield from self._load(block)

    def _load(self, entries: Sequence[Entry]) -> Iterator[Loaded | Problem]:
        """Yield the files of records and all their fields, or why there is no file."""
        self._compare(entries)
        try:
            records = self._store.read([_Location(*entry.location).number for entry in entries])
        except DamagedRecordError as error:
            if len(entries) == 1:
                yield Problem(entries[0].name, str(error))
            else:
                for entry in entries:
                    yield from self._load([entry])
            return
        for entry, record in zip(entries, records, strict=True):
            if isinstance(record.image, bytes):
                yield Loaded(entry._replace(fields=self._fields(record)), record.image)
            else:
                yield Problem(entry.name, _what_it_is(record))

    def _compare(self, entries: Sequence[Entry]) -> None:
        """Raise SourceError if the store is another one than that which was listed."""
        for entry in entries:
            index, _, crc32 = _Location(*entry.location)
            if self._crc32 is None:
                self._crc32 = np.asarray(self._store.column("crc32"))
            if index >= len(self._crc32) or self._crc32[index] != crc32:
                raise SourceError(f"{self.place}: is another store than the one that was planned: plan again")

    def _fields(self, record: Record) -> dict[str, object]:
        kept = {"damaged": record.damaged, "resized_from": record.resized_from}
        fields = {**record.fields, **{name: value for name, value in kept.items() if value is not None}}
        if self._is_tiled:
            fields.pop("tiles", None)
        return fields if record.name else {**fields, "name": None}

    @override
    def close(self) -> None:
        self._store.close()


def _what_it_is(record: Record) -> str:
    """Return why a record has no image file, and what to do."""
    what = "has no image" if record.image is None else "is an array of pixels, not an image file"
    return f"{what}; {_REMEDY}"
