"""Records of all kinds for the contract tests, and functions that compare records."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dbloader import Record, open_store
from dbloader.records.manifest import Manifest
from dbloader.records.record import encode
from dbloader.stores.base import Store
from dbloader.stores.open import create_store
from dbloader.stores.writer import Writer

WAIT_S = 60.0  # only a failing test waits so long


def make_records(count: int, seed: int = 0) -> list[Record]:
    """Return the same records of all kinds at every call.

    Every 7th has no label, every 5th an array, and one has no name.
    """
    rng = random.Random(seed)
    records = []
    for number in range(count):
        record = Record(name=f"class {number % 3}/ä {number}.jpg", label=number % 3, image=rng.randbytes(number % 50))
        record.width, record.height, record.format = 10 + number % 90, 20 + number % 80, "JPEG" if number % 2 else "PNG"
        if number % 7 == 6:
            record.label = None
        if number % 5 == 4:
            record.image = np.frombuffer(rng.randbytes(24), "<u2").reshape(3, 4)
            record.width = record.height = record.format = None
        if number % 4 == 3:
            record.fields = {"caption": f"number {number}", "boxes": [[number, 1.5], []], "mask": np.arange(number % 9)}
        if number % 4 == 1:
            record.fields = {"score": number / 8 if number > 9 else number, "checked": number % 8 == 1}
        records.append(record)
    if count > 1:
        records[1].name = None
    return records


def small_records(count: int, name: Callable[[int], str | None] = lambda number: f"{number}.jpg") -> list[Record]:
    return [Record(name=name(number), label=number % 10) for number in range(count)]


def documents_of(records: Iterable[Record], salt: int = 0) -> list[bytes]:
    return [encode(record).document(index, salt) for index, record in enumerate(records)]


def salt_of(place: str | Path) -> int:
    with open_store(place) as store:
        return store.manifest.salt


def opener_of(store: Store) -> int | None:
    """Return the id of the process that opened a store's handle; None without a handle."""
    return None if store.handle is None else store.handle.pid


def stored(store: Store, indices: Sequence[int]) -> list[bytes]:
    """Return documents as a store with salt 0 would contain them, to compare stores with different salts."""
    return [record.document(index, 0) for record, index in zip(store.encoded(indices), indices, strict=True)]


def plain(value: Any) -> Any:
    """Convert a value so that ``==`` also compares the types, dtypes and shapes in it."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.descr, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    return (type(value), value)


def facts(record: Record) -> Any:
    """Return everything in a record except its index."""
    return plain({key: value for key, value in asdict(record).items() if key != "index"})


def owner_of(array: np.ndarray[Any, Any]) -> object:
    """Return the object that owns an array's memory, or None if the array owns it."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


def write_one_by_one(writer: Writer, records: list[Record]) -> None:
    """Write the records after the writer's position."""
    for position in range(writer.position, len(records)):
        record = records[position]
        writer.write(
            [encode(record)],
            events=[{"name": record.name or "", "event": "repaired", "reason": f"number {position}"}]
            if position % 3
            else [],
            outcome={"repaired": int(position % 3 > 0)},
            position=position + 1,
        )


def write(place: str | Path, records: list[Record], **options: bool) -> Manifest:
    """Write records one by one to a new or unfinished store."""
    with create_store(place, **options) as writer:
        write_one_by_one(writer, records)
        return writer.finish()


def write_partial(place: str | Path, records: list[Record], **options: bool) -> None:
    """Leave an unfinished store with these records, all of them committed."""
    with create_store(place, resumable=True, **options) as writer:
        write_one_by_one(writer, records)
        writer.commit()


def write_nothing(place: str | Path, **options: bool) -> None:
    """Enter and leave a writer."""
    with create_store(place, **options):
        pass


def check_is(place: str | Path, records: list[Record], digest: str | None = None) -> None:
    """Check that a store has exactly these records and the events of ``write_one_by_one``."""
    with open_store(place) as store:
        assert stored(store, range(len(store))) == documents_of(records)
        assert store.verify() == store.manifest.digest
        assert digest in (None, store.manifest.digest)
        events = [event["reason"] for event in store.events()]
        assert events == [f"number {position}" for position in range(len(records)) if position % 3]


def check_resumes(place: str | Path, records: list[Record], begun: Container[int], digest: str | None = None) -> None:
    """Resume after one of the numbers of records in ``begun``, finish the store, and check it."""
    with create_store(place, resume=True) as writer:
        assert writer.length == writer.position
        assert writer.length in begun
        write_one_by_one(writer, records)
        writer.finish()
    check_is(place, records, digest)
