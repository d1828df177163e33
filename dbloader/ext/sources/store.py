"""Read image files from a store, so a conversion can make another store of them."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader._places import is_mongo
from dbloader.errors import DamagedRecordError, OptionError, SourceError
from dbloader.ext.queries.select import find_matching
from dbloader.records.columns import NO_LABEL
from dbloader.records.manifest import TARGET
from dbloader.records.record import TILES
from dbloader.sources.base import Entry, Loaded, Problem, Source, Tally, full_path
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dbloader.records.record import Record

_REMEDY = "dbloader copy copies a store as it is"
_READ_BYTES = 8 * 2**20  # bytes of images to read at once


class _Location(NamedTuple):
    """A record of the store, and the size of its image."""

    number: int
    nbytes: int
    crc32: int  # of the record; another value in the store shows that the store was replaced meanwhile


class StoreSource(Source):
    """Reads the image files in a store, in its order. With ``where``, reads only the records that this query finds.

    Records keep all fields except ``tiles``. The new store has tiles only with the option ``tile``.

    Raises:
        SourceError: The store has no image files.
        StoreError: The place is no store.
        OptionError: The query is wrong, or finds no record.
    """

    def __init__(self, place: str | os.PathLike[str], where: str | None = None) -> None:
        with ExitStack() as after_error:
            store = open_store(place)
            after_error.callback(store.close)
            manifest = store.manifest
            super().__init__(Path(os.sep), manifest.classes, place=store.place if is_mongo(place) else full_path(place))
            self._store, self._is_tiled = store, bool(manifest.source.get("tile"))
            self._crc32 = store.column("crc32")
            self.stores = (store,)
            self.file_fields, self.field_classes = manifest.file_fields, manifest.field_classes
            self.target = str(manifest.source.get(TARGET) or "")
            if self._is_tiled:
                what = "without tile (--tile), the tiles are lost; dbloader copy keeps them"
                self.warnings = (f"the images of the store are tiled: {what}",)
            if not manifest.length:
                raise SourceError(f"{self.place}: is a store without records; {_REMEDY}")
            with suppress(DamagedRecordError):  # other records may be intact
                first = store[0]
                if not isinstance(first.image, bytes):
                    raise SourceError(f"{self.place}: its record 0 {_why_no_file(first)}")
            self._indices = np.asarray(find_matching(store, where or ""))
            if where is not None and not len(self._indices):
                raise OptionError(f"there is nothing to convert: {where!r} finds no record of {self.place}")
            after_error.pop_all()

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        names = self._store.names()
        columns = (self._store.column("label"), self._store.column("nbytes"), self._crc32)
        indices = self._indices.tolist()
        for index, label, nbytes, crc32 in zip(indices, *(column[indices] for column in columns), strict=True):
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
        """Yield the file and the fields of each record, or a Problem if it has no file."""
        self._check_unchanged(entries)
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
                yield Problem(entry.name, _why_no_file(record))

    def _check_unchanged(self, entries: Sequence[Entry]) -> None:
        """Raise SourceError if the store was replaced after its entries were listed."""
        for entry in entries:
            index, _, crc32 = _Location(*entry.location)
            if index >= len(self._crc32) or self._crc32[index] != crc32:
                raise SourceError(f"{self.place}: is not the store from which the conversion was planned: plan again")

    def _fields(self, record: Record) -> dict[str, object]:
        kept = {"damaged": record.damaged, "resized_from": record.resized_from}
        fields = {**record.fields, **{name: value for name, value in kept.items() if value is not None}}
        if self._is_tiled:
            fields.pop(TILES, None)
        return fields if record.name else {**fields, "name": None}

    @override
    def close(self) -> None:
        self._store.close()


def _why_no_file(record: Record) -> str:
    """Return why a record has no image file, and what to do."""
    what = "has no image" if record.image is None else "is an array of pixels, not an image file"
    return f"{what}; {_REMEDY}"
