"""Caches of shards: their content, readers and size, and the places that they refuse."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, MongoDataset, copy_store
from dbloader.errors import NotAStoreError, OptionError, PlaceError, StoreAccessError, StoreFullError
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.policy import Need
from dbloader.ext.caching.store import CachedStore
from dbloader.stores.open import open_store
from tests.support.caching import (
    IMAGES,
    fetcher_of,
    forks,
    image_of,
    images_of,
    make_shards,
    shards_in,
    wait_until_ended,
)
from tests.support.children import from_child
from tests.support.images import as_nobody
from tests.support.leaks import has_ended
from tests.support.mongo import Mongod
from tests.support.waiting import WAIT_S

# Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def size_of_shard(origin: Path) -> int:
    return max(path.stat().st_size for path in (origin / "shards").iterdir())


def test_constructor_creates_no_files(tmp_path: Path, cache: Path) -> None:
    CachedStore(tmp_path / "none.lmdb", cache)
    assert list(tmp_path.iterdir()) == []


def test_showing_a_cached_dataset_in_a_notebook_fetches_no_shard(origin: Path, cache: Path) -> None:
    with LMDBDataset(origin, cache=cache) as dataset:
        page = dataset._repr_html_() or ""
        assert "<th>Records</th><td>24</td>" in page
        assert "No pictures, because" in page
        assert "<figure>" not in page
        assert shards_in(cache) == []


def test_reading_record_fetches_its_shard(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert (len(store), store.column("label")[:4].tolist(), store.name(5)) == (24, [0, 1, 2, 0], "5.x")
        assert shards_in(cache) == []
        assert images_of(store, [23, 8, 9]) == [IMAGES[23], IMAGES[8], IMAGES[9]]
        assert shards_in(cache) == ["00002.lmdb", "00005.lmdb"]
        stats = read_stats(cache)
        assert (stats.fetches, stats.removed, stats.nbytes) == (2, 0, stats.fetched_bytes)
        assert store.verify() == LMDBDataset(origin, decode=None).content_digest
        pickled = pickle.dumps(store)
        assert len(pickled) < 1000
    wait_until_ended(cache)
    index = next(cache.glob("index*"))
    number = index.stat().st_ino
    with pickle.loads(pickled) as store:  # noqa: S301 - our own
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    assert read_stats(cache).fetches == 0  # all shards were already in the cache
    assert index.stat().st_ino == number


def test_processes_share_cache_and_fetch_each_shard_once(origin: Path, cache: Path) -> None:
    def read(number: int, pipe: Any) -> None:
        with CachedStore(origin, cache) as store:
            pipe.send(images_of(store, [(index + 6 * number) % 24 for index in range(24)]))
            pipe.recv()

    with forks(read, 4) as pipes:
        for number, pipe in enumerate(pipes):
            assert pipe.poll(WAIT_S)
            assert pipe.recv() == [IMAGES[(index + 6 * number) % 24] for index in range(24)]
        assert read_stats(cache).fetches == 6


def test_store_in_one_file_is_cached_in_shards(tmp_path: Path, origin: Path, cache: Path) -> None:
    copy_store(origin, tmp_path / "one.lmdb")
    with CachedStore(tmp_path / "one.lmdb", cache) as store:
        assert images_of(store) == IMAGES
        assert store.shard_lengths == [24]
        assert (store.manifest.classes, store.manifest.digest) == (("a", "b", "c"), store.verify())
        assert list(store.events()) == []
        assert read_stats(cache).nbytes == sum(path.stat().st_size for path in (cache / "shards").iterdir())


def test_cache_stays_below_its_limit_and_keeps_the_latest_shards(origin: Path, cache: Path) -> None:
    limit = 2 * size_of_shard(origin)
    with CachedStore(origin, cache, max_bytes=limit) as store:
        for first in range(0, 24, 4):
            assert images_of(store, [first]) == IMAGES[first : first + 1]
            assert sum(path.stat().st_size for path in (cache / "shards").iterdir()) <= limit
        assert shards_in(cache) == ["00004.lmdb", "00005.lmdb"]
        assert images_of(store, list(range(0, 24, 4)) * 2) == IMAGES[::4] * 2  # a batch larger than the cache
        assert sum(path.stat().st_size for path in (cache / "shards").iterdir()) <= limit


def test_long_order_of_shards_reaches_the_fetcher_despite_a_default_timeout_for_sockets(
    origin: Path, cache: Path
) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(WAIT_S)
    try:
        with CachedStore(origin, cache) as store:
            store.expect([Need(number % 6, number, number) for number in range(200_000)], check=False)
            assert images_of(store, [0]) == [IMAGES[0]]
    finally:
        socket.setdefaulttimeout(before)


def test_limit_below_largest_shard_is_refused(origin: Path, cache: Path) -> None:
    least = size_of_shard(origin)
    with pytest.raises(OptionError, match=f"^cache_bytes must be at least {least}, the size of the largest shard"):
        LMDBDataset(origin, cache=cache, cache_bytes=least - 1)
    assert len(LMDBDataset(origin, decode=None, cache=cache, cache_bytes=least)) == 24


def test_cache_in_use_refuses_a_different_limit(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache, max_bytes=10**6) as store, CachedStore(origin, cache) as other:
        len(store)
        with pytest.raises(OptionError, match=r"is in use with cache_bytes=1000000: all .* the same number, got None$"):
            len(other)
        assert images_of(store) == IMAGES


def test_full_disk_raises_but_cached_shards_stay_readable(origin: Path, small_disk: Path) -> None:
    make_shards(origin, (4, 100))
    (small_disk / "full").write_bytes(bytes(shutil.disk_usage(small_disk).free - 500_000))
    with CachedStore(origin, small_disk / "cache") as store:
        assert images_of(store, [0]) == [image_of(0)]
        with pytest.raises(StoreFullError, match=r"no room is left for .*00001.lmdb: .* by cache_bytes$"):
            store.read([50])
        assert images_of(store, [1]) == [image_of(1)]
    wait_until_ended(small_disk / "cache")


def test_limit_of_file_sizes_raises_but_cached_shards_stay_readable(origin: Path, tmp_path: Path) -> None:
    make_shards(origin, (4, 100))

    def read() -> list[Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))  # the fetcher inherits this limit
        with CachedStore(origin, tmp_path / "cache") as store:
            assert images_of(store, [0]) == [image_of(0)]
            with pytest.raises(StoreFullError, match=r"00001.lmdb would become larger .* \(ulimit -f\), or choose ano"):
                store.read([50])
            return images_of(store, [1])

    assert from_child(read) == [image_of(1)]
    wait_until_ended(tmp_path / "cache")


def link_to(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


@pytest.mark.parametrize("is_cache", [False, True])
@pytest.mark.parametrize(
    "cache_of",
    [lambda origin: origin, lambda origin: origin / "shards" / "cache", lambda origin: origin.parent, link_to],
    ids=["origin", "inside", "around", "link"],
)
def test_cache_at_its_origin_is_refused_and_left_unchanged(
    origin: Path, cache: Path, cache_of: Callable[[Path], Path], is_cache: bool
) -> None:
    if is_cache:
        with CachedStore(origin, cache) as store:
            store.read([0])
        wait_until_ended(cache)
        origin = cache
    place = cache_of(origin)
    before = sorted(origin.parent.rglob("*"))
    message = f"^cache {place} and its origin {origin} must be separate folders$"
    with CachedStore(origin, place) as store, pytest.raises(OptionError, match=message):
        len(store)
    assert sorted(origin.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "message"),
    [("precious", "is not a cache, and not empty"), ("precious/file", "is a file, but a cache is a folder")],
)
def test_folder_that_is_not_a_cache_is_refused_and_left_unchanged(origin: Path, place: str, message: str) -> None:
    (origin.parent / "precious").mkdir()
    (origin.parent / "precious" / "file").write_bytes(b"precious")
    before = sorted(origin.parent.rglob("*"))
    with CachedStore(origin, origin.parent / place) as store, pytest.raises(NotAStoreError, match=message):
        len(store)
    assert sorted(origin.parent.rglob("*")) == before


def test_leftovers_of_a_deleted_cache_do_not_block_the_next_run(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        store.read([0, 4])
    wait_until_ended(cache)
    for name in ("cache.json", "manifest.bson", *(path.name for path in cache.glob("index-*"))):
        (cache / name).unlink()
    (cache / "stats.json.0123abcd").touch()
    (cache / "partial" / "00003.lmdb").write_bytes(b"x")
    (cache / "shards" / "00001.lmdb").write_bytes(b"x")
    with CachedStore(origin, cache) as store:
        assert images_of(store, [0]) == [IMAGES[0]]
        with pytest.warns(UserWarning, match="00001.lmdb, in the cache, was damaged, so dbloader fetched it again"):
            assert images_of(store) == IMAGES


@pytest.mark.parametrize("name", ["shards/00000.tar", "partial/results.csv", "manifest.bson", "shards2/00000.lmdb"])
def test_folder_of_other_files_is_not_taken_for_a_deleted_cache(origin: Path, cache: Path, name: str) -> None:
    with CachedStore(origin, cache) as store:
        store.read([0])
    wait_until_ended(cache)
    for path in (cache / "cache.json", cache / "manifest.bson", *cache.glob("index-*")):
        path.unlink()
    (cache / name).parent.mkdir(exist_ok=True)
    (cache / name).write_bytes(b"precious")
    with pytest.raises(NotAStoreError, match="is not a cache, and not empty"):
        len(CachedStore(origin, cache))
    assert (cache / name).read_bytes() == b"precious"


def test_fetcher_of_a_deleted_cache_leaves_the_next_cache_alone(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as old:
        old.read([0])
        pid = fetcher_of(cache)
        assert pid is not None
        shutil.rmtree(cache)
        new = CachedStore(origin, cache)
        assert images_of(new, [4]) == [IMAGES[4]]
    assert has_ended(pid, WAIT_S)
    with new, CachedStore(origin, cache) as another:
        assert images_of(another) == IMAGES
        assert read_stats(cache).readers == 2


def test_cache_of_another_user_is_refused_with_a_remedy(open_path: Path, origin: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can act as another user")
    cache = open_path / "cache"
    with CachedStore(origin, cache) as store:
        store.read([0])  # the fetcher runs
        with as_nobody(), pytest.raises(StoreAccessError, match=r"belongs to another user, .*: use your own folder$"):
            len(CachedStore(origin, cache))
    wait_until_ended(cache)
    for mode in (0o755, 0o700):
        cache.chmod(mode)
        with as_nobody(), pytest.raises(StoreAccessError, match=r"belongs to another user, .*: use your own folder$"):
            len(CachedStore(origin, cache))


def test_open_store_with_a_cache_fetches_shards(origin: Path, cache: Path) -> None:
    with open_store(origin, cache=cache) as store:
        assert store.downloads
        with open_store(origin) as direct:
            assert [store[5].name, store[0].label] == [direct[5].name, direct[0].label]
    assert shards_in(cache)
    with pytest.raises(OptionError, match="cache_bytes must be at least 1, got 0"):
        open_store(origin, cache=cache, cache_bytes=0)
    with pytest.raises(OptionError, match=r"cache_bytes needs a cache \(cache=FOLDER\), got 5"):
        open_store(origin, cache_bytes=5)


def test_invalid_options_are_refused(origin: Path, cache: Path) -> None:
    with pytest.raises(OptionError, match=r"cache_bytes needs a cache \(cache=FOLDER\), got 5"):
        LMDBDataset(origin, cache_bytes=5)
    with pytest.raises(OptionError, match="cache_bytes must be at least 1, got 0"):
        CachedStore(origin, cache, max_bytes=0)
    for wrong in ("mongodb://user:secret@host/a.b", 5):
        with pytest.raises(OptionError, match="cache must be the path of a folder on this machine"):
            CachedStore(origin, wrong)  # type: ignore[arg-type]
    with pytest.raises(PlaceError, match="ftp:// is not a place"):
        CachedStore("ftp://host/a", cache)


def test_cache_of_another_store_is_refused(origin: Path, cache: Path, tmp_path: Path) -> None:
    with CachedStore(origin, cache) as store:
        store.read([0])
        make_shards(tmp_path / "other.lmdb", base=100)
        message = (
            rf"^{cache} is the cache of another store, not of the store now at .*other.lmdb: remove the folder, or name"
        )
        with CachedStore(tmp_path / "other.lmdb", cache) as other, pytest.raises(NotAStoreError, match=message):
            len(other)
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    with CachedStore(tmp_path / "other.lmdb", cache) as other, pytest.raises(NotAStoreError, match=message):
        len(other)


def test_store_in_mongodb_is_cached_in_shards(origin: Path, cache: Path, mongod_with_users: Mongod) -> None:
    place = mongod_with_users.place("dbloader_users")
    copy_store(origin, place)
    with MongoDataset(place, decode=None, cache=cache, query={"label": 1}) as dataset:
        assert [dataset[position] for position in (0, 7)] == [(IMAGES[1], 1), (IMAGES[22], 1)]
        with CachedStore(place, cache) as store:
            assert store.verify() == dataset.manifest.digest
    wait_until_ended(cache)
    assert read_stats(cache).fetches == 1
    assert "s3cret" in place
    assert not [file for file in cache.rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()]
    mongod_with_users.drop("dbloader_users")


def test_cache_of_a_replaced_store_is_refused_by_a_new_dataset(origin: Path, cache: Path, mongo_uri: str) -> None:
    copy_store(origin, mongo_uri)
    message = r"is the cache of another store, not of the store now at mongodb://.*: remove the folder, or name"
    with MongoDataset(mongo_uri, decode=None, cache=cache) as dataset:
        assert dataset[0] == (IMAGES[0], 0)
        make_shards(origin, base=1000)
        copy_store(origin, mongo_uri, overwrite=True)
        assert dataset[5] == (IMAGES[5], 2)
        with pytest.raises(NotAStoreError, match=message):
            MongoDataset(mongo_uri, cache=cache)
