"""The file of an unfinished store grows with its map, and a full disk raises an error instead of a signal."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from dbloader import Record, open_store
from dbloader.errors import DamagedStoreError, StoreError, StoreFullError
from dbloader.records.record import encode
from dbloader.stores.lmdb import growing_file
from dbloader.stores.lmdb.growing_file import PartialFile
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, check_resumes, documents_of, stored, write, write_nothing, write_partial
from tests.support.children import in_child


def records_of(count: int, nbytes: int) -> list[Record]:
    return [Record(name=f"{number}", image=bytes([number]) * nbytes) for number in range(count)]


def test_map_grows_automatically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_file, "FIRST_MAP_BYTES", 2**16)
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    records = [Record(name=f"{number}", image=bytes(size)) for number, size in enumerate([10, 9**7, 10_000] * 3)]
    place = tmp_path / "store.lmdb"
    with create_store(place) as writer:
        for record in records:
            writer.write([encode(record)])
        manifest = writer.finish()
    with open_store(place) as store:
        assert stored(store, range(9)) == documents_of(records)
        assert store.verify() == manifest.digest
        size = place.stat().st_size
        assert 3 * 9**7 < size < 4 * 9**7


def test_map_that_cannot_grow_raises_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_file, "FIRST_MAP_BYTES", 2**16)
    file = PartialFile(str(tmp_path / "store.lmdb"))

    def write_limited() -> None:
        file.lock()
        file.open()
        value = bytes(2**26)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, used + 2**25))
        with pytest.raises(StoreError, match=r"partial cannot be written: .*Cannot allocate memory; .*ulimit -v"):
            file.write([(b"key", value)])

    assert in_child(write_limited) == 0


def test_commit_waits_for_the_disk_and_writes_through_no_map(tmp_path: Path) -> None:
    file = PartialFile(str(tmp_path / "store.lmdb"))
    file.lock()
    file.open()
    flags = file.env.flags()
    file.env.close()
    file.unlock()
    # A crash of the machine may undo the last commit. A full disk raises an error, because no write goes through a map.
    assert {name: flags[name] for name in ("sync", "metasync", "writemap", "map_async")} == {
        "sync": True, "metasync": False, "writemap": False, "map_async": False
    }  # fmt: skip


@pytest.mark.parametrize("lost", [1, 2_000_000])
def test_partial_store_cut_short_is_not_resumed(tmp_path: Path, lost: int) -> None:
    place, path = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    write_partial(place, records_of(6, 500_000))
    size = path.stat().st_size
    os.truncate(path, size - lost)
    with pytest.raises(DamagedStoreError, match=r"cut short: it has \d+ bytes of \d+; begin again with overwrite"):
        write_nothing(place, resume=True)
    assert path.stat().st_size == size - lost
    write(place, records_of(3, 10), overwrite=True)
    check_is(place, records_of(3, 10))


def test_full_disk_keeps_committed_records(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    records = records_of(32, 500_000)
    filler, place = small_disk / "filler", small_disk / "store.lmdb"
    filler.write_bytes(bytes(10**7))
    message = r"no room is left for .*store\.lmdb.*: free some space, then resume \(--resume\)$"
    for options in ({}, {"resume": True}):
        with pytest.raises(StoreFullError, match=message):
            write(place, records, resumable=True, **options)
        assert [path.name for path in small_disk.iterdir() if path != filler] == ["store.lmdb.partial"]
    filler.unlink()
    check_resumes(place, records, range(11, 25))


@pytest.mark.parametrize(("commit_bytes", "resumable"), [(10**6, False), (10**8, True)])
def test_full_disk_mentions_no_resume_if_nothing_is_kept(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, commit_bytes: int, resumable: bool
) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", commit_bytes)
    with pytest.raises(StoreFullError, match=r"no room is left for .*store\.lmdb.*: free some space$"):
        write(small_disk / "store.lmdb", records_of(64, 500_000), resumable=resumable)
    assert list(small_disk.iterdir()) == []


def test_limit_of_file_sizes_is_named_and_keeps_committed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The disk has free space, and LMDB reports "Input/output error".
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    place = tmp_path / "store.lmdb"
    records = records_of(20, 500_000)

    def write_limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 10**6, 5 * 10**6))
        message = (
            r"store\.lmdb would become larger than .*: raise the limit \(ulimit -f\), .*, then resume \(--resume\)$"
        )
        with pytest.raises(StoreFullError, match=message):
            write(place, records, resumable=True)

    assert in_child(write_limited) == 0
    check_resumes(place, records, range(4, 10))


def test_damaged_unfinished_store_names_the_remedy(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write_partial(place, records_of(30, 10))
    path = Path(f"{place}.partial")
    whole, refused = path.read_bytes(), list[str]()
    for at in range(2 * 4096, len(whole), 4096):  # after the two meta pages
        path.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
        try:
            write(place, records_of(3, 10), resume=True, overwrite=True)
        except StoreError as error:
            refused.append(str(error))
    assert refused
    assert all("begin again with overwrite (--overwrite)" in message for message in refused)
    path.write_bytes(bytes(4096) + whole)
    write(place, records_of(3, 10), overwrite=True)
    check_is(place, records_of(3, 10))
