"""What all samplers promise: shares, epochs, states, and resuming in the middle of an epoch."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dbloader.errors import OptionError
from dbloader.sampling import (
    BlockShuffleSampler,
    OrderedSampler,
    SeededBatchSampler,
    ShuffleSampler,
    WeightedSampler,
)
from dbloader.sampling.base import BLOCK
from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling import (
        ResumableSampler,
    )

LENGTH = 11
MUCH = 2**50  # of which only what is asked for is ever computed


def weighted(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return WeightedSampler([1 + index % 3 for index in range(LENGTH)], len(dataset), *ranks, **options)


def blocks(dataset: range, *ranks: int, **options: Any) -> ResumableSampler:
    return BlockShuffleSampler(dataset, 2, 3, *ranks, **options)


# Each makes a sampler of any length for (dataset, num_replicas, rank).
PADDED: list[Callable[..., ResumableSampler]] = [ShuffleSampler, weighted, blocks]
KINDS = [*PADDED, OrderedSampler]
WORLDS = (1, 2, 3)

of_each_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
of_each_padded_kind = pytest.mark.parametrize("make", PADDED, ids=lambda make: make.__name__)


def global_order(make: Callable[..., ResumableSampler], length: int = LENGTH, epoch: int = 0) -> list[int]:
    sampler = make(range(length), 1, 0)
    sampler.set_epoch(epoch)
    return list(sampler)


def interleaved(shares: list[list[int]]) -> list[int]:
    """Return the samples of all ranks in their global order, the last of which some may lack."""
    turns = itertools.zip_longest(*shares, fillvalue=None)
    return [index for turn in turns for index in turn if index is not None]


def shares_of(make: Callable[..., ResumableSampler], world: int, state: dict[str, Any], **options: Any) -> list[Any]:
    shares = []
    for rank in range(world):
        sampler = make(range(LENGTH), world, rank, **options)
        sampler.load_state_dict(state)
        remaining = sampler.remaining
        shares.append(list(sampler))
        assert remaining == len(shares[-1])
    return shares


# Shares


@of_each_padded_kind
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 64])
def test_ranks_share_pad_and_drop_as_those_of_a_distributed_sampler(
    make: Callable[..., ResumableSampler], length: int, drop_last: bool
) -> None:
    order = global_order(make, length)
    for world in (1, 2, 3, 7, 8, 65):
        for rank in range(world):
            dataset: Any = range(length)
            reference = DistributedSampler[int](dataset, world, rank, shuffle=False, drop_last=drop_last)
            sampler = make(range(length), world, rank, drop_last=drop_last)
            indices = list(sampler)
            assert indices == [order[position] for position in reference]
            assert {type(index) for index in indices} <= {int}
            assert len(sampler) == len(reference) == sampler.remaining
            assert sampler.population in (length, LENGTH)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_empty_dataset_has_an_empty_order_as_with_a_distributed_sampler(drop_last: bool) -> None:
    for world in WORLDS:
        for sampler in (
            ShuffleSampler([], world, 0, drop_last=drop_last),
            BlockShuffleSampler([], num_replicas=world, rank=0, drop_last=drop_last),
            OrderedSampler([], world, 0),
        ):
            assert list(sampler) == []
            assert len(sampler) == sampler.remaining == 0
            assert sampler.state_after()["position"] == 0


@given(st.integers(0, 300), st.integers(1, 50))
def test_the_ordered_sampler_has_each_sample_on_one_rank_in_order(length: int, world: int) -> None:
    samplers = [OrderedSampler(range(length), world, rank) for rank in range(world)]
    shares = [list(sampler) for sampler in samplers]
    assert interleaved(shares) == list(range(length))
    assert [len(sampler) for sampler in samplers] == [len(share) for share in shares]
    assert len(shares[0]) - len(shares[-1]) <= 1


@of_each_kind
@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK + 5])
def test_an_order_made_in_several_blocks_is_the_same(make: Callable[..., ResumableSampler], length: int) -> None:
    whole = global_order(make, length)
    assert len(whole) == length
    shares = [list(make(range(length), 3, rank)) for rank in range(3)]
    assert interleaved(shares)[:length] == whole


def test_the_shuffle_is_the_permutation() -> None:
    sampler = ShuffleSampler(range(20_000), seed=4)
    sampler.set_epoch(7)
    assert list(sampler) == Permutation(20_000, 4, 7)[:].tolist()


def test_the_orders_never_change() -> None:
    assert [global_order(make, 8, epoch=1) for make in PADDED] == [
        [6, 4, 7, 1, 3, 2, 0, 5],
        [10, 4, 5, 1, 8, 9, 9, 2],
        [3, 6, 1, 0, 7, 2, 4, 5],
    ]
    large = (ShuffleSampler(range(MUCH)), BlockShuffleSampler(range(MUCH)))
    assert [list(itertools.islice(sampler, 3)) for sampler in large] == [
        [1096580550970646, 229917934713715, 863242579229535],
        [135502013880914, 129354613981546, 630532148197785],
    ]


# Epochs


@of_each_padded_kind
def test_each_epoch_and_seed_has_its_own_order(make: Callable[..., ResumableSampler]) -> None:
    orders = set()
    for seed in range(5):
        sampler = make(range(100), seed=seed)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            order = list(sampler)
            assert list(sampler) == order
            orders.add(tuple(order))
    assert len(orders) == 25


@of_each_kind
def test_no_iterator_changes_with_the_epoch_or_a_state(make: Callable[..., ResumableSampler]) -> None:
    length = BLOCK + 1
    expected = global_order(make, length)
    sampler = make(range(length))
    begun, fresh = iter(sampler), iter(sampler)
    received = list(itertools.islice(begun, 10))
    sampler.load_state_dict({**sampler.state_after(), "seed": 9, "epoch": 3, "position": 5})
    sampler.set_epoch(4)
    assert received + list(begun) == expected
    assert list(fresh) == expected


@pytest.mark.parametrize("epoch", [-1, -(2**70)])
def test_a_negative_epoch_is_refused(epoch: int) -> None:
    with pytest.raises(OptionError, match=f"epoch must be at least 0, got {epoch}"):
        ShuffleSampler(range(3)).set_epoch(epoch)


# Going on from the middle


@of_each_kind
@pytest.mark.parametrize("after", WORLDS)
@pytest.mark.parametrize("before", WORLDS)
def test_any_number_of_ranks_goes_on_with_what_would_have_come(
    make: Callable[..., ResumableSampler], before: int, after: int
) -> None:
    order = global_order(make, epoch=2)
    samplers = [make(range(LENGTH), before, rank) for rank in range(before)]
    for sampler in samplers:
        sampler.set_epoch(2)
    shares = [list(sampler) for sampler in samplers]
    for consumed in range(len(shares[-1]) + 1):
        states = [sampler.state_after(consumed) for sampler in samplers]
        assert all(state == states[0] for state in states)
        resumed = shares_of(make, after, states[0])
        position = min(consumed * before, LENGTH)
        rest = interleaved(resumed)
        assert rest[: LENGTH - position] == order[position:]
        if make is OrderedSampler:
            assert len(rest) == LENGTH - position
        else:
            assert len({len(share) for share in resumed}) == 1
            padding = rest[LENGTH - position :]
            assert padding == order[: len(padding)]
            assert len(padding) < after
        if before == after:
            assert resumed == [share[consumed:] for share in shares]


@of_each_padded_kind
@pytest.mark.parametrize("after", WORLDS)
@pytest.mark.parametrize("before", WORLDS)
def test_going_on_drops_only_what_the_ranks_cannot_share(
    make: Callable[..., ResumableSampler], before: int, after: int
) -> None:
    order = global_order(make)
    sampler = make(range(LENGTH), before, 0, drop_last=True)
    share = list(sampler)
    for consumed in range(len(share) + 1):
        resumed = shares_of(make, after, sampler.state_after(consumed), drop_last=True)
        rest = order[consumed * before :]
        assert interleaved(resumed) == rest[: len(rest) // after * after]
        if before == after:
            assert resumed[0] == share[consumed:]


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), max_size=5))
def test_any_chain_of_interruptions_loses_and_repeats_nothing(length: int, chain: list[tuple[int, int]]) -> None:
    order = global_order(ShuffleSampler, length)
    state = ShuffleSampler(range(length)).state_after()
    received: list[int] = []
    for world, consumed in chain:
        samplers = [ShuffleSampler(range(length), world, rank) for rank in range(world)]
        for sampler in samplers:
            sampler.load_state_dict(state)
        consumed = min(consumed, samplers[0].remaining)
        received += interleaved([list(itertools.islice(sampler, consumed)) for sampler in samplers])
        state = samplers[0].state_after(consumed)
        received = received[:length]  # the rest is padding
        assert received == order[: state["position"]]
    last = ShuffleSampler(range(length))
    last.load_state_dict(state)
    assert received + list(last) == order


@pytest.mark.parametrize("make", [ShuffleSampler, OrderedSampler, blocks, BlockShuffleSampler])
@pytest.mark.parametrize("position", [10_000_000, MUCH // 2 + 1, MUCH - 1])
def test_only_what_is_asked_for_is_computed(make: Callable[..., ResumableSampler], position: int) -> None:
    sampler = make(range(MUCH))
    sampler.load_state_dict({**sampler.state_after(), "position": position})
    received = list(itertools.islice(sampler, 3))
    state = sampler.state_after(len(received))
    assert state["position"] == position + len(received)
    assert len(set(received)) == len(received) == min(3, MUCH - position)
    assert len(sampler) == MUCH


@of_each_kind
def test_a_sampler_has_no_state_and_its_iterator_says_what_it_has_given(make: Callable[..., ResumableSampler]) -> None:
    """torchdata trusts whatever has a state_dict and a load_state_dict."""
    sampler = make(range(LENGTH))
    sampler.set_epoch(3)
    assert not hasattr(sampler, "state_dict")
    assert not hasattr(SeededBatchSampler(sampler, 2), "state_dict")
    order = global_order(make, epoch=3)
    for count in range(LENGTH + 1):
        iterator: Any = iter(sampler)
        assert list(itertools.islice(iterator, count)) == order[:count]
        other = make(range(LENGTH), seed=5) if make is not OrderedSampler else make(range(LENGTH))
        again: Any = iter(other)
        again.load_state_dict(iterator.state_dict())
        assert list(again) == order[count:]
        assert (other.epoch, other.seed, other.remaining) == (0, sampler.seed, LENGTH)
        other.set_epoch(3)
        assert list(other) == order


@of_each_kind
def test_the_iteration_after_the_one_that_went_on_is_whole(make: Callable[..., ResumableSampler]) -> None:
    sampler = make(range(LENGTH))
    order = list(sampler)
    sampler.load_state_dict(sampler.state_after(4))
    assert sampler.remaining == LENGTH - 4
    assert len(sampler) == LENGTH
    assert [list(sampler), list(sampler)] == [order[4:], order]


def test_choosing_the_epoch_that_was_resumed_keeps_the_position_and_another_does_not() -> None:
    sampler = ShuffleSampler(range(LENGTH))
    sampler.set_epoch(5)
    state = sampler.state_after(4)
    for epoch, remaining in ((5, LENGTH - 4), (6, LENGTH), (0, LENGTH)):
        sampler.load_state_dict(state)
        sampler.set_epoch(epoch)
        assert sampler.remaining == remaining == len(list(sampler))
    sampler.set_epoch(0)
    assert sampler.remaining == LENGTH


def test_a_state_counts_from_where_the_iteration_began() -> None:
    sampler = ShuffleSampler(range(30), 2, 0)
    sampler.set_epoch(1)
    assert sampler.state_after(3)["position"] == 6
    sampler.load_state_dict(sampler.state_after(3))
    assert sampler.state_after()["position"] == 6
    assert sampler.state_after(2)["position"] == 10
    next(iter(sampler))
    assert sampler.state_after(2)["position"] == 10  # of the one that was begun, not of the next
    iter(sampler)
    assert sampler.state_after(2)["position"] == 4
    sampler.load_state_dict({**sampler.state_after(), "position": 12})
    assert sampler.state_after(2)["position"] == 16
    since = sampler.state_after()
    sampler.set_epoch(2)
    assert sampler.state_after(2) == {**sampler.state_after(), "epoch": 2, "position": 4}
    assert sampler.state_after(2, since=since)["position"] == 16


@of_each_kind
def test_a_state_survives_json_and_torch(make: Callable[..., ResumableSampler]) -> None:
    sampler = make(range(LENGTH))
    state = sampler.state_after(4)
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    sampler.load_state_dict(torch.load(file, weights_only=True))
    assert list(sampler) == global_order(make)[4:]


@of_each_kind
def test_a_pickled_sampler_goes_on_alike(make: Callable[..., ResumableSampler]) -> None:
    sampler = make(range(LENGTH), 2, 1)
    sampler.set_epoch(3)
    sampler.load_state_dict(sampler.state_after(2))
    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - of our own making
    assert again.state_after() == sampler.state_after()
    assert repr(again) == repr(sampler)
    assert list(again) == list(sampler)


# States that are refused


def test_more_than_there_is_cannot_have_been_consumed() -> None:
    sampler = ShuffleSampler(range(10), 4, 1)
    for consumed in (-1, 4):
        with pytest.raises(OptionError, match=f"consumed must be 0 to 3, the samples of rank 1, got {consumed}"):
            sampler.state_after(consumed)
    with pytest.raises(TypeError, match=r"consumed must be an int, got 2\.0"):
        sampler.state_after(2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 12}, "the state must have length 11, as this sampler has, for the order to go on, got 12"),
        ({"sampler": "OrderedSampler"}, "must have sampler BlockShuffleSampler, as this sampler has, .* got Ordered"),
        ({"block_size": 3}, "must have block_size 2, .* got 3"),
        ({"buffer_blocks": 4}, "must have buffer_blocks 3, .* got 4"),
        ({"position": 12}, "^'position' in the state must be 0 to 11, got 12$"),
        ({"position": -1}, "^'position' in the state must be 0 to 11, got -1$"),
        ({"epoch": -1}, "^'epoch' in the state must be at least 0, got -1$"),
        ({"model": 1, "lr": 3}, "^a state must be the dict that .* gave, got one that also has 'lr', 'model'$"),
    ],
)
def test_a_state_whose_order_cannot_go_on_is_refused(changes: dict[str, Any], message: str) -> None:
    sampler = blocks(range(LENGTH))
    sampler.set_epoch(3)
    state = {**sampler.state_after(5), **changes}
    for use in (sampler.load_state_dict, lambda since: sampler.state_after(since=since)):
        with pytest.raises(OptionError, match=message):
            use(state)
    assert sampler.state_after() == {**sampler.state_after(), "epoch": 3, "position": 0}


def test_what_is_no_state_is_refused() -> None:
    sampler = ShuffleSampler(range(LENGTH))
    wanted = r"^a state must be the dict that state_dict\(\) of a loader with this ShuffleSampler gave, got "
    with pytest.raises(OptionError, match=wanted + "one that lacks 'epoch', 'length', 'position', 'sampler', 'seed'$"):
        sampler.load_state_dict({})
    state = sampler.state_after()
    del state["position"]
    with pytest.raises(OptionError, match=wanted + "one that lacks 'position'$"):
        sampler.load_state_dict(state)
    for thing in ("x", None, 3, [("epoch", 1)]):
        with pytest.raises(TypeError, match=wanted + re.escape(repr(thing))):
            sampler.load_state_dict(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["seed", "epoch", "position"])
@pytest.mark.parametrize("value", ["4", 1.5, True, None])
def test_what_is_no_int_in_a_state_is_told_by_its_name(name: str, value: Any) -> None:
    sampler = ShuffleSampler(range(LENGTH))
    with pytest.raises(TypeError, match=f"^'{name}' in the state must be an int, got {value!r}$"):
        sampler.load_state_dict({**sampler.state_after(), name: value})


def test_a_state_of_numpys_ints_is_one() -> None:
    sampler = ShuffleSampler(range(LENGTH))
    sampler.load_state_dict({**sampler.state_after(), "epoch": np.int64(3), "position": np.int32(4)})
    assert (sampler.epoch, sampler.remaining) == (3, LENGTH - 4)


# Options


def test_a_sampler_describes_itself() -> None:
    sampler = ShuffleSampler(range(100), 4, 1, seed=3, drop_last=True)
    sampler.set_epoch(2)
    told = "ShuffleSampler(100 samples, num_replicas=4, rank=1, seed=3, epoch=2, drop_last=True)"
    assert repr(sampler) == told
    assert repr(blocks(range(9))).startswith("BlockShuffleSampler(9 samples, block_size=2, buffer_blocks=3, num_")


def test_options_of_another_type_are_refused() -> None:
    choices: list[dict[str, Any]] = [{"seed": 1.5}, {"rank": 0, "num_replicas": 2.0}, {"num_replicas": 2, "rank": "0"}]
    for options in choices:
        name, value = [*options.items()][-1]
        with pytest.raises(TypeError, match=f"^{name} must be an int, got {re.escape(repr(value))}$"):
            ShuffleSampler(range(5), **options)
    with pytest.raises(TypeError, match=r"epoch must be an int, got 1\.0"):
        ShuffleSampler(range(5)).set_epoch(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ShuffleSampler, OrderedSampler, BlockShuffleSampler])
@pytest.mark.parametrize("thing", [5, -1, "x", b"abc", None])
def test_what_has_no_length_or_is_a_text_is_no_dataset(kind: Any, thing: Any) -> None:
    with pytest.raises(
        TypeError, match=f"dataset must be a dataset, or anything else that has a length, got {thing!r}"
    ):
        kind(thing)


@pytest.mark.parametrize("value", ["no", 0, None])
def test_drop_last_is_a_bool(value: Any) -> None:
    for make in PADDED:
        with pytest.raises(TypeError, match=f"^drop_last must be True or False, got {value!r}$"):
            make(range(LENGTH), drop_last=value)
    with pytest.raises(TypeError, match=f"^drop_last must be True or False, got {value!r}$"):
        SeededBatchSampler(ShuffleSampler(range(LENGTH)), 2, value)


@pytest.mark.parametrize("seed", [2**70, -(2**70)])
def test_a_seed_may_be_of_any_size(seed: int) -> None:
    for make in (ShuffleSampler, weighted, blocks):
        sampler = make(range(LENGTH), seed=seed)
        begun = [*itertools.islice(sampler, 4)]
        state = sampler.state_after(4)
        resumed = make(range(LENGTH))
        resumed.load_state_dict(state)
        assert [*begun, *resumed] == [*make(range(LENGTH), seed=seed)]
