"""Loaders announce their order to the cache, which fetches each shard once, before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, PrefetchLoader, create_loader
from dbloader.errors import OptionError
from dbloader.ext.caching import client
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.policy import CachePolicy, needs_of
from dbloader.sampling import BlockShuffleSampler, OrderedSampler, ResumableSampler, ShuffleSampler, WeightedSampler
from tests.support.caching import SlowFile, make_shards, shards_in, wait_until_ended
from tests.support.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning", "ignore:most shards have records of one class only"
)
SHARDS, EACH = 24, 16
RECORDS = SHARDS * EACH


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("origin") / "store.lmdb"
    make_shards(place, (EACH,) * SHARDS, size=400)
    return place


def size_of(origin: Path, shards: int) -> int:
    return shards * (origin / "shards" / "00000.lmdb").stat().st_size


def opened(origin: Path, cache: Path, cache_bytes: int | None = None) -> LMDBDataset:
    return LMDBDataset(origin, decode=None, cache=cache, cache_bytes=cache_bytes)


def created(dataset: LMDBDataset, sampler: ResumableSampler, **engine: Any) -> PrefetchLoader[Any]:
    options: dict[str, Any] = {"transform": None, "collate_fn": list, "device": None, "normalize": None}
    options |= {"num_workers": 2, "worker_type": "processes", **engine}
    return create_loader(dataset, None, 4, sampler=sampler, **options)


threaded = partial(created, worker_type="threads", prefetch_factor=2)


def wrapped(dataset: LMDBDataset, sampler: ResumableSampler) -> PrefetchLoader[Any]:
    return PrefetchLoader(
        DataLoader(
            dataset, 4, sampler=sampler, num_workers=2, collate_fn=list, timeout=WAIT_S,
            multiprocessing_context="fork",
        )
    )  # fmt: skip


LOADERS = [threaded, wrapped, created]


def index_of(sample: tuple[bytes, int]) -> int:
    """Return the index of a record after checking its bytes and label."""
    image, label = sample
    index = int.from_bytes(image[:4], "big")
    assert (image, label) == (index.to_bytes(4, "big") * 100, index % 3)
    return index


def epoch(loader: PrefetchLoader[Any]) -> list[int]:
    return [index_of(sample) for batch in loader for sample in batch]


@pytest.mark.slow
@pytest.mark.parametrize("loader_of", LOADERS)
def test_epoch_over_small_cache_fetches_every_shard_once(
    origin: Path, cache: Path, loader_of: Callable[[LMDBDataset, ResumableSampler], PrefetchLoader[Any]]
) -> None:
    limit = size_of(origin, SHARDS // 3)
    with (
        opened(origin, cache, limit) as dataset,
        loader_of(dataset, BlockShuffleSampler(dataset, None, 3, seed=5)) as loader,
    ):
        for number in range(3):
            before = read_stats(cache).fetches
            assert sorted(epoch(loader)) == list(range(RECORDS))
            fetched = read_stats(cache).fetches - before
            # shards that the previous epoch left in the cache are reused
            assert SHARDS * 2 // 3 <= fetched <= SHARDS
            assert number or fetched == SHARDS
            assert len(shards_in(cache)) <= SHARDS // 3


def test_shards_are_fetched_ahead_of_reading(origin: Path, cache: Path) -> None:
    with opened(origin, cache) as dataset, wrapped(dataset, OrderedSampler(dataset)) as loader:
        next(iter(loader))
        wait_for(lambda: len(shards_in(cache)) == SHARDS, "all shards")


def test_full_shuffle_over_small_cache_is_refused(origin: Path, cache: Path) -> None:
    most = size_of(origin, SHARDS)
    with opened(origin, cache, most - 1) as dataset:
        message = (
            rf"^cache_bytes={most - 1} is too small for this order, which reads several shards at the same time, "
            rf"{most} bytes in all: give at least {most}, or shuffle fewer shards at a time "
            r"\(BlockShuffleSampler, buffer_blocks\)$"
        )
        loader = wrapped(dataset, ShuffleSampler(dataset))
        for _ in range(2):
            with pytest.raises(OptionError, match=message):
                next(iter(loader))
        loader.close()
        with wrapped(dataset, BlockShuffleSampler(dataset, None, 3)) as loader:
            next(iter(loader))
    wait_until_ended(cache)
    with opened(origin, cache, most) as dataset, threaded(dataset, ShuffleSampler(dataset)) as loader:
        assert sorted(epoch(loader)) == list(range(RECORDS))


@pytest.mark.parametrize("loader_of", LOADERS)
def test_cache_without_room_for_batches_of_all_workers_is_refused(
    origin: Path, cache: Path, loader_of: Callable[[LMDBDataset, ResumableSampler], PrefetchLoader[Any]]
) -> None:
    one, two = size_of(origin, 1), size_of(origin, 2)
    with opened(origin, cache, one) as dataset:
        # two workers may be up to four batches apart, and so in two shards
        loader = loader_of(dataset, OrderedSampler(dataset))
        with pytest.raises(
            OptionError, match=rf"={one} is too small for this order, .* at the same time, {two} bytes in all"
        ):
            next(iter(loader))
        loader.close()


def test_later_epoch_is_not_refused_for_needing_more_room(tmp_path: Path, cache: Path) -> None:
    place, lengths = tmp_path / "uneven.lmdb", [4, 4, 4, 4, 40, 40]
    make_shards(place, lengths, size=400)
    sampler = BlockShuffleSampler(Records(lengths), None, 2)
    policy = CachePolicy([path.stat().st_size for path in sorted((place / "shards").iterdir())])
    least = []
    for number in range(2):
        policy.expect("rank", needs_of(sampler, {**sampler.state_after(0), "epoch": number}, lengths, margin=16))
        least.append(policy.least_bytes())
    assert least[0] < least[1]
    with (
        opened(place, cache, least[0]) as dataset,
        wrapped(dataset, BlockShuffleSampler(dataset, None, 2)) as loader,
    ):
        assert [sorted(epoch(loader)) for _ in least] == [list(range(sum(lengths)))] * 2
    wait_until_ended(cache)
    with opened(place, cache, least[0] - 1) as dataset:
        loader = wrapped(dataset, BlockShuffleSampler(dataset, None, 2))
        with pytest.raises(OptionError, match=f"at the same time, {least[0]} bytes in all"):
            next(iter(loader))
        loader.close()


@pytest.mark.slow
def test_resumed_epoch_fetches_only_remaining_shards(origin: Path, cache: Path, tmp_path: Path) -> None:
    limit = size_of(origin, SHARDS // 3)
    with (
        opened(origin, cache, limit) as dataset,
        wrapped(dataset, BlockShuffleSampler(dataset, None, 3, seed=2)) as loader,
    ):
        batches = iter(loader)
        seen = [index_of(sample) for _ in range(RECORDS // 8) for sample in next(batches)]
        state = loader.state_dict()
    wait_until_ended(cache)
    with opened(origin, tmp_path / "new", limit) as dataset:
        loader = wrapped(dataset, BlockShuffleSampler(dataset, None, 3, seed=2))
        loader.load_state_dict(state)
        with loader:
            left = epoch(loader)
            assert sorted(seen + left) == list(range(RECORDS))
            assert read_stats(tmp_path / "new").fetches == len({index // EACH for index in left}) == SHARDS // 2
    wait_until_ended(tmp_path / "new")


@pytest.mark.slow
def test_two_machines_with_lanes_fetch_each_shard_once(origin: Path, tmp_path: Path) -> None:
    read: list[int] = []
    for rank in range(2):
        cache = tmp_path / str(rank)
        with (
            opened(origin, cache, size_of(origin, SHARDS // 3)) as dataset,
            wrapped(dataset, BlockShuffleSampler(dataset, None, 2, 2, rank, seed=3, lanes=2)) as loader,
        ):
            read += epoch(loader)
            assert read_stats(cache).fetches == SHARDS // 2
        wait_until_ended(cache)
    assert sorted(read) == list(range(RECORDS))


@pytest.mark.slow
def test_machines_that_stick_to_their_shards_fetch_only_in_the_first_epoch(origin: Path, tmp_path: Path) -> None:
    fetched = 0
    read: list[list[int]] = [[], [], []]
    for rank in range(3):
        cache = tmp_path / str(rank)
        with opened(origin, cache) as dataset:
            sampler = BlockShuffleSampler(dataset, None, 6, 3, rank, seed=3, lanes=6, stick_to_shard=True)
            with wrapped(dataset, sampler) as loader:
                for number in range(3):
                    read[number] += epoch(loader)
                    assert read_stats(cache).fetches == SHARDS // 3
                    fetched += read_stats(cache).fetches if number == 2 else 0
        wait_until_ended(cache)
    assert fetched == SHARDS
    assert all(sorted(indices) == list(range(RECORDS)) for indices in read)
    assert read[0] != read[1] != read[2]


@pytest.mark.slow
@pytest.mark.parametrize("loader_of", LOADERS)
def test_training_starts_when_the_first_shard_is_there_and_shows_the_wait(
    tmp_path: Path,
    cache: Path,
    loader_of: Callable[[LMDBDataset, ResumableSampler], PrefetchLoader[Any]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "store.lmdb"
    make_shards(place, (EACH,) * 8, size=400)
    with opened(place, cache) as dataset:
        sampler = BlockShuffleSampler(dataset, None, 8, lanes=1)
        _, (first,) = next(sampler.blocks_ahead())
        paths = sorted((place / "shards").iterdir())
        slow = [SlowFile(path) for path in paths]
        monkeypatch.setattr(client, "_SHOW_S", 0.0)
        with ThreadPoolExecutor(len(slow)) as senders, loader_of(dataset, sampler) as loader:
            batches = iter(loader)
            coming = senders.submit(next, batches)
            shown = ""

            def is_shown() -> bool:
                nonlocal shown
                shown += capfd.readouterr().err
                return f"waiting for shard {first} ({paths[first].name}) of {place}; cached: 0 bytes" in shown

            wait_for(is_shown, "a line on stderr")
            slow[first].send()
            begun = [index_of(sample) for sample in coming.result(WAIT_S)]
            assert shards_in(cache) == [paths[first].name]
            sent = [senders.submit(other.send) for other in slow if other is not slow[first]]
            rest = [index_of(sample) for batch in batches for sample in batch]
            assert [future.result(WAIT_S) for future in sent] == [None] * 7
        assert sorted(begun + rest) == list(range(8 * EACH))


class Records:
    """The attributes of a dataset that a sampler uses."""

    def __init__(self, shard_lengths: list[int]) -> None:
        self.shard_lengths = shard_lengths

    def __len__(self) -> int:
        return sum(self.shard_lengths)


LENGTHS = [7, 0, 20, 1, 13, 40, 9]


def sampler_of(kind: str, of: Any, world: int, rank: int, *, drop_last: bool) -> ResumableSampler:
    if kind == "ordered":
        return OrderedSampler(of, num_replicas=world, rank=rank)
    ranks: Any = {"num_replicas": world, "rank": rank, "drop_last": drop_last}
    if kind == "weighted":
        return WeightedSampler(np.arange(len(of)) + 1.0, **ranks)
    if kind in ("shuffled", "chosen"):
        return ShuffleSampler(of, **ranks)
    lanes = 3 if kind == "lanes" else None
    return BlockShuffleSampler(of, 5 if kind == "equal blocks" else None, lanes or 2, lanes=lanes, **ranks)


@pytest.mark.parametrize("position", [0, 31])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["ordered", "shuffled", "weighted", "blocks", "lanes", "equal blocks", "chosen"])
def test_needs_cover_the_position_of_each_sample(kind: str, drop_last: bool, world: int, position: int) -> None:
    records = Records(LENGTHS)
    chosen = np.arange(0, len(records), 2) if kind == "chosen" else None
    of: Any = range(len(chosen)) if chosen is not None else records
    for rank in range(world):
        sampler = sampler_of(kind, of, world, rank, drop_last=drop_last)
        since = {**sampler.state_after(0), "position": position}
        needs = needs_of(sampler, since, LENGTHS, chosen, margin=0)
        sampler.load_state_dict(since)
        shards = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
        read = [int(shards[index if chosen is None else chosen[index]]) for index in sampler]
        assert {need.shard for need in needs} >= set(read)
        for at, shard in enumerate(read):
            assert any(need.shard == shard and need.first <= at <= need.last for need in needs), (at, shard, needs)
        if kind not in ("blocks", "lanes", "equal blocks"):
            firsts = {shard: read.index(shard) for shard in set(read)}
            assert {need.shard: need.first for need in reversed(needs)} == firsts


def test_needed_shards_of_ten_million_samples_are_computed_in_seconds() -> None:
    records = Records([10_000] * 1_000)
    sampler = ShuffleSampler(records)
    needs = needs_of(sampler, sampler.state_after(0), records.shard_lengths)
    assert len(needs) == 1_000
    assert max(need.first for need in needs) < 100_000


@pytest.mark.parametrize("lanes", [None, 4])
@pytest.mark.parametrize("margin", [0, 16, 50])
def test_worker_that_lags_within_the_margin_causes_no_second_fetch(lanes: int | None, margin: int) -> None:
    records = Records([EACH] * SHARDS)
    sampler = BlockShuffleSampler(records, None, 2 if lanes is None else lanes, lanes=lanes)
    policy = CachePolicy([1] * SHARDS)
    policy.expect("rank", needs_of(sampler, sampler.state_after(0), records.shard_lengths, margin=margin))
    policy.limit = policy.least_bytes()
    assert policy.limit < SHARDS
    present: set[int] = set()
    fetches = 0
    order = [index // EACH for index in sampler]
    for at in range(len(order) + margin):
        # one worker is at ``at``, another lags by ``margin``
        for shard in [*order[at : at + 1], *order[max(0, at - margin) :][:1]]:
            policy.ask("rank", shard)
            while (step := policy.next(present, [] if shard in present else [shard])) is not None:
                present = (present - set(step.remove)) | {step.shard}
                fetches += 1
                assert fetches <= SHARDS
            assert shard in present
    assert fetches == SHARDS
