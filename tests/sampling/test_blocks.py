"""BlockShuffleSampler reads whole blocks in random order, divides them into lanes, and lists the next blocks."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader import LMDBDataset, convert, write_store
from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler
from tests.sampling.kinds import Sharded
from tests.support.images import plant_photos

LENGTHS = st.lists(st.integers(0, 60), max_size=12)


def order(length: int, block_size: int, buffer_blocks: int, seed: int = 0, epoch: int = 0) -> list[int]:
    sampler = BlockShuffleSampler(range(length), block_size, buffer_blocks, 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def sampler_of(lengths: Sequence[int], lanes: int | None, buffer: int, *ranks: int, seed: int = 0) -> Any:
    return BlockShuffleSampler(Sharded(*lengths), None, buffer, *(ranks or (1, 0)), seed=seed, lanes=lanes)


def touched(indices: list[int], block_size: int) -> list[int]:
    """Return the blocks in the order in which they are first used."""
    return list(dict.fromkeys(index // block_size for index in indices))


def shards_of(indices: Sequence[int], lengths: Sequence[int]) -> set[int]:
    return set(np.searchsorted(np.cumsum(lengths), indices, side="right").tolist())


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 20), st.integers())
def test_order_consists_of_buffers_of_whole_blocks(length: int, block_size: int, buffer_blocks: int, seed: int) -> None:
    indices = order(length, block_size, buffer_blocks, seed)
    assert sorted(indices) == list(range(length))
    blocks = touched(indices, block_size)
    for begin in range(0, len(blocks), buffer_blocks):
        buffer = blocks[begin : begin + buffer_blocks]
        expected = [index for block in buffer for index in range(block * block_size, (block + 1) * block_size)]
        expected = sorted(index for index in expected if index < length)
        assert sorted(indices[: len(expected)]) == expected
        del indices[: len(expected)]


def test_any_combination_of_sizes_gives_a_permutation_with_an_inverse() -> None:
    sizes = itertools.product([*range(20), 61, 200], (1, 3, 7, 300), (1, 5, 10**9), (None, 1, 2, 5, 8, 70))
    for length, size, buffer, lanes in sizes:
        sampler = BlockShuffleSampler(range(length), size, buffer, 1, 0, lanes=lanes)
        indices = list(sampler)
        assert sorted(indices) == list(range(length)), (length, size, buffer, lanes)
        positions = sampler.order(0, 0).inverse(np.array(indices, np.int64))
        assert positions.tolist() == list(range(length)), (length, size, buffer, lanes)


@given(LENGTHS, st.integers(1, 40), st.integers(1, 5), st.integers())
def test_each_lane_reads_one_contiguous_piece_of_the_shuffled_shards(
    lengths: list[int], lanes: int, buffer: int, seed: int
) -> None:
    sampler = sampler_of(lengths, lanes, buffer, seed=seed)
    indices, length = list(sampler), sum(lengths)
    assert sorted(indices) == list(range(length))
    shuffled = sampler.order(seed, 0).blocks.indices(np.arange(length)).tolist()
    begin, size = 0, max(1, -(-length // max(1, len(lengths)))) * max(1, buffer // lanes)
    for lane in range(lanes):
        mine = indices[lane::lanes]
        piece = shuffled[begin : begin + len(mine)]
        for first in range(0, len(mine), size):
            assert sorted(mine[first : first + size]) == sorted(piece[first : first + size])
        begin += len(mine)
    runs = [shard for shard, _ in itertools.groupby(np.searchsorted(np.cumsum(lengths), shuffled, side="right"))]
    assert len(runs) == len(set(runs)), "each shard must be contiguous"


@pytest.mark.parametrize(("nodes", "local"), [(1, 8), (4, 8), (16, 8), (128, 1)])
def test_nodes_together_read_each_shard_about_once(nodes: int, local: int) -> None:
    lengths = np.random.default_rng(3).integers(1, 400, 1024).tolist()
    indices = np.array(list(sampler_of(lengths, 128, 1)))
    shards, read = np.searchsorted(np.cumsum(lengths), indices, side="right"), 0
    for node in range(nodes):
        ranks = range(node * local, (node + 1) * local)
        read += len(np.unique(np.concatenate([shards[rank :: nodes * local] for rank in ranks])))
    assert 1024 <= read <= 1024 + min(128, 128 * (nodes - 1)), (
        "only a shard at the border of two lanes may be read twice"
    )


@given(LENGTHS, st.sampled_from([None, 1, 4, 6]), st.integers(1, 5), st.integers(0, 10**6), st.sets(st.integers(0, 4)))
def test_blocks_ahead_contain_the_following_samples(
    lengths: list[int], lanes: int | None, world: int, at: int, chosen: set[int]
) -> None:
    ranks = [rank for rank in range(world) if rank in chosen]
    position = at % (sum(lengths) + 1)
    state = {**sampler_of(lengths, lanes, 3).state_after(), "position": position, "epoch": 2}
    ahead = list(sampler_of(lengths, lanes, 3, world, 0).blocks_ahead(ranks, since=state))
    starts = [begin for begin, _ in ahead]
    assert starts == sorted(set(starts))
    assert starts[:1] in ([], [position], [sum(lengths)])  # a rank may have only padding
    for rank in ranks:
        sampler = sampler_of(lengths, lanes, 3, world, rank)
        sampler.load_state_dict(state)
        for place, index in zip(sampler.positions(state), sampler, strict=True):
            entry = bisect_right(starts, place) - 1
            assert shards_of([index], lengths) <= set(ahead[entry][1])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.sampled_from([(1, 1), (6, 1), (6, 2), (6, 6)]))
def test_blocks_ahead_contain_only_blocks_of_the_rank(lengths: list[int], both: tuple[int, int]) -> None:
    lanes, world = both
    for rank in range(world):
        sampler = sampler_of(lengths, lanes, 1, world, rank)
        sampler.set_epoch(3)
        ahead = list(sampler.blocks_ahead())
        read = {block for _, blocks in ahead for block in blocks if lengths[block]}
        assert read == shards_of(list(sampler), lengths)
        assert len({begin for begin, _ in ahead}) == len(ahead)


def test_state_is_resumed_only_with_the_same_lanes_and_shards() -> None:
    state = sampler_of([3, 4, 5], 4, 2).state_after(5)
    assert (state["shards"], state["buffer_blocks"], state["lanes"]) == (3, 2, 4)
    sampler_of([3, 4, 5], 4, 2).load_state_dict(state)
    for other, message in (
        (sampler_of([3, 4, 5], 6, 2), "must have lanes 6, as this sampler has, .* got 4"),
        (sampler_of([3, 4, 5], None, 2), "also has 'lanes'"),
        (sampler_of([3, 5, 4], 4, 2), "must have shards_crc32 "),
        (BlockShuffleSampler(Sharded(3, 4, 5), 4, 2, 1, 0, lanes=4), "lacks 'block_size'"),
    ):
        with pytest.raises(OptionError, match=message):
            other.load_state_dict(state)


def test_blocks_of_a_sharded_store_are_its_shards(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 11)
    with ThreadPoolExecutor(1) as executor:
        convert(tmp_path / "images", tmp_path / "a.lmdb", shards=3, executor=executor)
    dataset = LMDBDataset(tmp_path / "a.lmdb")
    lengths = list(dataset.shard_lengths or ())
    assert (len(lengths), sum(lengths)) == (3, 11)
    sampler = BlockShuffleSampler(dataset, None, 1, 1, 0)
    assert sampler.shard_lengths == lengths
    indices = list(sampler)
    for _, (shard,) in sampler.blocks_ahead():
        assert shards_of(indices[: lengths[shard]], lengths) == {shard}
        del indices[: lengths[shard]]
    assert BlockShuffleSampler(dataset, 5).shard_lengths is None


@pytest.mark.parametrize("options", [{}, {"block_size": 1}, {"lanes": 4}], ids=str)
def test_subclass_with_more_samples_than_records_has_no_shards(options: dict[str, Any]) -> None:
    class Twice(Sharded):
        def __len__(self) -> int:
            return 2 * super().__len__()

    sampler = BlockShuffleSampler(Twice(7, 7, 6), num_replicas=1, rank=0, **options)
    assert sampler.shard_lengths is None
    assert sorted(sampler) == list(range(40))


@pytest.mark.parametrize(
    ("labels", "is_warned"),
    [
        ([number // 40 for number in range(640)], True),  # the records are sorted by class
        ([number * 7 % 16 for number in range(640)], False),
        ([int(number % 90 == 0) for number in range(640)], False),  # nearly all records have one class
        ([number // 10 for number in range(640)], False),  # the runs of a class are shorter than a block
    ],
)
def test_blocks_of_one_class_cause_a_warning(labels: list[int], is_warned: bool, tmp_path: Path) -> None:
    write_store(((b"x", label) for label in labels), tmp_path / "a.lmdb")
    with LMDBDataset(tmp_path / "a.lmdb", decode=None) as dataset, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BlockShuffleSampler(dataset, 20)
    message = (
        "most blocks of 20 records have records of one class only, so batches of a block shuffle have few classes: "
        "store the records in a random order (dbloader convert --shuffle-seed)"
    )
    assert [str(warning.message) for warning in caught] == [message] * is_warned
    assert all(warning.filename == __file__ for warning in caught)
