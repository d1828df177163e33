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
from tests.ext.sampling.kinds import Sharded
from tests.sampling.kinds import interleaved
from tests.support.images import plant_photos

LENGTHS = st.lists(st.integers(0, 60), max_size=12)


def order(length: int, block_size: int, buffer_blocks: int, seed: int = 0, epoch: int = 0) -> list[int]:
    sampler = BlockShuffleSampler(range(length), block_size, buffer_blocks, 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def sampler_of(
    lengths: Sequence[int], lanes: int | None, buffer: int, *ranks: int, seed: int = 0, stick: bool = False
) -> Any:
    options: Any = {"seed": seed, "lanes": lanes, "stick_to_shard": stick}
    return BlockShuffleSampler(Sharded(*lengths), None, buffer, *(ranks or (1, 0)), **options)


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


@given(LENGTHS, st.integers(1, 40), st.integers(1, 200), st.integers(), st.booleans())
def test_each_lane_reads_parts_of_shards_in_growing_buffers(
    lengths: list[int], lanes: int, buffer: int, seed: int, stick: bool
) -> None:
    sampler = sampler_of(lengths, lanes, buffer, seed=seed, stick=stick)
    indices, length = list(sampler), sum(lengths)
    assert sorted(indices) == list(range(length))
    sequence = sampler.order(seed, 0).blocks.indices(np.arange(length))
    shards = np.searchsorted(np.cumsum(lengths), sequence, side="right").tolist()
    shard = max(1, -(-length // max(1, len(lengths))))
    begin, parts = 0, 0
    for lane in range(lanes):
        mine = indices[lane::lanes]
        part = sequence[begin : begin + len(mine)].tolist()
        runs = [number for number, _ in itertools.groupby(shards[begin : begin + len(mine)])]
        assert len(runs) == len(set(runs)), "each shard must be contiguous in a lane"
        parts += len(runs)
        first, size = 0, -(-shard // 2)
        while first < len(mine):
            assert sorted(mine[first : first + size]) == sorted(part[first : first + size])
            first += size
            size = min(first, shard * max(1, buffer // lanes))
        begin += len(mine)
    assert parts < len(lengths) + lanes, "only a shard at the border of two lanes may be in both"


@pytest.mark.parametrize("lanes", [1, 8, 64])
def test_first_buffer_of_each_lane_needs_one_shard(lanes: int) -> None:
    lengths = np.random.default_rng(3).integers(200, 300, 640).tolist()
    for world in (1, lanes):
        for rank in {0, world // 2, world - 1}:
            sampler = sampler_of(lengths, lanes, 32 * lanes, world, rank)
            (_, first), (begin, _), *_ = sampler.blocks_ahead()
            assert len(first) == lanes // world
            assert begin == 125 * lanes


# A state that was saved before buffers grew, and what that version read after it, in this epoch and in the next one.
EARLIER: dict[str, Any] = {
    "sampler": "BlockShuffleSampler", "length": 20, "shards": 5, "shards_crc32": 709515014, "buffer_blocks": 4,
    "lanes": 2, "seed": 7, "epoch": 3, "position": 6,
}  # fmt: skip
EARLIER_REST = [
    [1, 10, 5, 11, 2, 13, 4, 17, 0, 16, 9, 18, 8, 19],
    [19, 7, 14, 2, 13, 1, 16, 11, 17, 8, 18, 10, 12, 0, 15, 9, 6, 4, 5, 3],
]


def test_state_without_growing_buffers_continues_in_its_order() -> None:
    sampler = sampler_of([4, 1, 7, 0, 8], 2, 4)
    fresh = list(sampler)
    for epoch, expected in enumerate(EARLIER_REST, 3):
        sampler.load_state_dict({**EARLIER, "epoch": epoch, "position": 6 if epoch == 3 else 0})
        assert sampler.next_state() == {**EARLIER, "epoch": epoch, "position": 6 if epoch == 3 else 0}
        assert list(sampler) == expected
    sampler.set_epoch(3)
    assert list(sampler)[6:] == EARLIER_REST[0]
    shares = [sampler_of([4, 1, 7, 0, 8], 2, 4, 3, rank) for rank in range(3)]
    for share in shares:
        share.load_state_dict(EARLIER)
    assert interleaved([list(share) for share in shares])[:14] == EARLIER_REST[0]
    state = sampler_of([4, 1, 7, 0, 8], 2, 4).state_after()
    assert state["version"] == 2
    sampler.load_state_dict(state)
    assert list(sampler) == fresh
    with pytest.raises(OptionError, match=r"must have version 2, like this sampler, .* got 3"):
        sampler.load_state_dict({**state, "version": 3})
    with pytest.raises(OptionError, match=r"got one that lacks 'stick_to_shard', 'version'$"):
        sampler_of([4, 1, 7, 0, 8], 2, 4, stick=True).load_state_dict(EARLIER)
    with pytest.raises(OptionError, match=r"also has 'stick_to_shard'$"):
        sampler.load_state_dict({**state, "stick_to_shard": True})
    assert list(sampler) == fresh


SHAPES = [[9], [1, 1], [0, 50, 0, 1, 7], [31, 64, 10, 90, 47, 5, 80, 33], [3] * 130, [40] * 64]


@pytest.mark.parametrize("lengths", SHAPES, ids=lambda lengths: f"{len(lengths)}-shards-{sum(lengths)}")
@pytest.mark.parametrize("world", [1, 2, 3, 8, 63, 64])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_stick_to_their_shards_and_read_each_sample_once(lengths: list[int], world: int, drop_last: bool) -> None:
    length, mine = sum(lengths), []
    for lanes in (world, 2 * world):
        read: dict[int, list[list[int]]] = {}
        for rank in range(world):
            options: Any = {"lanes": lanes, "stick_to_shard": True, "drop_last": drop_last}
            sampler = BlockShuffleSampler(Sharded(*lengths), None, 4, world, rank, **options)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                read.setdefault(epoch, []).append(list(sampler))
        for shares in read.values():
            samples = [index for share in shares for index in share]
            assert len({len(share) for share in shares}) == 1
            assert len(samples) == (length // world if drop_last else -(-length // world)) * world
            once = interleaved(shares)[:length]
            assert sorted(once) == list(range(length)) if not drop_last else len(set(samples)) == len(samples)
        if length >= lanes and not drop_last:
            for rank in range(world):
                mine = [sorted(set(shares[rank])) for shares in read.values()]
                assert mine[0] == mine[1] == mine[2]


def test_lanes_stick_to_other_shards_with_another_seed_and_change_their_order() -> None:
    sampler, other = (sampler_of([10] * 24, 4, 4, seed=seed, stick=True) for seed in (0, 1))
    firsts = set()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        lane = list(sampler)[::4]
        firsts.add(lane[0] // 10)
    assert firsts == shards_of(lane, [10] * 24), "each shard of a lane is the first one in some epochs"
    assert len(firsts) == 6
    assert set(lane) != set(list(other)[::4])


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


@given(
    LENGTHS, st.sampled_from([None, 1, 4, 6]), st.integers(1, 5), st.integers(0, 10**6), st.sets(st.integers(0, 4)),
    st.booleans(),
)  # fmt: skip
def test_blocks_ahead_contain_the_following_samples(
    lengths: list[int], lanes: int | None, world: int, at: int, chosen: set[int], stick: bool
) -> None:
    stick = stick and lanes is not None
    ranks = [rank for rank in range(world) if rank in chosen]
    position = at % (sum(lengths) + 1)
    state = {**sampler_of(lengths, lanes, 3, stick=stick).state_after(), "position": position, "epoch": 2}
    ahead = list(sampler_of(lengths, lanes, 3, world, 0, stick=stick).blocks_ahead(ranks, since=state))
    starts = [begin for begin, _ in ahead]
    assert starts == sorted(set(starts))
    assert starts[:1] in ([], [position], [sum(lengths)])  # a rank may have only padding
    for rank in ranks:
        sampler = sampler_of(lengths, lanes, 3, world, rank, stick=stick)
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
        (sampler_of([3, 4, 5], 6, 2), "must have lanes 6, like this sampler, .* got 4"),
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
