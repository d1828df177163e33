"""The image files in a store, to be made smaller, tiled, shuffled or checked again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader.errors import DamagedRecordError, SourceError
from dbloader.records.columns import NO_LABEL
from dbloader.sources.base import Entry, Loaded, Problem, Source, full_path
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_REMEDY = "dbloader copy copies a store as it is"
_READ_BYTES = 8 * 2**20
"""Bytes of images that are read at once."""


def read_store(place: str | os.PathLike[str]) -> StoreSource:
    """Return the source of the image files in a store; SourceError if there are none, StoreError if it is no store."""
    store = open_store(place)
    try:
        _check_files(store)
        return StoreSource(store, store.place if is_mongo(place) else full_path(place))
    except BaseException:
        store.close()
        raise


def _check_files(store: Store) -> None:
    if not len(store):
        raise SourceError(f"{store.place}: is a store without records; {_REMEDY}")
    for item in _read(store, [Entry("record 0", b"0", None, {})]):
        if isinstance(item, Problem) and item.reason.endswith(_REMEDY):  # not a damaged record: others may be intact
            raise SourceError(f"{store.place}: its record 0 {item.reason}")


class StoreSource(Source):
    """The image files in a store, in its order; made by ``read_store``.

    All that a record has is kept, but for the field ``tiles`` of tiled images, which are tiled again or decoded whole.
    """

    def __init__(self, store: Store, place: str) -> None:
        manifest = store.manifest
        self._tiled = bool(manifest.source.get("tile"))
        tiled = "the store is of tiled images: they lose their tiles without tile (--tile); dbloader copy keeps them"
        super().__init__(Path(os.sep), manifest.classes, [tiled] * self._tiled)
        self._store, self._place = store, place

    @property
    @override
    def place(self) -> str:
        return self._place

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        names = self._store.names()
        columns = (self._store.column(name) for name in ("label", "nbytes", "crc32"))
        for index, (label, nbytes, crc32) in enumerate(zip(*columns, strict=True)):
            # With the checksum in the list of files, a resumed conversion notices that the store is another one.
            path = b"%d %08x" % (index, crc32)
            name = names[index] or f"record {index}"
            yield Entry(name, path, None if label == NO_LABEL else int(label), {}, (0, int(nbytes)))

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[Loaded | Problem]:
        block: list[Entry] = []
        size = 0
        for entry in entries:
            nbytes = entry.span[1] if entry.span else 0
            if block and size + nbytes > _READ_BYTES:
                yield from self._loaded(block)
                block, size = [], 0
            hold(nbytes)
            block.append(entry)
            size += nbytes
        yield from self._loaded(block)

    def _loaded(self, entries: Sequence[Entry]) -> Iterator[Loaded | Problem]:
        for item in _read(self._store, entries):
            if isinstance(item, Loaded) and self._tiled:
                item.entry.fields.pop("tiles", None)
            yield item

    @override
    def close(self) -> None:
        self._store.close()


def _read(store: Store, entries: Sequence[Entry]) -> Iterator[Loaded | Problem]:
    """Yield the files of records and all their fields, or why there is no file."""
    try:
        records = store.read([int(entry.path.split()[0]) for entry in entries])
    except DamagedRecordError as error:
        if len(entries) == 1:
            yield Problem(entries[0].name, str(error))
        else:
            for entry in entries:
                yield from _read(store, [entry])
        return
    for entry, record in zip(entries, records, strict=True):
        if not isinstance(record.image, bytes):
            kind = (
                "is an array of pixels, not an image file" if isinstance(record.image, np.ndarray) else "has no image"
            )
            yield Problem(entry.name, f"{kind}; {_REMEDY}")
        else:
            yield Loaded(entry._replace(fields=_fields(record)), record.image)


def _fields(record: Record) -> dict[str, object]:
    kept = {"damaged": record.damaged, "resized_from": record.resized_from}
    nameless = {} if record.name else {"name": None}
    return {**record.fields, **nameless, **{name: value for name, value in kept.items() if value is not None}}
