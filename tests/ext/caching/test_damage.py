"""Damaged files in a cache are fetched again. DBLOADER_TRIALS is the number of shards damaged in each way."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, create_loader
from dbloader.errors import DamagedRecordError
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.store import CachedStore
from dbloader.records.record import Record
from dbloader.sampling import ShuffleSampler
from tests.support.caching import IMAGES, forks, image_of, images_of, make_shards, wait_until_ended
from tests.support.lmdb_files import tamper_with_records
from tests.support.waiting import WAIT_S, wait_for

Fault = Callable[[Path, random.Random], None]


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("default:.*was damaged, so dbloader fetched it again:UserWarning"),
]
TRIALS = int(os.environ.get("DBLOADER_TRIALS", "2"))


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


def cut_aside(file: Path, rng: random.Random) -> None:
    """Replace a shard with a truncated file, as an interrupted copy does."""
    aside = file.with_suffix(".aside")
    aside.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    aside.replace(file)


FAULTS = [cut, zero, exchange, flip]
# Truncating an open file kills its readers with SIGBUS. No training can survive that, so a truncated copy takes its
# place.
FAULTS_IN_TRAINING = [cut_aside, zero, exchange, flip]


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


@pytest.mark.parametrize("fault", FAULTS)
def test_shard_damaged_while_open_is_fetched_again(origin: Path, cache: Path, fault: Fault) -> None:
    with CachedStore(origin, cache) as store, CachedStore(origin, cache) as other:
        assert images_of(store) == images_of(other) == IMAGES
        for number in range(6):
            fault(cache / "shards" / f"0000{number}.lmdb", random.Random(number))
        with pytest.warns(UserWarning, match="was damaged") as found:
            assert images_of(store) == IMAGES
        assert images_of(other) == IMAGES
        assert (len(found), read_stats(cache).damaged, read_stats(cache).fetches) == (1, 6, 12)


def test_every_way_of_reading_repairs_damage_that_only_a_checksum_reveals(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        digest = store.verify()
        reads: list[Callable[[], Any]] = [
            lambda: images_of(store),
            lambda: store.verify() == digest and IMAGES,
            lambda: borrowed(store),
            lambda: [store[index].image for index in range(24)],
        ]
        for number, read in enumerate(reads):
            flip_in_image(cache / "shards" / "00001.lmdb", 5 + number % 3)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert read() == IMAGES
            assert (read_stats(cache).damaged, len(found)) == (number + 1, number == 0)


def borrowed(store: CachedStore) -> list[bytes]:
    def image(record: Record) -> bytes:
        assert isinstance(record.image, bytes | memoryview)
        return bytes(record.image)

    with store.borrow(range(24)) as records:
        return [*map(image, records)]


@pytest.mark.parametrize("is_open", [False, True])
def test_shard_that_several_processes_find_damaged_is_fetched_again_once(
    origin: Path, cache: Path, is_open: bool
) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
    wait_until_ended(cache)

    def read(_: int, pipe: Any) -> None:
        with CachedStore(origin, cache) as store, warnings.catch_warnings(record=True) as found:
            for _ in range(1 + is_open):
                pipe.send((images_of(store) == IMAGES, len(found)))
                pipe.recv()

    def answers(pipes: list[Any]) -> list[Any]:
        assert all(pipe.poll(WAIT_S) for pipe in pipes)
        return sorted(pipe.recv() for pipe in pipes)

    if not is_open:
        cut(cache / "shards" / "00001.lmdb", random.Random(0))
    with forks(read, 4) as pipes:
        if is_open:
            assert answers(pipes) == [(True, 0)] * 4
            flip_in_image(cache / "shards" / "00001.lmdb", 5)
            for pipe in pipes:
                pipe.send("read again")
        assert answers(pipes) == [(True, 0)] * 3 + [(True, 1)]
        assert (read_stats(cache).damaged, read_stats(cache).fetches) == (1, 1)


def test_damaged_record_in_the_origin_raises_after_a_second_fetch(origin: Path, cache: Path) -> None:
    file = origin / "shards" / "00001.lmdb"
    whole = file.read_bytes()
    tamper_with_records(file, {1: b"no record"})
    with CachedStore(origin, cache) as store:
        message = rf"^record 5 \(5.x\) of {origin} is damaged: .*; {file} has the same damage: the cache has fetched it"
        with pytest.warns(UserWarning, match="was damaged"), pytest.raises(DamagedRecordError, match=message):
            store.read([4, 5])
        with pytest.raises(DamagedRecordError, match=message):
            store.read([5])
        assert images_of(store, [4, 6, 7]) == [IMAGES[4], *IMAGES[6:8]]
        assert (read_stats(cache).fetches, read_stats(cache).damaged) == (2, 1)
    wait_until_ended(cache)
    file.write_bytes(whole)  # restored from a backup
    with CachedStore(origin, cache) as store, pytest.warns(UserWarning, match="was damaged"):
        assert images_of(store) == IMAGES


def test_shard_with_a_new_modification_time_but_the_same_bytes_is_kept(origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
        for file in (cache / "shards").iterdir():
            os.utime(file)
        assert images_of(store) == IMAGES
        assert (read_stats(cache).damaged, read_stats(cache).fetches) == (0, 6)


@pytest.mark.parametrize("lost", ["checksums", "index", "manifest.bson", "stats.json"])
def test_damaged_files_of_a_cache_besides_shards_are_rebuilt(origin: Path, cache: Path, lost: str) -> None:
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    file = next(cache.glob(f"{lost}*"))
    file.write_bytes(bytes(file.stat().st_size))  # zeros, as after a power failure
    with CachedStore(origin, cache) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert images_of(store) == IMAGES
        assert store.column("label").tolist() == [index % 3 for index in range(24)]


SHARDS, EACH = 24, 16
# LMDB can crash if a page changes while LMDB opens the file or reads the page. This sleep replaces decoding, so workers
# spend as small a share of their time in LMDB as in a real training.
DECODING_S = 0.02


def decoded(image: bytes) -> bytes:
    time.sleep(DECODING_S)
    return image


def train(origin: Path, cache: Path, rank: int, stop: Path, pipe: Any) -> None:
    """Train epochs until the file ``stop`` exists, check each sample, and send the number of samples."""
    warnings.filterwarnings("default", message=".*was damaged", category=UserWarning)
    with LMDBDataset(origin, decode=None, transform=decoded, cache=cache) as dataset:
        checked = epoch = 0
        while not stop.exists():
            # Start new workers in each epoch: only a worker that opens a file sees the truncated copy in its place.
            sampler = ShuffleSampler(dataset, 2, rank)
            sampler.set_epoch(epoch)
            loader = create_loader(
                dataset, None, 4, sampler=sampler, transform=None, collate_fn=list, device=None, normalize=None,
                num_workers=2, worker_type="processes",
            )  # fmt: skip
            with loader:
                for image, label in chain.from_iterable(loader):
                    index = int.from_bytes(image[:4], "big")
                    assert (image, label) == (image_of(index), index % 3)
                    checked += 1
            epoch += 1
        pipe.send(checked)
        del loader


@pytest.mark.slow
def test_training_of_two_ranks_survives_damaged_shards(
    tmp_path: Path, cache: Path, record_property: Callable[[str, object], None]
) -> None:
    make_shards(tmp_path / "origin.lmdb", (EACH,) * SHARDS)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "origin.lmdb" / "shards").iterdir()}
    context = multiprocessing.get_context("fork")
    stop, rng = tmp_path / "stop", random.Random(1)
    receiver, sender = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=train, args=(tmp_path / "origin.lmdb", cache, rank, stop, sender)) for rank in range(2)
    ]
    for process in ranks:
        process.start()

    def is_repaired(fetches: int) -> bool:
        assert [process.exitcode for process in ranks] == [None, None]
        return read_stats(cache).fetches == fetches

    try:
        wait_for(lambda: read_stats(cache).fetches == SHARDS, "the first fetches")
        for trial in range(1, TRIALS + 1):
            for fault, name in zip(FAULTS_IN_TRAINING, rng.sample(sorted(whole), 4), strict=True):
                fault(cache / "shards" / name, rng)
            wait_for(lambda count=SHARDS + 4 * trial: is_repaired(count), f"trial {trial} is repaired")
        stop.touch()
        for process in ranks:
            process.join(WAIT_S)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
            process.close()
    wait_until_ended(cache)
    stats = read_stats(cache)
    assert (stats.damaged, stats.fetches) == (4 * TRIALS, SHARDS + 4 * TRIALS)
    assert {path.name: path.read_bytes() for path in (cache / "shards").iterdir()} == whole
    record_property("samples checked", sum(receiver.recv() for _ in ranks))
    receiver.close()
    sender.close()
