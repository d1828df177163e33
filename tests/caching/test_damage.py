"""Damaged files in a cache are fetched again, or raise an error that names the remedy."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader.caching.care import check_cache
from dbloader.caching.folder import read_stats
from dbloader.caching.store import CachedStore
from dbloader.errors import DamagedRecordError
from tests.support.caching import IMAGES, WAIT_S, forks, images_of, wait_until_ended

Fault = Callable[[Path, random.Random], None]


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("default:.*was damaged, so dbloader fetched it again:UserWarning"),
]


def cut(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def zero(file: Path, rng: random.Random) -> None:
    begin = rng.choice([0, file.stat().st_size // 2])
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(bytes(file.stat().st_size - begin))


def exchange(file: Path, rng: random.Random) -> None:
    other = rng.choice([other for other in sorted(file.parent.iterdir()) if other.name[:5] != file.name[:5]])
    data = other.read_bytes()
    with file.open("r+b") as opened:
        opened.write(data)


def flip(file: Path, rng: random.Random) -> None:
    at = rng.randrange(file.stat().st_size)
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))


FAULTS = [cut, zero, exchange, flip]


def flip_in_image(file: Path, index: int) -> None:
    """Flip a bit of an image as a failing disk would, without changing the file's size or modification time."""
    before = file.stat()
    with file.open("r+b") as opened:
        at = opened.read().index(IMAGES[index])
        opened.seek(at + 5)
        opened.write(bytes([IMAGES[index][5] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("fault", FAULTS)
def test_shard_damaged_between_runs_is_fetched_again(origin: Path, cache: Path, fault: Fault) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    file = cache / "shards" / "00001.lmdb"
    whole = file.read_bytes()
    fault(file, random.Random(0))
    with CachedStore(origin, cache) as store:
        message = f"^{file}, in the cache, was damaged, so dbloader fetched it again"
        with pytest.warns(UserWarning, match=message) as found:
            assert images_of(store) == IMAGES
        assert len(found) == 1
        stats = read_stats(cache)
        assert (stats.damaged, stats.fetches) == (1, 1)
    assert file.read_bytes() == whole


def test_changed_shard_needed_by_several_processes_is_fetched_again_once(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    cut(cache / "shards" / "00001.lmdb", random.Random(0))

    def read(_: int, pipe: Any) -> None:
        with CachedStore(origin, cache) as store, warnings.catch_warnings(record=True) as found:
            pipe.send((images_of(store) == IMAGES, len(found)))
            pipe.recv()

    with forks(read, 4) as pipes:
        assert all(pipe.poll(WAIT_S) for pipe in pipes)
        assert sorted(pipe.recv() for pipe in pipes) == [(True, 0)] * 3 + [(True, 1)]
        assert (read_stats(cache).damaged, read_stats(cache).fetches) == (1, 1)


def test_damage_that_only_a_checksum_reveals_raises_with_the_remedy(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
        flip_in_image(cache / "shards" / "00001.lmdb", 5)
        reads: list[Callable[[], Any]] = [lambda: store.read([4, 5]), store.verify, lambda: borrowed(store)]
        message = rf"^record 5 \(5.x\) .*dbloader cache {cache} --verify removes it"
        for read in reads:
            with pytest.raises(DamagedRecordError, match=message):
                read()
    wait_until_ended(cache)
    assert check_cache(cache) == ["00001.lmdb"]
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES


def borrowed(store: CachedStore) -> list[Any]:
    with store.borrow(range(24)) as records:
        return [record.image for record in records]


def test_shard_with_a_new_modification_time_but_the_same_bytes_is_kept(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
        for file in (cache / "shards").iterdir():
            os.utime(file)
        assert images_of(store) == IMAGES
        assert (read_stats(cache).damaged, read_stats(cache).fetches) == (0, 6)


@pytest.mark.parametrize("lost", ["checksums", "index", "manifest.bson", "stats.json"])
def test_other_damaged_files_of_a_cache_are_rebuilt(origin: Path, cache: Path, lost: str) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    file = next(cache.glob(f"{lost}*"))
    file.write_bytes(bytes(file.stat().st_size))  # zeros, as after a power failure
    with CachedStore(origin, cache) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert images_of(store) == IMAGES
        assert store.column("label").tolist() == [index % 3 for index in range(24)]
