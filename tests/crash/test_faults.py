"""Faults other than kills: full or read-only disks, and concurrent conversions and readers at one place."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from dbloader import LMDBDataset
from dbloader.conversion.convert import convert
from dbloader.errors import NotAStoreError, StoreError, StoreFullError, StoreNotFoundError
from dbloader.stores.open import create_store, open_store
from tests.contracts.records import stored
from tests.support.crash import (
    Whole,
    check_nothing_is_lost,
    check_resumed,
    check_whole,
    converting,
    make_old,
    resume,
    trials,
)
from tests.support.images import WAIT_S, plant_photos
from tests.support.lmdb_files import fill_disk
from tests.support.mongo import Mongod
from tests.support.servers import needing_a_server
from tests.support.shell import Shell

pytestmark = [
    pytest.mark.slow,
    # Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


# ---- Disks


DISKS = trials(8, 2, 5)


@pytest.fixture(scope="module")
def needed(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the number of bytes that a conversion with many commits writes."""
    folder = tmp_path_factory.mktemp("needed")
    with converting(whole, folder / "out.lmdb", log=folder / "log") as process:
        process.join(WAIT_S)
    return (folder / "out.lmdb").stat().st_size


def leave_free(folder: Path, nbytes: int) -> Path:
    """Fill a file system until only ``nbytes`` are free. Return the file that fills it."""
    filler = folder / "filler"
    status = os.statvfs(folder)
    filler.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - nbytes)))
    return filler


