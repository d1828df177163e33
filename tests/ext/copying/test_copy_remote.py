"""Uploads to object storage and downloads. Concurrent uploads have one winner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    OptionError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
)
from dbloader.ext.copying.copy_store import copy_store
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from dbloader.stores.lmdb.shard_table import ShardTable
from dbloader.stores.open import open_store
from tests.contracts.records import stored
from tests.support.http_proxy import EXPIRED, LOST, SLOW_DOWN, Change, HTTPProxy, flip, other_etag, shorten
from tests.support.images import plant_photos
from tests.support.object_store import (
    READER_KEY,
    READER_SECRET,
    WAIT_S,
    ObjectStore,
    Outside,
    get,
    keys,
    put,
    put_folder,
    read_table,
)
from tests.support.parts import plan_conversion

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three stores: one file, the same records in shards, and other records."""
    folder = tmp_path_factory.mktemp("stores")
    root = plant_photos(folder / "images", 12)
    convert(root, folder / "one.lmdb")
    for source, name, parts in ((root, "shards.lmdb", 3), (plant_photos(folder / "other", 5), "other.lmdb", 2)):
        plan_conversion(source, folder / name, parts)
        for part in range(parts):
            convert_part(folder / name, part)
        publish(folder / name)
    return folder


def digest(place: Path) -> str:
    with open_store(place) as store:
        return store.verify()


