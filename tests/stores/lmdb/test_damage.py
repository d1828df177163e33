"""LMDB stores that are cut short, damaged or inconsistent."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader import open_store
from dbloader.errors import DamagedRecordError, DamagedStoreError, NotAStoreError
from dbloader.records.columns import CHUNK, COLUMNS, seal_chunk
from dbloader.records.document import seal
from dbloader.records.record import encode
from dbloader.stores.base import Store
from dbloader.stores.lmdb.keys import column_key, event_key, record_key
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, make_records, salt_of, small_records, stored, write
from tests.support.children import in_child
from tests.support.lmdb_files import change_manifest, chunk_at, put_chunk, tamper, value_at
from tests.support.stores import store_records


@pytest.mark.parametrize("pages", [0.1, 2, 3, 7.9])
def test_file_cut_short_is_refused_when_opened(place: Path, pages: float) -> None:
    os.truncate(place, int(4096 * pages))

    def open_it() -> None:
        # Run in a child process, because an unnoticed cut ends in SIGBUS.
        with pytest.raises((DamagedStoreError, NotAStoreError), match="is cut short: it has|is not an LMDB file"):  # noqa: RUF043
            open_store(place).verify()

    assert in_child(open_it) == 0


def test_extra_bytes_at_the_end_of_the_file_are_ignored(place: Path) -> None:
    with place.open("ab") as file:
        file.write(bytes(5000))
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest


def test_damaged_page_raises(place: Path) -> None:
    content = place.read_bytes()

    def read_damaged() -> None:
        with place.open("r+b") as file:
            file.seek(2 * 4096)
            file.write(bytes(len(content) - 2 * 4096))
        with open_store(place) as store, pytest.raises(DamagedStoreError, match=r"store\.lmdb cannot be read: .*MDB_"):
            store.verify()

    assert in_child(read_damaged) == 0

    def read_damaged_record() -> None:
        place.write_bytes(content)
        with open_store(place) as store:
            store.read([0])
            with place.open("r+b") as file:  # a program that overwrites the file while a store has it open
                file.seek(2 * 4096)
                file.write(bytes(len(content) - 2 * 4096))
            with pytest.raises(DamagedStoreError, match=r"store\.lmdb cannot be read: .*MDB_"):
                store.read(range(20))
            with place.open("r+b") as file:
                file.write(content)
            assert len(store.read(range(20))) == 20, "a reader must continue once the file is intact again"

    assert in_child(read_damaged_record) == 0


def readers_of(store: Store, column: str) -> list[Callable[[], object]]:
    """Return the functions that read a column."""
    if column == "name":
        return [store.verify, store.names, lambda: store.name(19), lambda: store.find("class 1/ä 19.jpg")]
    uses: list[Callable[[], object]] = [store.verify, lambda: store.column(column)]
    return [*uses, lambda: store.find("class 0/ä 0.jpg")] if column == "name_hash" else uses


@pytest.mark.parametrize("name", COLUMNS)
def test_damaged_column_raises_in_every_reader(place: Path, name: str) -> None:
    key = column_key(name, 0)
    value = value_at(place, b"meta", key)
    rng = random.Random(name)
    flipped = [bytearray(value) for _ in range(8)]
    for copy in flipped:
        copy[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    for new in (None, b"", value[:-8], value[:-1], value + bytes(8), *map(bytes, flipped)):
        tamper(place, b"meta", {key: new})
        with open_store(place) as store:
            for read in readers_of(store, name):
                with pytest.raises(DamagedStoreError, match=f"chunk 0 of its column {name} is missing or damaged"):
                    read()
            assert stored(store, range(20)) == documents_of(make_records(20))
        tamper(place, b"meta", {key: value})


@pytest.mark.parametrize("name", COLUMNS)
def test_verify_compares_each_column_with_the_records(place: Path, name: str) -> None:
    chunk = chunk_at(place, name, 0)
    put_chunk(place, name, 0, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    with open_store(place) as store:
        with pytest.raises(DamagedStoreError, match=f"its column {name} disagrees with records 0 to 19"):
            store.verify()
        # Training uses the records, and each record has a checksum.
        assert [record.label for record in store] == [record.label for record in make_records(20)]


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("digest", "0" * 64),
        ("label_counts", None),
        ("labelled", 7),
        ("named", 7),
        ("image_bytes", 7),
        ("width", [1, 2]),
        ("height", [3, 4]),
        ("formats", {"JPEG": 20, "PNG": 1}),
        ("fields", {}),
        ("outcome", {"repaired": 1}),
        ("events", 1),
        ("classes", ["only one"]),
    ],
)
def test_verify_compares_the_manifest_with_the_records(tmp_path: Path, fact: str, other: object) -> None:
    place = tmp_path / "store.lmdb"
    lines = [{"name": f"{number}", "event": event, "reason": "why"} for number, event in enumerate(["repaired"] * 2)]
    with create_store(place) as writer:
        records = make_records(20)
        writer.write((encode(record) for record in records), events=lines, outcome={"repaired": 2, "resized": 3})
        writer.finish(classes=["a", "b", "c", "d", "e"])
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest
    change_manifest(place, **{fact: other})
    with (
        open_store(place) as store,
        pytest.raises(DamagedStoreError, match=rf"({fact}|outcome) in its manifest disagrees with its records"),
    ):
        store.verify()


@pytest.mark.parametrize("change", ["flipped", "missing", "exchanged", "empty", "something else"])
def test_damaged_line_of_the_report_raises(tmp_path: Path, change: str) -> None:
    place = tmp_path / "store.lmdb"
    lines = [{"name": f"{number}.jpg", "event": "rejected", "reason": "why"} for number in range(3)]
    store_records(place, [], events=lines)
    value = value_at(place, b"meta", event_key(1))
    new = {
        "flipped": value.replace(b"why", b"wky"),
        "missing": None,
        "exchanged": value_at(place, b"meta", event_key(2)),
        "empty": b"",
        "something else": seal({"event": "rejected"}, 1, salt_of(place)),
    }[change]
    tamper(place, b"meta", {event_key(1): new})
    with open_store(place) as store:
        events = store.events()
        assert next(events) == lines[0]
        with pytest.raises(DamagedStoreError, match=r"event 1 of its report is damaged: "):
            next(events)
        with pytest.raises(DamagedStoreError, match=r"event 1 of its report is damaged: "):
            store.verify()


@pytest.mark.parametrize("length", [19, 21, 10**12])
def test_wrong_length_in_the_manifest_raises_in_verify_and_columns(place: Path, length: int) -> None:
    change_manifest(place, length=length)
    with open_store(place) as store:
        with pytest.raises((DamagedStoreError, DamagedRecordError), match=r"is missing|are missing"):
            store.verify()
        for read in (lambda: store.column("label"), store.names, lambda: store.find("class 0/0.jpg")):
            with pytest.raises(DamagedStoreError, match=r"chunks? .*of its column \w+ (is|are) missing"):
                read()


def test_huge_length_allocates_no_memory(tmp_path: Path) -> None:
    place, length = tmp_path / "store.lmdb", 10**13
    write(place, small_records(3))
    last = -(-length // CHUNK) - 1
    for column in COLUMNS:
        tamper(place, b"meta", {column_key(column, last): seal_chunk(column, last, b"", salt_of(place))})
    change_manifest(place, length=length)
    with open_store(place) as store:
        for read in (lambda: store.column("label"), store.names, lambda: store.find("x")):
            with pytest.raises(DamagedStoreError, match=r"its manifest counts 10,000,000,000,000 records, but chunks"):
                read()


def test_error_names_the_index_of_a_record_whose_name_is_also_damaged(place: Path) -> None:
    tamper(place, b"meta", {column_key("name", 0): None})
    tamper(place, b"records", {record_key(3): b"x"})
    with (
        open_store(place) as store,
        pytest.raises(DamagedRecordError, match=r"^record 3 \(its name is damaged too\) of .* it has only 1 bytes"),
    ):
        store[3]
