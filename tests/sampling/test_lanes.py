"""Lanes of the block shuffle: each rank reads shards of its own, and the order stays one for all."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader import LMDBDataset, convert, write_store
from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler
from tests.sampling.kinds import Sharded, interleaved
from tests.support.images import plant_photos

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LENGTHS = st.lists(st.integers(0, 60), max_size=12)


def sampler_of(lengths: Sequence[int], lanes: int | None, buffer: int, *ranks: int, seed: int = 0) -> Any:
    return BlockShuffleSampler(Sharded(*lengths), None, buffer, *(ranks or (1, 0)), seed=seed, lanes=lanes)


def shards_of(indices: Sequence[int], lengths: Sequence[int]) -> set[int]:
    return set(np.searchsorted(np.cumsum(lengths), indices, side="right").tolist())


def small_cases() -> Iterator[tuple[int, int, int, int]]:
    for length in [*range(20), 61, 200]:
        for size, buffer, lanes in itertools.product((1, 3, 7, 300), (1, 5), (1, 2, 5, 8, 70)):
            yield length, size, buffer, lanes


def test_all_indices_come_once_for_any_small_length_block_buffer_and_number_of_lanes() -> None:
    for length, size, buffer, lanes in small_cases():
        sampler = BlockShuffleSampler(range(length), size, buffer, 1, 0, lanes=lanes)
        order = list(sampler)
        assert sorted(order) == list(range(length)), (length, size, buffer, lanes)
        places = sampler.order(0, 0).inverse(np.array(order, np.int64))
        assert places.tolist() == list(range(length)), (length, size, buffer, lanes)


@given(LENGTHS, st.integers(1, 40), st.integers(1, 5), st.integers())
def test_each_lane_reads_one_piece_of_the_shards_in_their_order(
    lengths: list[int], lanes: int, buffer: int, seed: int
) -> None:
    order = list(sampler_of(lengths, lanes, buffer, seed=seed))
    length = sum(lengths)
    assert sorted(order) == list(range(length))
    # Without buffers of more than one sample the lanes, one after the other, are the shards in some order.
    blocks = sampler_of(lengths, lanes, buffer, seed=seed).order(seed, 0).blocks
    shuffled = blocks.indices(np.arange(length)).tolist()
    begin = 0
    size = max(1, -(-length // max(1, len(lengths)))) * max(1, buffer // lanes)
    for lane in range(lanes):
        mine = order[lane::lanes]
        piece = shuffled[begin : begin + len(mine)]
        for first in range(0, len(mine), size):
            assert sorted(mine[first : first + size]) == sorted(piece[first : first + size])
        begin += len(mine)
    runs = [shard for shard, _ in itertools.groupby(np.searchsorted(np.cumsum(lengths), shuffled, side="right"))]
    assert len(runs) == len(set(runs)), "each shard is in one piece"


@given(LENGTHS, st.sampled_from([None, 1, 4, 6]), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=4))
@pytest.mark.filterwarnings("ignore:.* ranks do not divide")
def test_any_chain_of_numbers_of_ranks_loses_and_repeats_nothing(
    lengths: list[int], lanes: int | None, chain: list[tuple[int, int]]
) -> None:
    order = list(sampler_of(lengths, lanes, 8))
    received: list[int] = []
    state = sampler_of(lengths, lanes, 8).state_after()
    for world, wanted in chain:
        shares = []
        for rank in range(world):
            sampler = sampler_of(lengths, lanes, 8, world, rank)
            sampler.load_state_dict(state)
            since = sampler.state_after()
            shares.append(list(sampler))
        consumed = min(wanted, len(shares[0]))
        received = (received + interleaved([share[:consumed] for share in shares]))[: len(order)]
        state = sampler.state_after(consumed, since=since)
    assert received == order[: state["position"]]


@pytest.mark.parametrize(("nodes", "local"), [(1, 8), (2, 8), (4, 8), (16, 8), (8, 1), (128, 1)])
def test_all_nodes_together_read_the_data_about_once(nodes: int, local: int) -> None:
    world, lanes = nodes * local, 128
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 400, 1024).tolist()
    order = np.array(list(sampler_of(lengths, lanes, 1)))
    shards = np.searchsorted(np.cumsum(lengths), order, side="right")
    read = 0
    for node in range(nodes):
        ranks = range(node * local, (node + 1) * local)
        mine = np.unique(np.concatenate([shards[rank::world] for rank in ranks]))
        read += len(mine)
    assert 1024 <= read <= 1024 + min(lanes, lanes * (nodes - 1)), "the pieces begin and end in the middle of shards"


# What comes next


@given(LENGTHS, st.sampled_from([None, 1, 4, 6]), st.integers(1, 5), st.integers(0, 10**6), st.sets(st.integers(0, 4)))
@pytest.mark.filterwarnings("ignore:.* ranks do not divide")
def test_the_blocks_ahead_are_those_of_the_samples_that_come(
    lengths: list[int], lanes: int | None, world: int, at: int, chosen: set[int]
) -> None:
    ranks = [rank for rank in range(world) if rank in chosen]
    position = at % (sum(lengths) + 1)
    state = {**sampler_of(lengths, lanes, 3).state_after(), "position": position, "epoch": 2}
    ahead = list(sampler_of(lengths, lanes, 3, world, 0).blocks_ahead(ranks, since=state))
    starts = [begin for begin, _ in ahead]
    assert starts == sorted(set(starts))
    assert starts[:1] in ([], [position])
    for rank in ranks:
        sampler = sampler_of(lengths, lanes, 3, world, rank)
        sampler.load_state_dict(state)
        for place, index in zip(sampler.positions(state), sampler, strict=True):
            entry = bisect_right(starts, place) - 1
            assert shards_of([index], lengths) <= set(ahead[entry][1])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.sampled_from([(1, 1), (6, 1), (6, 2), (6, 6)]))
def test_from_the_beginning_no_other_blocks_are_ahead(lengths: list[int], lanes_and_world: tuple[int, int]) -> None:
    lanes, world = lanes_and_world
    for rank in range(world):
        sampler = sampler_of(lengths, lanes, 1, world, rank)
        ahead = {block for _, blocks in sampler.blocks_ahead() for block in blocks}
        assert ahead == shards_of(list(sampler), lengths)


def test_buffers_of_empty_shards_are_left_out_of_the_blocks_ahead() -> None:
    for seed in range(20):
        ahead = list(sampler_of([9, 0, 0, 5, 0, 0, 2], None, 2, seed=seed).blocks_ahead())
        assert len({begin for begin, _ in ahead}) == len(ahead)


def test_by_default_the_blocks_ahead_are_those_of_this_rank_in_the_next_iteration() -> None:
    sampler = sampler_of([10] * 40, 4, 1, 4, 2)
    sampler.set_epoch(3)
    ahead = list(sampler.blocks_ahead())
    assert [begin for begin, _ in ahead] == list(range(0, 400, 40))
    assert [blocks for _, blocks in ahead] == [[index // 10] for index in list(sampler)[::10]]


def test_a_rank_that_is_not_there_has_no_blocks_ahead() -> None:
    with pytest.raises(OptionError, match=r"^rank must be from 0 to 1, got 2$"):
        list(sampler_of([3], 1, 1, 2, 0).blocks_ahead([2]))


# Options, states and warnings


def test_lanes_must_be_one_or_more() -> None:
    with pytest.raises(OptionError, match=r"^lanes must be at least 1, got 0$"):
        BlockShuffleSampler(range(5), lanes=0)
    with pytest.raises(TypeError, match=r"^lanes must be an int or None, got 2\.0$"):
        BlockShuffleSampler(range(5), lanes=2.0)  # type: ignore[arg-type]


def test_a_state_is_resumed_only_with_its_lanes_and_shards() -> None:
    state = sampler_of([3, 4, 5], 4, 2).state_after(5)
    assert {name: state[name] for name in ("shards", "buffer_blocks", "lanes")} == {
        "shards": 3,
        "buffer_blocks": 2,
        "lanes": 4,
    }
    sampler_of([3, 4, 5], 4, 2).load_state_dict(state)
    for other, message in (
        (sampler_of([3, 4, 5], 6, 2), "must have lanes 6, as this sampler has, .* got 4"),
        (sampler_of([3, 4, 5], None, 2), "also has 'lanes'"),
        (sampler_of([3, 5, 4], 4, 2), "must have shards_crc32 "),
        (BlockShuffleSampler(Sharded(3, 4, 5), 4, 2, 1, 0, lanes=4), "lacks 'block_size'"),
    ):
        with pytest.raises(OptionError, match=message):
            other.load_state_dict(state)


def test_a_state_from_before_there_were_lanes_goes_on() -> None:
    sampler = BlockShuffleSampler(range(21), 4, 2, 1, 0)
    old = {
        "sampler": "BlockShuffleSampler", "length": 21, "block_size": 4, "buffer_blocks": 2,
        "seed": 7, "epoch": 3, "position": 6, "dataset": "0" * 64,
    }  # fmt: skip
    assert set(sampler.state_after()) == set(old) - {"dataset"}
    sampler.load_state_dict(old)
    # The order of the version that wrote the state.
    assert list(sampler) == [9, 12, 3, 4, 7, 6, 0, 1, 5, 2, 20, 18, 17, 16, 19]


def test_numbers_of_ranks_that_do_not_divide_the_lanes_are_warned_about_with_the_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    message = (
        r"^24 ranks do not divide 128 lanes, so 3 nodes of 8 together read the data 3 x in an epoch: use a number of "
        r"ranks that divides 128; or begin the training with lanes=24, or another multiple of all its numbers of ranks$"
    )
    with pytest.warns(UserWarning, match=message):
        iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=0, lanes=128))
    iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=1, lanes=128))  # only rank 0 says so
    iter(BlockShuffleSampler(range(1000), num_replicas=64, rank=0, lanes=128))
    iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=0))
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with pytest.warns(UserWarning, match=r"so 24 nodes of 1 \(set LOCAL_WORLD_SIZE to the ranks of a node\) together"):
        iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=0, lanes=128))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "24")
    iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=0, lanes=128))  # one node reads the data once anyway
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(OptionError, match=r"^the environment variable LOCAL_WORLD_SIZE must be a number, got 'many'$"):
        iter(BlockShuffleSampler(range(1000), num_replicas=24, rank=0, lanes=128))


@pytest.mark.parametrize("local", [1, 2, 4, 8])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("lanes", [1, 6, 8, 12, 32])
def test_the_factor_is_what_the_nodes_read(nodes: int, local: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    world = nodes * local
    read = sum(
        len(
            {
                position % lanes
                for rank in range(node * local, (node + 1) * local)
                for position in range(rank, 10_000, world)
            }
        )
        for node in range(nodes)
    )
    sampler = BlockShuffleSampler(range(1000), num_replicas=world, rank=0, lanes=lanes)
    if read == lanes:
        iter(sampler)
    else:
        with pytest.warns(UserWarning, match=f"read the data {read / lanes:g} x in an epoch"):
            iter(sampler)


def test_the_blocks_of_a_sharded_store_are_its_shards(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 11)
    with ThreadPoolExecutor(1) as executor:
        convert(tmp_path / "images", tmp_path / "a.lmdb", shards=3, executor=executor)
    convert(tmp_path / "images", tmp_path / "one.lmdb")
    dataset = LMDBDataset(tmp_path / "a.lmdb")
    lengths = list(dataset.shard_lengths or ())
    assert (len(lengths), sum(lengths)) == (3, 11)
    sampler = BlockShuffleSampler(dataset, None, 1, 1, 0)
    assert sampler.shard_lengths == lengths
    order = list(sampler)
    for _, (shard,) in sampler.blocks_ahead():
        assert shards_of(order[: lengths[shard]], lengths) == {shard}
        del order[: lengths[shard]]
    assert BlockShuffleSampler(dataset, 5).shard_lengths is None
    whole = BlockShuffleSampler(LMDBDataset(tmp_path / "one.lmdb"))
    assert (whole.shard_lengths, whole.block_size) == (None, 256)


@pytest.mark.parametrize("options", [{}, {"block_size": 1}, {"lanes": 4}], ids=str)
def test_a_subclass_with_more_samples_than_records_has_no_shards(tmp_path: Path, options: dict[str, Any]) -> None:
    class Twice(LMDBDataset):
        def __len__(self) -> int:
            return 2 * super().__len__()

    plant_photos(tmp_path / "images", 20)
    with ThreadPoolExecutor(1) as executor:
        convert(tmp_path / "images", tmp_path / "a.lmdb", shards=3, executor=executor)
    sampler = BlockShuffleSampler(Twice(tmp_path / "a.lmdb"), num_replicas=1, rank=0, **options)
    assert sampler.shard_lengths is None
    assert sorted(sampler) == list(range(40))


@pytest.mark.parametrize(
    ("labels", "is_warned"),
    [
        ([number // 40 for number in range(640)], True),  # in the order of the classes
        ([number // 320 for number in range(640)], True),
        ([number * 7 % 16 for number in range(640)], False),
        ([int(number % 90 == 0) for number in range(640)], False),  # nearly all of one class
        ([0] * 640, False),
        ([number // 10 for number in range(640)], False),  # runs that are shorter than a block
    ],
)
def test_blocks_of_one_class_are_warned_about(labels: list[int], is_warned: bool, tmp_path: Path) -> None:
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