def mount(folder: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")


@pytest.mark.parametrize("number", DISKS)
@pytest.mark.parametrize("replacing", [False, True], ids=["fresh", "overwrite"])
def test_full_disk_at_any_moment_loses_nothing(
    whole: Whole, needed: int, small_disk: Path, tmp_path: Path, number: int, replacing: bool
) -> None:
    place = small_disk / "out.lmdb"
    old = make_old(small_disk) if replacing else None
    options = ["--overwrite"] if old else []
    # In half of the trials the disk is full near the end, while columns, manifest or report are written.
    share = number / len(DISKS) if number % 2 else 0.9 + 0.2 * number / len(DISKS)
    filler = leave_free(small_disk, round(needed * share))
    with converting(whole, place, *options, log=tmp_path / "log") as process:
        process.join(WAIT_S)
        status = process.exitcode
    said = (tmp_path / "log").read_text().splitlines()
    if status == 2:
        assert len(said) == 1, said
        assert "No space left" in said[0] or "no room is left" in said[0]
        check_nothing_is_lost(place, old)
        filler.unlink()
        resume(whole, place)
        check_resumed(whole, place)
    else:  # at most a warning, because only the report beside the store had no room
        assert status == 1
        assert [line.partition(": ")[0] for line in said] in ([], ["Warning"]), said
        check_whole(whole, place)


@pytest.fixture
def mongod_on_small_disk(tmp_path: Path) -> Iterator[tuple[Mongod, Path]]:
    folder = tmp_path / "server"
    folder.mkdir()
    mount(folder, "size=600m")
    try:
        with needing_a_server(), Mongod(folder / "mongod") as server:
            yield server, folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("number", trials(8, 1, share=8))
def test_full_disk_of_a_server_loses_nothing(
    whole: Whole,
    mongod_on_small_disk: tuple[Mongod, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    server, folder = mongod_on_small_disk
    monkeypatch.chdir(tmp_path)  # the report is written to the working directory
    place = server.place("full") + "?timeoutMS=3000"
    # fill the disk before the conversion begins, or while it writes
    filler = folder if number % 2 else fill_disk(folder, 2**16)
    with converting(whole, place, log=tmp_path / "log") as process:
        if number % 2:
            process.join(0.05 * number)
            filler = fill_disk(folder, 2**16)
        with server.client() as client, suppress(PyMongoError):
            while process.exitcode is None:
                client.admin.command("fsync")  # as the server does every minute
                process.join(0.02)
        process.join(WAIT_S)
        status = process.exitcode
    filler.unlink()
    server.restore()
    said = (tmp_path / "log").read_text()
    if status == 2:
        assert len(said.splitlines()) == 1
        assert "no room is left" in said or "server" in said, said
        with pytest.raises((NotAStoreError, StoreNotFoundError), match=r"is not a finished store|does not exist"):
            len(open_store(place))
        convert(whole.root, place, resume=True)
    check_whole(whole, place)


def test_nearly_full_server_survives_a_conversion(whole: Whole, mongod_on_small_disk: tuple[Mongod, Path]) -> None:
    server, folder = mongod_on_small_disk
    filler = fill_disk(folder, 2**16)
    os.truncate(filler, filler.stat().st_size - 8 * 2**20)
    with pytest.raises(StoreFullError, match=r"no room is left for mongodb:.*: the disk of the server has .* MB left$"):
        convert(whole.root, server.place("full"))
    with server.client() as client:
        assert client.admin.command("ping")["ok"]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only file system that contains a store, a folder of images, and an unfinished conversion."""
    folder = tmp_path / "media"
    folder.mkdir()
    mount(folder, "size=64m")
    try:
        convert(plant_photos(folder / "images", 20), folder / "store.lmdb")
        with create_store(folder / "begun.lmdb", resumable=True) as writer:
            writer.commit()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_store_on_read_only_media_is_read(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Shell(monkeypatch, capfd)
    before = sorted(path.name for path in read_only.iterdir())
    place = str(read_only / "store.lmdb")
    for command in (("info", place), ("verify", place), ("copy", place, str(tmp_path / "copy.lmdb"))):
        assert run(*command).status == 0, command
    with LMDBDataset(place) as dataset:
        assert [dataset[index][1] for index in range(20)] == [0] * 10 + [1] * 10
    assert run("convert", str(read_only / "images"), str(tmp_path / "again.lmdb")).status == 0
    assert (tmp_path / "again.lmdb").stat().st_size == Path(place).stat().st_size
    for name, options in (("new.lmdb", ()), ("store.lmdb", ("--overwrite",)), ("begun.lmdb", ("--resume",))):
        refused = run("convert", str(read_only / "images"), str(read_only / name), *options)
        assert refused.status == 2
        assert "Read-only file system" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert sorted(path.name for path in read_only.iterdir()) == before


# ---- Several processes at one place


STORES = ["lmdb", "mongodb"]
RACES = [("lmdb", trials(8, 0, 1)), ("mongodb", trials(8, 0, 1, share=4))]  # mongodb is slower


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, session_mongod: Mongod) -> str:
    """A place of the kind that the test's parameter names."""
    return str(request.getfixturevalue("mongod_uri") if request.param == "mongodb" else tmp_path / "out.lmdb")


@pytest.mark.parametrize(
    ("place", "number"),
    [pytest.param(kind, *one.values, marks=one.marks) for kind, numbers in RACES for one in numbers],
    indirect=["place"],
)
def test_concurrent_conversion_has_one_winner(whole: Whole, tmp_path: Path, place: str, number: int) -> None:
    generator = random.Random(number)
    options = [] if number % 2 else ["--overwrite"]
    with ExitStack() as stack:
        processes = []
        for name in "abc":
            (tmp_path / name).mkdir()
            begun = converting(whole, place, *options, log=tmp_path / name / "log")
            processes.append(stack.enter_context(begun))
            time.sleep(generator.uniform(0, 0.1))  # a race offers no event to wait for
        for process in processes:
            process.join(WAIT_S)
        statuses = [process.exitcode for process in processes]
    said = [(tmp_path / name / "log").read_text() for name in "abc"]
    for status, text in zip(statuses, said, strict=True):
        if status == 2:
            assert len(text.splitlines()) == 1
            assert "is writing" in text or "exists already" in text
        else:
            assert (status, text) == (1, "")  # some files are rejected
    assert statuses.count(1) >= 1
    assert statuses.count(1) == 1 or options
    check_whole(whole, place)


@pytest.mark.parametrize("place", STORES, indirect=True)
@pytest.mark.parametrize("number", trials(8, 0, share=4))
def test_reader_never_mixes_a_store_with_its_replacement(tmp_path: Path, place: str, number: int) -> None:
    roots = [plant_photos(tmp_path / name, 60, width=48 + 8 * at) for at, name in enumerate("ab")]
    digests = [convert(root, place, overwrite=True).digest for root in roots]
    context = multiprocessing.get_context("fork")
    done = context.Event()
    receiver, sender = context.Pipe(duplex=False)
    reader = context.Process(target=read_on, args=(place, done, sender, number))
    reader.start()
    try:
        for at in range(6):
            convert(roots[at % 2], place, overwrite=True)
        done.set()
        assert receiver.poll(WAIT_S)
        found, errors = receiver.recv()
        reader.join(WAIT_S)
        assert reader.exitcode == 0
    finally:
        reader.kill()
        reader.join()
    assert {digest for digest, _ in found} <= set(digests)
    assert len({*found}) == len({digest for digest, _ in found})  # each conversion stores the same records
    assert len(found) > 1
    # A server keeps only the store that was replaced last.
    assert all("replaced" in error or "removed" in error for error in errors), errors
    assert not errors or place.startswith("mongodb")


def read_on(place: str, done: Any, sender: Any, seed: int) -> None:
    """Open a store and read it record by record, repeatedly. Send the digests and errors."""
    generator = random.Random(seed)
    found: list[tuple[str, str]] = []  # the digest in the manifest, and the digest of the records that were read
    errors: list[str] = []
    while not done.is_set() or len(found) < 2:
        try:
            with open_store(place) as store:
                digest = store.manifest.digest
                seen = hashlib.sha256()
                for start in range(0, len(store), 7):
                    documents = stored(store, range(start, min(start + 7, len(store))))
                    seen.update(b"".join(documents))
                    time.sleep(generator.uniform(0, 0.01))
                assert store.verify() == digest
                found.append((digest, seen.hexdigest()))
        except StoreError as error:
            errors.append(str(error))
    sender.send((found, errors))