def start_copy(
    object_store: ObjectStore, proxy: HTTPProxy, source: object, to: object, *options: str
) -> subprocess.Popen[str]:
    """Begin to copy a store through a proxy, in a process of its own."""
    line = [sys.executable, "-m", "dbloader", "copy", str(source), str(to), *options]
    environment = object_store.environment(endpoint=proxy.endpoint)
    return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_store_is_uploaded_and_downloaded(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    expected = digest(stores / "one.lmdb")
    for name in ("one.lmdb", "shards.lmdb"):
        place = object_store.place(name)
        assert outside(copy_store, stores / name, place).digest == expected
        table = outside(read_table, place)
        assert {*outside(keys, place)} == {*table.files, "manifest.bson"}
        assert outside(copy_store, place, tmp_path / name).digest == expected
        assert digest(tmp_path / name) == expected
        assert [path.name for path in tmp_path.iterdir() if ".copy" in path.name] == []
    with open_store(stores / "one.lmdb") as one, open_store(tmp_path / "shards.lmdb") as back:
        assert [*one.names()] == [*back.names()]
        assert stored(one, range(12)) == stored(back, range(12))


def test_remote_store_is_replaced_completely_and_only_on_request(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    outside(copy_store, stores / "shards.lmdb", place)
    first = outside(keys, place)
    with pytest.raises(StoreExistsError, match="exists already; overwrite"):
        outside(copy_store, stores / "other.lmdb", place)
    assert outside(keys, place) == first
    damaged = next(key for key in first if "shards/" in key)
    outside(put, place, {damaged: bytes(len(outside(get, place, damaged)))})
    outside(copy_store, stores / "shards.lmdb", place, overwrite=True)
    assert {*outside(keys, place)} & {*first} == {"manifest.bson"}
    outside(copy_store, place, tmp_path / "back.lmdb")
    assert digest(tmp_path / "back.lmdb") == digest(stores / "shards.lmdb")
    outside(copy_store, stores / "other.lmdb", place, overwrite=True)
    outside(copy_store, place, tmp_path / "back.lmdb", overwrite=True)
    assert digest(tmp_path / "back.lmdb") == digest(stores / "other.lmdb")
    assert [*tmp_path.iterdir()] == [tmp_path / "back.lmdb"]


def test_concurrent_upload_has_one_winner(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    both = threading.Barrier(2)  # neither publishes before both have uploaded their shards

    def decide(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("manifest.bson"):
            both.wait(WAIT_S)

    with HTTPProxy(object_store.port, decide) as proxy:
        names = ("shards.lmdb", "other.lmdb")
        running = {name: start_copy(object_store, proxy, stores / name, place) for name in names}
        errors = {name: process.communicate(timeout=WAIT_S)[1] for name, process in running.items()}
    statuses = {name: process.returncode for name, process in running.items()}
    assert sorted(statuses.values()) == [0, 2], errors
    winner, loser = sorted(statuses, key=lambda name: statuses[name])
    assert "another process has written" in errors[loser]
    table = outside(read_table, place)
    assert {*outside(keys, place)} == {*table.files, "manifest.bson"}
    assert table.manifest.digest == digest(stores / winner)


@contextmanager
def held_copy(object_store: ObjectStore, source: object, to: object, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Begin to copy a store of three shards, and pause the copy at the last shard, 00002, until the block ends."""
    reached, release = threading.Event(), threading.Event()

    def decide(method: str, path: str) -> tuple[int, str] | None:
        if method in ("PUT", "GET") and "/shards/00002-" in path and not release.is_set():
            reached.set()
            release.wait(WAIT_S)
            return SLOW_DOWN  # do not forward: the process may have been killed
        return None

    with HTTPProxy(object_store.port, decide) as proxy:
        process = start_copy(object_store, proxy, source, to, *options)
        try:
            assert reached.wait(WAIT_S)
            yield process
            release.set()
            process.wait(WAIT_S)
        finally:
            release.set()
            process.kill()
            process.wait()


def kill_copy(object_store: ObjectStore, source: object, to: object, others_are_there: Callable[[], bool]) -> None:
    """Begin to copy a store, and kill the process when all shards except the last are copied."""
    with held_copy(object_store, source, to) as process:
        deadline = time.monotonic() + WAIT_S
        while not others_are_there():
            assert time.monotonic() < deadline, "the other shards are not copied"
        process.kill()
        process.communicate()


def copy_and_watch(object_store: ObjectStore, outside: Outside, method: str, source: object, to: object) -> set[str]:
    """Copy a store, and return the names of the shards that were transferred."""
    seen: set[str] = set()

    def decide(used: str, path: str) -> None:
        if used == method and "/shards/" in path:
            seen.add(path.rpartition("/")[2])

    with HTTPProxy(object_store.port, decide) as proxy:
        outside(copy_store, source, to, environment=object_store.environment(endpoint=proxy.endpoint))
    return seen


def test_killed_upload_leaves_no_store_and_can_resume(
    object_store: ObjectStore, outside: Outside, stores: Path
) -> None:
    # an error that contains this name must not look like an error about a bucket
    place = object_store.place("bucket.lmdb")

    def shards() -> list[str]:
        return [key for key in outside(keys, place) if key.startswith("shards/")]

    kill_copy(object_store, stores / "shards.lmdb", place, lambda: len(shards()) == 2)
    with pytest.raises(NotAStoreError, match=r"has no store: there is no manifest\.bson"):
        outside(read_table, place)
    left = shards()
    # wrong bytes under the right name and with the right size
    outside(put, place, {left[1]: bytes(len(outside(get, place, left[1])))})
    sent = copy_and_watch(object_store, outside, "PUT", stores / "shards.lmdb", place)
    assert len(sent) == 2
    assert left[0].removeprefix("shards/") not in sent
    assert {*left} < {*shards()}
    assert outside(read_table, place).manifest.digest == digest(stores / "one.lmdb")


def test_store_with_appended_shards_is_downloaded(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place, grown, to = object_store.place("train.lmdb"), tmp_path / "grown.lmdb", tmp_path / "back.lmdb"
    shutil.copytree(stores / "shards.lmdb", grown)
    convert(stores / "other", grown, append=True)
    outside(put_folder, place, grown)
    outside(copy_store, place, to)
    assert digest(to) == digest(grown)
    assert ShardTable.read(to).older_files == []


def test_upload_removes_files_of_outdated_uploads(object_store: ObjectStore, outside: Outside, stores: Path) -> None:
    place = object_store.place("train.lmdb")
    kill_copy(object_store, stores / "shards.lmdb", place, lambda: len(outside(keys, place)) >= 2)
    others = {"shards/readme.txt": b"x", "index-html": b"x", "images/00000-ab.lmdb": b"x"}
    outside(put, place, others)
    outside(copy_store, stores / "other.lmdb", place)
    table = outside(read_table, place)
    assert {*outside(keys, place)} == {*table.files, "manifest.bson", *others}


def test_upload_keeps_the_old_store_if_its_own_files_are_removed_meanwhile(
    object_store: ObjectStore, outside: Outside, stores: Path
) -> None:
    place = object_store.place("train.lmdb")
    outside(copy_store, stores / "other.lmdb", place)
    old = outside(keys, place)
    with held_copy(object_store, stores / "shards.lmdb", place, "--overwrite") as process:
        deadline = time.monotonic() + WAIT_S
        while len(outside(keys, place)) < len(old) + 3:
            assert time.monotonic() < deadline, "the other files are not uploaded"
        outside(publish, place, keep_hours=0)
        assert outside(keys, place) == old
    assert "some files are missing or have another size" in process.communicate()[1]
    assert {*old} <= {*outside(keys, place)}
    assert outside(read_table, place).manifest.digest == digest(stores / "other.lmdb")
    outside(copy_store, stores / "shards.lmdb", place, overwrite=True)
    assert {*outside(keys, place)} == {*outside(read_table, place).files, "manifest.bson"}


def test_download_fails_if_the_remote_store_is_replaced_meanwhile(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place, to = object_store.place("train.lmdb"), tmp_path / "back.lmdb"
    outside(copy_store, stores / "shards.lmdb", place)
    with held_copy(object_store, place, to) as process:
        outside(copy_store, stores / "other.lmdb", place, overwrite=True)
    assert "repeat the command: it fetches only missing files, or the new store" in process.communicate()[1]
    assert not to.exists()


def test_killed_download_continues_after_its_complete_shards(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place, to = object_store.place("train.lmdb"), tmp_path / "back.lmdb"
    outside(copy_store, stores / "shards.lmdb", place)
    names = [shard.name for shard in outside(read_table, place).shards]

    def there() -> list[Path]:
        return [path for name in names for path in tmp_path.glob(f"*.copy-*/shards/{name}")]

    kill_copy(object_store, place, to, lambda: len(there()) == 2)
    assert not to.exists()
    first, second = there()
    second.write_bytes(first.read_bytes())  # another complete shard under this name
    assert copy_and_watch(object_store, outside, "GET", place, to) == {*names[1:]}
    assert digest(to) == digest(stores / "one.lmdb")
    assert {path.name for path in (to / "shards").iterdir()} == {*names}
    assert [*tmp_path.iterdir()] == [to]


def test_ctrl_c_ends_a_download_that_repeats_requests(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    outside(copy_store, stores / "shards.lmdb", place)
    refused: list[str] = []
    reached = threading.Event()

    def decide(method: str, path: str) -> tuple[int, str] | None:
        if method == "GET" and "/shards/00002-" in path:
            refused.append(path)
            reached.set()
            return SLOW_DOWN
        return None

    with HTTPProxy(object_store.port, decide) as proxy:
        process = start_copy(object_store, proxy, place, tmp_path / "back.lmdb")
        assert reached.wait(WAIT_S)
        before = len(refused)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 130
    assert "copied files are kept; the same command copies the remaining files" in error
    assert len(refused) < before + 6  # a minute of retries would make 14 requests


def test_upload_succeeds_if_its_last_response_is_lost(
    object_store: ObjectStore, outside: Outside, stores: Path
) -> None:
    place = object_store.place("train.lmdb")
    lost: list[str] = []

    def decide(method: str, path: str) -> str | None:
        if method == "PUT" and path.endswith("manifest.bson") and not lost:
            lost.append(path)
            return LOST
        return None

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        made = outside(copy_store, stores / "shards.lmdb", place, environment=environment)
    assert lost
    assert outside(read_table, place).manifest == made


@pytest.mark.parametrize("has_md5", [True, False])
def test_conversion_requests_damaged_images_again_and_rejects_incomplete_ones(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path, has_md5: bool
) -> None:
    place, asked = object_store.place("images"), set[str]()
    outside(put_folder, place, stores / "images")

    def decide(_: str, path: str) -> Change | None:
        if path.endswith("0009.jpg"):
            return shorten
        if path in asked or not path.endswith(".jpg"):
            return None if has_md5 else other_etag
        asked.add(path)
        # Without an MD5, only decoding shows damage, such as a missing end marker.
        return flip if has_md5 else lambda headers, body: other_etag(headers, body[:-2] + b"\0\0")

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        outside(convert, place, tmp_path / "out.lmdb", environment=environment)
    with open_store(tmp_path / "out.lmdb") as store, open_store(stores / "one.lmdb") as whole:
        (event,) = store.events()
        left = [record.image for record in whole if record.name != event["name"]]
        assert [record.image for record in store] == left
    assert event["event"] == "rejected"
    assert "0009.jpg cannot be read whole: 5 answers had another size or MD5" in event["reason"]


def stain(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Change the resolution in the header of a JPEG. Its pixels stay the same."""
    return headers, body[:15] + bytes([body[15] ^ 1]) + body[16:]


@pytest.mark.parametrize("shards", [None, 2])
def test_object_that_never_matches_its_md5_is_stored_and_named(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path, shards: int | None
) -> None:
    place, to = object_store.place("images"), tmp_path / "out.lmdb"
    outside(put_folder, place, stores / "images")

    def decide(method: str, path: str) -> Change | None:
        return stain if method == "GET" and path.endswith("0009.jpg") else None

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        report = outside(convert, place, to, shards=shards, environment=environment)
    (warning,) = report.warnings
    assert warning.startswith("1 object did not match the server's MD5: ")
    assert (report.mismatched, report.records) == (1, 12)
    (line,) = map(json.loads, Path(report.report_file).read_text().splitlines())
    assert (line["event"], line["name"].endswith("0009.jpg")) == ("mismatched", True)


@pytest.mark.parametrize("shards", [None, 2])
def test_bucket_whose_etags_are_no_md5s_is_reported_in_one_line(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path, shards: int | None
) -> None:
    place = object_store.place("images")
    outside(put_folder, place, stores / "images")
    with HTTPProxy(object_store.port, lambda method, _: other_etag if method == "GET" else None) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        report = outside(convert, place, tmp_path / "out.lmdb", shards=shards, environment=environment)
    (warning,) = report.warnings
    assert warning.startswith("12 objects had ETags that are no MD5s, as with KMS keys: ")
    assert (report.mismatched, report.report_file, report.digest) == (0, "", digest(stores / "one.lmdb"))


def test_download_names_files_that_do_not_match_their_md5(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    outside(copy_store, stores / "shards.lmdb", place)
    shard = outside(read_table, place).files[1]
    with HTTPProxy(
        object_store.port, lambda method, path: flip if method == "GET" and path.endswith(shard) else None
    ) as proxy:
        process = start_copy(object_store, proxy, place, tmp_path / "back.lmdb")
        error = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0, error
    assert f"Warning: {place}: these objects did not match their MD5s: ['{shard}']; check the copy with db" in error


def test_server_without_conditional_puts_is_refused_before_the_first_shard(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place, puts = object_store.place("train.lmdb"), list[str]()

    def decide(method: str, path: str) -> None:
        if method in ("PUT", "POST"):
            puts.append(path)

    with HTTPProxy(object_store.port, decide, conditional_puts=False) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        for way, arguments in ((copy_store, (stores / "shards.lmdb", place)), (plan_conversion, (stores, place, 1))):
            with pytest.raises(StoreError, match=r"\(501, NotImplemented\): dbloader needs a server with conditional"):
                outside(way, *arguments, environment=environment)
    assert not [path for path in puts if "/shards/" in path]
    assert outside(keys, place) == []


def test_expired_credentials_end_a_conversion_that_can_resume(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place = object_store.place("images")
    outside(put_folder, place, stores / "images")

    def decide(method: str, path: str) -> tuple[int, str] | None:
        return EXPIRED if path.endswith("0009.jpg") else None

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(Exception, match=r"access is refused \(400, ExpiredToken\)"):
            outside(convert, place, tmp_path / "out.lmdb", environment=environment)
    report = outside(convert, place, tmp_path / "out.lmdb", resume=True)
    assert (report.digest, report.rejected) == (digest(stores / "one.lmdb"), 0)


def test_refused_remote_copies_leave_nothing(
    object_store: ObjectStore, outside: Outside, stores: Path, tmp_path: Path
) -> None:
    place, to = object_store.place("train.lmdb"), tmp_path / "back.lmdb"
    reader = object_store.environment(key=READER_KEY, secret=READER_SECRET)
    with pytest.raises(StoreAccessError, match=r"access is refused \(403, AccessDenied\)"):
        outside(copy_store, stores / "shards.lmdb", place, environment=reader)
    assert outside(keys, place) == []
    with pytest.raises(OptionError, match="https://host/train: a store cannot be put on a web server"):
        outside(copy_store, stores / "shards.lmdb", "https://host/train")
    with pytest.raises(OptionError, match="a copy to or from object storage is always a whole store"):
        copy_store(stores / "shards.lmdb", place, classes=("cat",))
    for other in (place, "mongodb://server/images.train"):
        with pytest.raises(OptionError, match=f"{place} can be copied only to or from a path on this machine"):
            copy_store(other, place)
    cut = tmp_path / "cut.lmdb"
    shutil.copytree(stores / "shards.lmdb", cut)
    shard = min((cut / "shards").iterdir())
    os.truncate(shard, shard.stat().st_size - 4096)
    with pytest.raises(DamagedStoreError, match=r"shards/00000-.* has .* bytes, not "):
        outside(copy_store, cut, place)
    outside(copy_store, stores / "shards.lmdb", place)
    shards = sorted(key for key in outside(keys, place) if "shards/" in key)
    first, second = (outside(get, place, key) for key in shards[:2])
    for data, message in ((second, "is not the file that the manifest of .* lists"), (first[:-4096], "has .*, not ")):
        outside(put, place, {shards[0]: data})
        with pytest.raises(DamagedStoreError, match=message):
            outside(copy_store, place, to)
        assert not to.exists()
    outside(put, place, {shards[0]: first})
    assert outside(copy_store, place, to).digest == digest(to)  # continues with the shards already downloaded
