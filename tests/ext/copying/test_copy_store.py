"""A copy is the same store in LMDB and MongoDB, or nothing."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dbloader.stores.writer as writing
from dbloader import Record, copy_store, open_store
from dbloader.errors import DamagedRecordError, DamagedStoreError, StoreExistsError, StoreNotFoundError
from dbloader.records.columns import DTYPES
from dbloader.records.manifest import Manifest
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, make_records, salt_of, stored
from tests.support.children import in_child
from tests.support.lmdb_files import tamper_with_records
from tests.support.stores import store_records

LENGTH = 300
EVENTS = [{"event": "repaired", "name": f"{number}.jpg", "reason": "no end"} for number in range(5)]

# Python >= 3.12 warns about forks of a process with threads. MongoDB clients have threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def make(place: str | Path, length: int = LENGTH, *, seed: int = 0, **options: Any) -> Manifest:
    with create_store(place, **options) as writer:
        records = make_records(length, seed)
        outcome, depths = {"repaired": 5, "rejected": 0}, {"8-bit": length}
        writer.write([encode(record) for record in records], events=EVENTS, outcome=outcome, depths=depths)
        return writer.finish(classes=("ä", "b", "c"), source={"path": "/images", "shuffle": None}, created="then")


def check_same(place: str | Path, other: str | Path) -> None:
    with open_store(place) as store, open_store(other) as copy:
        assert copy.manifest == replace(store.manifest, created_by=copy.manifest.created_by)
        assert stored(copy, range(len(store))) == stored(store, range(len(store)))
        assert list(copy.events()) == list(store.events())
        assert list(copy.names()) == list(store.names())
        for name in DTYPES:
            assert copy.column(name).tolist() == store.column(name).tolist()
        assert copy.verify() == store.manifest.digest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make(tmp_path / "source.lmdb")
    return tmp_path / "source.lmdb"


def test_copy_to_a_server_and_back_equals_the_source(tmp_path: Path, source: Path, mongo_uri: str) -> None:
    back = tmp_path / "back.lmdb"
    first = copy_store(source, mongo_uri)
    second = copy_store(mongo_uri, back)
    check_same(source, mongo_uri)
    check_same(source, back)
    assert first == second
    with open_store(back) as store:
        assert stored(store, range(LENGTH)) == documents_of(make_records(LENGTH))
        assert list(store.events()) == EVENTS
        assert (store.manifest.created, store.manifest.classes) == ("then", ("ä", "b", "c"))
        assert store.manifest.outcome == {"repaired": 5, "rejected": 0}
        assert store.manifest.depths == {"8-bit": LENGTH}


@pytest.mark.parametrize("length", [0, 65, 4097])
def test_copy_equals_its_source_for_lengths_at_block_edges(tmp_path: Path, length: int) -> None:
    store_records(tmp_path / "source.lmdb", (Record(f"{index}.jpg", index % 3) for index in range(length)))
    copy_store(tmp_path / "source.lmdb", tmp_path / "copy.lmdb")
    check_same(tmp_path / "source.lmdb", tmp_path / "copy.lmdb")


def test_copy_replaces_a_store_only_on_request_and_completely(tmp_path: Path, source: Path, mongo_uri: str) -> None:
    for place in (tmp_path / "copy.lmdb", mongo_uri):
        old = make(place, 10, seed=1)
        with pytest.raises(StoreExistsError, match=r"exists already; overwrite \(--overwrite\) replaces it"):
            copy_store(source, place)

        def look(done: int, _: int, place: Any = place, old: Manifest = old) -> None:
            with open_store(place) as store:
                assert store.manifest == old, done

        copy_store(source, place, overwrite=True, progress=look)
        check_same(source, place)


# Interruptions


def killed(at: int, sources: Any, destinations: Any, **options: Any) -> None:
    """Copy in a process that kills itself after ``at`` records. With -1, it does so between two finished stores."""

    def die(done: int, _: int) -> None:
        if done >= at >= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def copy() -> None:
        writing.COMMIT_BYTES = 1
        finish, finished = writing.Writer.finish, list[Manifest]()

        def finish_one(writer: writing.Writer, **facts: Any) -> Manifest:
            if at < 0 and finished:
                os.kill(os.getpid(), signal.SIGKILL)
            finished.append(finish(writer, **facts))
            return finished[0]

        writing.Writer.finish = finish_one  # type: ignore[method-assign,assignment]
        copy_store(sources, destinations, progress=die, **options)

    assert in_child(copy) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LMDB", "MongoDB"])
def test_copy_killed_repeatedly_is_resumed(tmp_path: Path, source: Path, mongo_uri: str, kind: str) -> None:
    place: str | Path = tmp_path / "copy.lmdb" if kind == "LMDB" else mongo_uri
    for number, records in enumerate((64, 192, LENGTH)):
        killed(records, source, place, resume=number > 0)
        with pytest.raises((FileNotFoundError, ValueError), match=r"(--resume|resume)"), open_store(place) as store:
            len(store)
    with pytest.raises(StoreExistsError, match="has an unfinished conversion: resume"):
        copy_store(source, place)
    counts: list[int] = []
    copy_store(source, place, resume=True, progress=lambda done, _: counts.append(done))
    assert counts[0] >= 192
    check_same(source, place)
    with pytest.raises(StoreExistsError, match="is already finished: there is nothing to resume"):
        copy_store(source, place, resume=True)


def test_copy_killed_at_its_end_stores_nothing_twice(tmp_path: Path, source: Path) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def copy() -> None:
        Manifest.encode = die  # type: ignore[method-assign,assignment] # all is committed, nothing published
        copy_store(source, tmp_path / "copy.lmdb")

    assert in_child(copy) == -signal.SIGKILL
    copy_store(source, tmp_path / "copy.lmdb", resume=True)
    check_same(source, tmp_path / "copy.lmdb")


def test_copy_is_not_resumed_with_another_source(tmp_path: Path, source: Path) -> None:
    place = tmp_path / "copy.lmdb"
    make(tmp_path / "other.lmdb", seed=1)
    killed(128, source, place)
    with pytest.raises(StoreExistsError, match="was begun with another digest of the records"):
        copy_store(tmp_path / "other.lmdb", place, resume=True)
    copy_store(source, place, resume=True)
    check_same(source, place)


# Damage


def test_damaged_record_ends_the_copy_and_changes_nothing(tmp_path: Path, source: Path, mongo_uri: str) -> None:
    document = documents_of(make_records(LENGTH), salt_of(source))[200]
    tamper_with_records(source, {200: document[:-30] + b"\0" + document[-29:]})
    for place in (tmp_path / "copy.lmdb", mongo_uri):
        message = rf"^record 200 \(class 2/ä 200\.jpg\) of {source} is damaged: its CRC-32 is \w+, but \w+ was stored "
        with pytest.raises(DamagedRecordError, match=message):
            copy_store(source, place)
        with pytest.raises(StoreNotFoundError, match="does not exist"), open_store(place) as store:
            len(store)
        old = make(place, 10, seed=1)
        with pytest.raises(DamagedRecordError, match=message):
            copy_store(source, place, overwrite=True)
        with open_store(place) as store:
            assert store.manifest == old


def test_record_replaced_by_another_record_ends_the_copy(tmp_path: Path, source: Path) -> None:
    record = make_records(LENGTH)[200]
    record.label = 1
    tamper_with_records(source, {200: encode(record).document(200, salt_of(source))})
    old = make(tmp_path / "copy.lmdb", 10, seed=1)
    message = rf"^{source}: record 200 \(class 2/ä 200\.jpg\) has been replaced by another record$"
    with pytest.raises(DamagedStoreError, match=message):
        copy_store(source, tmp_path / "copy.lmdb", overwrite=True)
    with open_store(tmp_path / "copy.lmdb") as store:
        assert store.manifest == old
