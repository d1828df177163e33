"""Writing without syncing each commit: what a kill leaves is good, what a crash of the machine leaves is not used."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

import dbloader.stores.writer as writing
from dbloader import convert, create_store, open_store
from dbloader.errors import DamagedStoreError, StoreFullError
from dbloader.stores.lmdb import unsynced
from dbloader.stores.lmdb import writer as lmdb_writer
from tests.contracts.store import documents_of, make_records, write_one_by_one

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = make_records(12)


def write_and_die(place: Path) -> None:
    with create_store(place, resumable=True, durable=False) as writer:
        write_one_by_one(writer, RECORDS[:5])
        writer.commit()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The place of an unfinished store whose writer was killed after five records."""
    place = tmp_path / "store.lmdb"
    process = multiprocessing.get_context("fork").Process(target=write_and_die, args=(place,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()
    return place


def left_at(place: Path) -> list[str]:
    return sorted(path.name.removeprefix(place.name) for path in place.parent.glob(f"{place.name}*"))


def test_a_mark_of_this_start_of_the_machine_is_not_written_anew(tmp_path: Path) -> None:
    mark = unsynced.Unsynced(tmp_path / "store.lmdb")
    mark.set()
    before = (tmp_path / "store.lmdb.nosync").stat()
    mark.set()
    assert (tmp_path / "store.lmdb.nosync").stat() == before


def test_a_mark_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    old = tmp_path / "store.lmdb.nosync"
    old.write_text("another start")

    def mark_and_die(call: str) -> None:
        setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        unsynced.Unsynced(place).set()

    for call in ("fsync", "replace"):
        process = multiprocessing.get_context("fork").Process(target=mark_and_die, args=(call,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        process.close()
        assert old.read_text() == "another start"
    mark = unsynced.Unsynced(place)
    mark.set()
    assert old.read_text() == unsynced.boot_id()
    mark.clear()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("durable", [False, True])
def test_what_a_killed_writer_did_not_sync_is_resumed(killed: Path, durable: bool) -> None:
    assert left_at(killed) == [".nosync", ".partial"]
    with create_store(killed, resume=True, resumable=True, durable=durable) as writer:
        assert writer.length == 5
        assert left_at(killed) == ([".partial"] if durable else [".nosync", ".partial"])
        write_one_by_one(writer, RECORDS)
        writer.finish()
    assert left_at(killed) == [""]
    with open_store(killed) as store:
        assert store.documents(range(len(RECORDS))) == documents_of(RECORDS)


def test_what_was_not_synced_before_a_restart_of_the_machine_is_not_trusted(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsynced, "boot_id", lambda: "another start")
    for durable in (False, True):
        with (
            pytest.raises(DamagedStoreError, match=r"the machine was restarted .* begin again with overwrite"),
            create_store(killed, resume=True, resumable=True, durable=durable),
        ):
            pass
    assert left_at(killed) == [".nosync", ".partial"]
    with create_store(killed, overwrite=True) as writer:
        assert writer.length == 0
        assert left_at(killed) == [".partial"]
        write_one_by_one(writer, RECORDS)
        writer.finish()
    assert left_at(killed) == [""]


def test_a_mark_that_cannot_be_made_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(unsynced, "sync_folder", full)
    with (
        pytest.raises(StoreFullError, match=r"no room is left for .*store\.lmdb: No space left on device"),
        create_store(tmp_path / "store.lmdb", durable=False),
    ):
        pass
    assert left_at(tmp_path / "store.lmdb") == []


def test_a_name_that_is_long_enough_for_the_partial_file_is_for_the_mark(tmp_path: Path) -> None:
    place = tmp_path / ("x" * (255 - len(".partial")))
    with create_store(place, durable=False) as writer:
        write_one_by_one(writer, RECORDS)
        writer.finish()
    assert left_at(place) == [""]


def test_a_writer_that_is_left_takes_its_mark_away(tmp_path: Path) -> None:
    with create_store(tmp_path / "store.lmdb", durable=False) as writer:
        write_one_by_one(writer, RECORDS)
        writer.commit()
        assert left_at(tmp_path / "store.lmdb") == [".nosync", ".partial"]
    assert left_at(tmp_path / "store.lmdb") == []


def test_where_a_restart_could_not_be_told_every_commit_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_writer, "boot_id", lambda: "")
    with create_store(tmp_path / "store.lmdb", durable=False) as writer:
        assert writer.durable
        assert left_at(tmp_path / "store.lmdb") == [".partial"]


@pytest.mark.parametrize(("check", "synced"), [("none", False), ("structure", True), ("decode", True)])
def test_only_a_conversion_without_checks_leaves_commits_unsynced_and_none_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, synced: bool
) -> None:
    from PIL import Image

    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / "a" / f"{number}.png")
    opened: list[dict[str, Any]] = []
    at_the_end: list[bool] = []
    real = lmdb.open

    def spying(path: str, **options: Any) -> Any:
        if path.endswith(".partial"):
            opened.append(options)
        return real(path, **options)

    class Watching(lmdb_writer.LMDBWriter):
        def _publish(self, manifest: Any) -> None:
            sync = self._env.sync

            class Env:
                def __getattr__(this, name: str) -> Any:  # noqa: N805 - self is the writer's
                    return getattr(env, name)

                def sync(this, force: bool) -> None:  # noqa: N805
                    at_the_end.append(force)
                    sync(force)

            env: Any = self._env
            self._env = Env()  # type: ignore[assignment]  # it is asked for nothing that it has not
            super()._publish(manifest)

    monkeypatch.setattr(lmdb, "open", spying)
    monkeypatch.setattr(lmdb_writer, "LMDBWriter", Watching)
    monkeypatch.setattr(writing, "COMMIT_BYTES", 1)
    convert(tmp_path / "images", tmp_path / "store.lmdb", check=check)
    assert [options["sync"] for options in opened] == [synced]
    assert at_the_end == [True]  # all of it, before it is renamed
