"""The fetcher of a cache survives failures of its readers, its origin and the network."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    OptionError,
    StoreAccessError,
    StoreError,
    StoreNotFoundError,
)
from dbloader.ext.caching import client
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.store import CachedStore
from tests.support.caching import (
    IMAGES,
    SlowFile,
    fetcher_of,
    images_of,
    kill_fetcher,
    make_shards,
    shards_in,
    wait_until_ended,
)
from tests.support.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Reading:
    """A thread that reads records and keeps the result."""

    def __init__(self, store: CachedStore, indices: Any) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._read, args=(store, indices))
        self._thread.start()

    def _read(self, store: CachedStore, indices: Any) -> None:
        try:
            self.result = images_of(store, indices)
        except StoreError as error:
            self.result = type(error), str(error)  # keeping the error itself would keep the store open

    def get(self) -> Any:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the reader hangs"
        return self.result


def sizes_of_partial_files(cache: Path) -> list[int]:
    return [path.stat().st_size for path in (cache / "partial").iterdir()]


TRAINING = """\
import sys
from dbloader.ext.caching.store import CachedStore
store = CachedStore(sys.argv[1], sys.argv[2])
store.read([0])
print("read", flush=True)
store.read([20])
"""


def training(origin: Path, cache: Path) -> subprocess.Popen[str]:
    """Start a process that reads from shard 0, prints a line, and then waits for shard 5."""
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, origin, cache],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_fetcher_imports_no_torch_and_has_its_own_session(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        store.read([0])
        pid = fetcher_of(cache)
        assert pid is not None
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
        assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]) != os.getpid()
        assert os.getsid(pid) != os.getsid(0)  # Ctrl-C does not reach the fetcher
    wait_until_ended(cache)
    assert sorted(path.name for path in cache.iterdir() if path.name.startswith("fetcher")) == [
        "fetcher.lock",
        "fetcher.log",
    ]
    assert (cache / "fetcher.log").read_text() == ""


def test_fetcher_killed_during_download_is_replaced(origin: Path, cache: Path) -> None:
    slow = SlowFile(origin / "shards" / "00002.lmdb")
    with CachedStore(origin, cache) as store:
        store.read([0])
        reading = Reading(store, [8])
        with slow.opened() as descriptor:
            slow.write(descriptor, slow.data[: len(slow.data) // 2])
            kill_fetcher(cache)
        slow.send()
        assert reading.get() == [IMAGES[8]]
    wait_until_ended(cache)
    assert shards_in(cache) == ["00000.lmdb", "00002.lmdb"]  # the shard is complete


@pytest.mark.parametrize("fetcher_too", [False, True])
def test_cache_is_usable_after_a_training_is_killed(origin: Path, cache: Path, fetcher_too: bool) -> None:
    slow = SlowFile(origin / "shards" / "00005.lmdb")
    with training(origin, cache) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
        with slow.opened() as descriptor:
            slow.write(descriptor, slow.data[:5000])
            wait_for(lambda: sizes_of_partial_files(cache) == [5000], "half of a shard")
            if fetcher_too:
                process.send_signal(signal.SIGSTOP)  # a running process would start another fetcher
                kill_fetcher(cache)
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            wait_until_ended(cache)
    assert shards_in(cache) == ["00000.lmdb"]
    if fetcher_too:
        assert sizes_of_partial_files(cache) == [5000]
    slow.path.unlink()
    slow.path.write_bytes(slow.data)
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
        assert read_stats(cache).fetches == 5
    wait_until_ended(cache)
    assert sizes_of_partial_files(cache) == []


def test_reader_raises_the_reason_why_the_fetcher_cannot_start(origin: Path, cache: Path) -> None:
    (cache / "fetcher.sock").mkdir(parents=True)
    (cache / "cache.json").touch()
    with CachedStore(origin, cache) as store, pytest.raises(StoreAccessError, match=r"cannot be reached.*directory"):
        len(store)


def connect(origin: Path, cache: Path, shards: int, reader: str = "x") -> client.FetcherClient:
    """Connect to the fetcher of a cache that has room for ``shards`` shards."""
    limit = shards * (origin / "shards" / "00000.lmdb").stat().st_size
    opening = {"place": str(origin), "limit": limit, "known": False}
    return client.FetcherClient(str(cache), str(origin), {"open": opening, "reader": reader})


def test_shard_is_kept_until_the_waiting_reader_has_opened_it(origin: Path, cache: Path) -> None:
    first, second = connect(origin, cache, 1), connect(origin, cache, 1)
    second.ask("shard 0", need=0)
    first.tell(need=1)
    first.ask("", expect=[], check=False)  # the answer proves that the fetcher has handled the earlier message
    assert shards_in(cache) == ["00000.lmdb"]
    second.tell(opened=True)
    wait_for(lambda: shards_in(cache) == ["00001.lmdb"], "shard 1 in the place of shard 0")
    third = connect(origin, cache, 1)
    third.tell(need=2)
    third.ask("", expect=[], check=False)
    assert shards_in(cache) == ["00001.lmdb"]
    first.close()
    wait_for(lambda: shards_in(cache) == ["00002.lmdb"], "shard 2, as nobody opens shard 1 any more")
    second.close()
    third.close()


def test_longest_waiting_reader_is_served_first(origin: Path, cache: Path) -> None:
    first, second, third = readers = [connect(origin, cache, 1) for _ in range(3)]
    first.ask("shard 0", need=0)
    for reader, shard in ((second, 1), (third, 2)):
        reader.tell(need=shard)
        reader.ask("", expect=[], check=False)
    first.tell(opened=True)
    first.tell(need=3)
    first.ask("", expect=[], check=False)
    wait_for(lambda: shards_in(cache) == ["00001.lmdb"], "shard 1")
    second.tell(opened=True)
    wait_for(lambda: shards_in(cache) not in ([], ["00001.lmdb"]), "another shard")
    assert shards_in(cache) == ["00002.lmdb"]
    for reader in readers:
        reader.close()


def test_order_announced_by_two_processes_is_kept_until_both_end(origin: Path, cache: Path) -> None:
    one, another, stranger = (connect(origin, cache, 2, reader) for reader in ("x", "x", "y"))

    def is_accepted() -> bool:
        try:
            stranger.ask("the order", expect=[(4, 0, 9), (5, 0, 9)], check=True)
        except OptionError:
            return False
        return True

    one.ask("the order", expect=[(0, 0, 9), (1, 0, 9), (2, 10, 19), (3, 10, 19)], check=True)
    wait_for(lambda: shards_in(cache) == ["00000.lmdb", "00001.lmdb"], "the first shards")
    assert not is_accepted()
    another.ask("shard 1", need=1)
    another.close()
    one.ask("shard 2", need=2)
    wait_for(lambda: shards_in(cache) == ["00002.lmdb", "00003.lmdb"], "the last shards")
    assert not is_accepted()
    one.close()
    wait_for(is_accepted, "the order is forgotten")
    wait_for(lambda: shards_in(cache) == ["00004.lmdb", "00005.lmdb"], "the shards of the other reader")
    stranger.close()


def test_shard_being_fetched_is_not_removed(origin: Path, cache: Path) -> None:
    slow, reader = SlowFile(origin / "shards" / "00001.lmdb"), connect(origin, cache, 2)
    reader.ask("the order", expect=[(0, 0, 9), (1, 10, 19)], check=True)
    with slow.opened() as descriptor:
        wait_for(lambda: shards_in(cache) == ["00000.lmdb"], "shard 0")
        reader.ask("shard 3", need=3)
        assert shards_in(cache) == ["00003.lmdb"]
        slow.write(descriptor, slow.data)
    # Shard 0 replaces shard 1, because it is needed earlier.
    wait_for(lambda: shards_in(cache) == ["00000.lmdb", "00003.lmdb"], "shard 0 beside shard 3")
    reader.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL_S", 2.0)


def test_reader_waits_as_long_as_bytes_arrive(origin: Path, cache: Path, impatient: None) -> None:
    slow = SlowFile(origin / "shards" / "00002.lmdb")
    with CachedStore(origin, cache) as store:
        store.read([0])
        reading = Reading(store, [8])
        with slow.opened() as descriptor:
            for part in range(4):
                slow.write(descriptor, slow.data[part * 10_000 : (part + 1) * 10_000])
                threading.Event().wait(0.8)
            slow.write(descriptor, slow.data[40_000:])
        assert reading.get() == [IMAGES[8]]


def test_wait_is_not_shown_after_a_shown_wait_has_failed(
    origin: Path, cache: Path, impatient: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_SHOW_S", 0.0)
    slow = SlowFile(origin / "shards" / "00002.lmdb")
    with CachedStore(origin, cache) as store, ThreadPoolExecutor(1) as threads:
        for wait, is_shown in ((partial(store.files.fetch, 2, show=True), True), (partial(store.read, [8]), False)):
            waiting = threads.submit(wait)
            with slow.opened(), pytest.raises(StoreAccessError, match=r"shard 2 .* did not arrive"):
                waiting.result(WAIT_S)
            assert ("waiting for shard 2" in capfd.readouterr().err) == is_shown
            wait_for(lambda: sizes_of_partial_files(cache) == [], "this attempt no longer reads the pipe")


def test_reader_names_the_shard_when_no_bytes_arrive(origin: Path, cache: Path, impatient: None) -> None:
    slow = SlowFile(origin / "shards" / "00002.lmdb")
    with CachedStore(origin, cache) as store:
        store.read([0])
        message = f"shard 2 (00002.lmdb) of {origin} did not arrive: no bytes for 2 s"
        reading = Reading(store, [8])
        with slow.opened():
            assert reading.get() == (StoreAccessError, message)
            assert images_of(store, [4]) == [IMAGES[4]]  # other shards still arrive
        wait_for(lambda: sizes_of_partial_files(cache) == [], "the first attempt no longer reads the pipe")
        reading = Reading(store, [8])
        slow.send()
        assert reading.get() == [IMAGES[8]]


def test_workers_read_cached_shards_while_the_origin_hangs(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store, CachedStore(origin, cache) as other:
        assert images_of(store, [0]) == [IMAGES[0]]
        slow = SlowFile(origin / "manifest.bson")
        reading = Reading(other, [0])
        with slow.opened() as descriptor:
            with pickle.loads(pickle.dumps(store)) as worker:  # noqa: S301 - our own
                assert images_of(worker, [0]) == [IMAGES[0]]
            slow.write(descriptor, slow.data)
        assert reading.get() == [IMAGES[0]]


def test_worker_of_open_store_reads_cached_shards_without_origin(origin: Path, cache: Path, tmp_path: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store, [0]) == [IMAGES[0]]
        origin.rename(tmp_path / "away")
        with pickle.loads(pickle.dumps(store)) as worker:  # noqa: S301 - our own
            assert images_of(worker, [0]) == [IMAGES[0]]
            with pytest.raises(StoreAccessError, match=r"00001.lmdb cannot be fetched: .*No such file"):
                worker.read([4])
            kill_fetcher(cache)
            with pytest.raises(StoreNotFoundError, match=f"^{origin} does not exist"):
                worker.read([4])
            (tmp_path / "away").rename(origin)
            assert images_of(worker) == IMAGES


@pytest.mark.parametrize("swapped", [False, True])
def test_damaged_shard_of_the_origin_leaves_other_shards_readable(origin: Path, cache: Path, swapped: bool) -> None:
    damaged = origin / "shards" / "00001.lmdb"
    whole = damaged.read_bytes()
    damaged.write_bytes((origin / "shards" / "00002.lmdb").read_bytes() if swapped else whole[: len(whole) // 2])
    what = f"is not the file that the manifest of {origin} lists" if swapped else "is cut short"
    with CachedStore(origin, cache) as store:
        with pytest.raises(DamagedStoreError, match=f"^{damaged} {what}"):
            store.read([4])
        assert images_of(store, [0, 8]) == [IMAGES[0], IMAGES[8]]
        damaged.write_bytes(whole)
        assert images_of(store) == IMAGES


def test_missing_shard_of_a_replaced_origin_is_an_error_that_names_the_remedy(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store, [0]) == [IMAGES[0]]
        make_shards(origin, (12, 12), base=100)
        missing = "00005.lmdb cannot be fetched: .*No such file"
        with pytest.raises(
            StoreAccessError, match=rf"{missing}.*: if the store was replaced, open it again, with another"
        ):
            store.read([20])


def test_reading_after_the_origin_is_replaced_raises_and_mixes_no_records(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store, [0]) == [IMAGES[0]]
        make_shards(origin, base=100)
        with pytest.raises(DamagedStoreError, match=r"is not the file .*: if the store was replaced, open it again"):
            store.read([4])
        assert images_of(store, [0]) == [IMAGES[0]]
        kill_fetcher(cache)
        with pytest.raises(NotAStoreError, match="is the cache of another store, not of the store now at"):
            store.read([8])
        pickled = pickle.dumps(store)
    wait_until_ended(cache)
    shutil.rmtree(cache)
    with pickle.loads(pickled) as worker, pytest.raises(NotAStoreError, match="has been replaced since"):  # noqa: S301
        worker.read([8])
