"""Writing an LMDB file: refused places, permissions, links, and the partial file."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import bson
import pytest

from dbloader import open_store
from dbloader.errors import DamagedStoreError, NotAStoreError, StoreAccessError, StoreError, StoreExistsError
from dbloader.records.record import encode
from dbloader.stores.lmdb import growing_file
from dbloader.stores.lmdb.growing_file import PartialFile
from dbloader.stores.lmdb.keys import column_key
from dbloader.stores.open import create_store
from tests.contracts.records import check_is, make_records, write, write_nothing, write_one_by_one, write_partial
from tests.support.children import in_child
from tests.support.images import as_nobody
from tests.support.lmdb_files import tamper, value_at


def test_store_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "store.lmdb", make_records(3))
    finally:
        os.umask(before)
    assert (tmp_path / "store.lmdb").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["store.lmdb"]


def test_partial_file_of_another_kind_is_kept_without_overwrite(tmp_path: Path) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    partial.write_text("a text\n" * 1000)
    with pytest.raises(StoreExistsError, match="has an unfinished conversion: resume"):
        write_nothing(place)
    with pytest.raises(NotAStoreError, match=r"partial is not an LMDB file.*; begin again with overwrite"):
        write_nothing(place, resume=True)
    assert partial.read_text() == "a text\n" * 1000
    write(place, make_records(3), overwrite=True)
    assert not partial.exists()


@pytest.mark.parametrize("name", ["name", "crc32"])
def test_partial_file_with_a_damaged_column_is_not_resumed(tmp_path: Path, name: str) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    write_partial(place, make_records(3))
    whole = value_at(partial, b"meta", column_key(name, 0))
    for change in (whole[:-4], bytes([whole[0] ^ 1]) + whole[1:], None):
        tamper(partial, b"meta", {column_key(name, 0): change})
        message = rf"partial: its column {name} is damaged; begin again with overwrite \(--overwrite\)"
        with pytest.raises(DamagedStoreError, match=message):
            write_nothing(place, resume=True)
    with create_store(place, overwrite=True) as again:  # the refused writer has closed the file
        again.finish()


@pytest.mark.parametrize("kind", ["damaged", "newer"])
def test_damaged_or_newer_store_may_be_overwritten(place: Path, kind: str) -> None:
    if kind == "damaged":
        os.truncate(place, place.stat().st_size // 2)
    else:
        tamper(place, b"meta", {b"manifest": bson.encode({"format": "dbloader", "version": 2})})
    write(place, make_records(3), overwrite=True)
    with open_store(place) as store:
        assert len(store) == 3


@pytest.mark.parametrize(("mode", "message"), [(0o644, "is not a dbloader store and will not"), (0, "cannot be read")])
def test_file_that_cannot_be_recognized_is_not_overwritten(open_path: Path, mode: int, message: str) -> None:
    open_path.chmod(0o777)
    place = open_path / "store.lmdb"
    write(place, make_records(3))
    content = bytes(8192) + place.read_bytes()[8192:]  # without the meta pages by which LMDB recognizes its files
    place.write_bytes(content)
    place.chmod(mode)
    with as_nobody(), pytest.raises(StoreError, match=message):
        write(place, make_records(3), overwrite=True)
    place.chmod(0o644)
    assert place.read_bytes() == content


REFUSED: dict[str, tuple[Callable[[Path], object], str, type[StoreError], str]] = {
    "link at the partial file": (
        lambda folder: (folder / "store.lmdb.partial").symlink_to(folder / "victim"),
        "store.lmdb",
        StoreAccessError,
        r"store\.lmdb\.partial is a symbolic link: remove it$",
    ),
    "link to itself": (
        lambda folder: (folder / "store.lmdb").symlink_to("store.lmdb"),
        "store.lmdb",
        StoreAccessError,
        r"store\.lmdb cannot be written: its symbolic links form a circle$",
    ),
    "folder at the partial file": (
        lambda folder: (folder / "store.lmdb.partial").mkdir(),
        "store.lmdb",
        StoreAccessError,
        r"store\.lmdb\.partial is a folder, perhaps of an unfinished conversion in parts",
    ),
    "missing folder": (
        lambda folder: None,
        "missing/store.lmdb",
        StoreAccessError,
        "cannot be written: No such file or directory: its folder does not exist .* or takes no files, like /proc$",
    ),
    "folder": (
        lambda folder: (folder / "images").mkdir(),
        "images",
        StoreExistsError,
        r"images must be a file, not a folder: name a file, such as .*/images/train\.lmdb$",
    ),
    "name of a folder": (
        lambda folder: None,
        "images/",
        StoreExistsError,
        r"images/ must be a file, not a folder: name a file, such as .*/images\.lmdb$",
    ),
}


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("case", REFUSED)
def test_place_that_cannot_be_a_file_is_refused_and_kept(tmp_path: Path, case: str, options: dict[str, bool]) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    make, name, error, message = REFUSED[case]
    make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        write_nothing(f"{tmp_path}/{name}", **options)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_overwriting_a_link_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "store.lmdb", tmp_path / "disk" / "real.lmdb"
    link.symlink_to(target)
    for count in (3, 5):
        with create_store(link, overwrite=True) as writer:
            assert (tmp_path / "disk" / "real.lmdb.partial").exists()
            write_one_by_one(writer, make_records(count))
            writer.finish()
        assert link.is_symlink()
        check_is(target, make_records(count))
        check_is(link, make_records(count))


def test_partial_file_renamed_before_its_lock_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another process finished the store and renamed the file.
    place, partial, flock = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial", fcntl.flock
    locked: list[int] = []

    def rename_and_lock(descriptor: int, operation: int) -> None:
        if not locked:
            partial.rename(tmp_path / "other.lmdb")
        locked.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rename_and_lock)
    with create_store(place) as writer:
        assert len(locked) == 2
        assert partial.exists()
        monkeypatch.undo()
        write_one_by_one(writer, make_records(3))
        writer.finish()
    assert (tmp_path / "other.lmdb").stat().st_size == 0
    with open_store(place) as store:
        assert len(store) == 3


def test_file_system_without_locks_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: No locks available"):
        write_nothing(tmp_path / "store.lmdb")


def test_folder_that_appears_during_writing_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with create_store(place, overwrite=True, resumable=True) as writer:
        write_one_by_one(writer, make_records(3))
        place.mkdir()
        with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
            writer.finish()
    place.rmdir()
    with create_store(place, resume=True) as writer:
        assert writer.length == 3


def test_folder_without_write_permission_raises(open_path: Path) -> None:
    place = open_path / "store.lmdb"
    write(place, make_records(2))
    open_path.chmod(0o555)
    for name, options in (("other", {}), ("other", {"resume": True}), ("store", {"overwrite": True})):
        message = rf"{name}\.lmdb\.partial cannot be written: Permission denied"
        with as_nobody(), pytest.raises(StoreAccessError, match=message):
            write_nothing(open_path / f"{name}.lmdb", **options)
    open_path.chmod(0o755)
    assert [path.name for path in open_path.iterdir()] == ["store.lmdb"]


def test_forked_child_cannot_write_or_close_its_parents_store(tmp_path: Path) -> None:
    place, records = tmp_path / "store.lmdb", make_records(40)
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, records[:20])
        writer.commit()

        def leave() -> None:
            with pytest.raises(StoreError, match="can be written only by the process that began it"):
                writer.write([encode(records[20])])
            writer.__exit__(None, None, None)

        assert in_child(leave) == 0
        with pytest.raises(StoreError, match="another process is writing"):
            write_nothing(place, resume=True)
        write_one_by_one(writer, records)
        writer.finish()
    check_is(place, records)


def test_writer_starts_no_thread_after_entering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An interrupt while a thread starts would leave a running commit that nobody waits for, and close its file.
    def interrupt(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "store.lmdb"
    with create_store(place, resumable=True) as writer:
        monkeypatch.setattr(threading.Thread, "start", interrupt)
        writer.write([encode(record) for record in make_records(3)])
        writer.commit()
    monkeypatch.undo()
    with create_store(place, resume=True) as writer:
        assert writer.length == 3


def test_finish_syncs_the_file_renames_it_and_syncs_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def note(*arguments: object) -> object:
            done.append(name)
            return function(*arguments)

        return note

    monkeypatch.setattr(PartialFile, "sync", noting("sync", PartialFile.sync))
    monkeypatch.setattr(Path, "replace", noting("rename", Path.replace))
    monkeypatch.setattr(growing_file, "sync_folder", noting("sync the folder", growing_file.sync_folder))
    write(tmp_path / "store.lmdb", make_records(3))
    assert done == ["sync", "rename", "sync the folder"]
