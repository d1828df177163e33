"""Resuming in the middle of an epoch: states, what comes after them, and those that are refused."""

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

from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler, OrderedSampler, SeededBatchSampler, ShuffleSampler
from tests.sampling.kinds import (
    LENGTH,
    MUCH,
    PADDED,
    WORLDS,
    blocks,
    global_order,
    interleaved,
    of_each_kind,
    of_each_padded_kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling import ResumableSampler


def shares_of(make: Callable[..., ResumableSampler], world: int, state: dict[str, Any], **options: Any) -> list[Any]:
    shares = []
    for rank in range(world):
        sampler = make(range(LENGTH), world, rank, **options)
        sampler.load_state_dict(state)
        remaining = sampler.remaining
        shares.append(list(sampler))
        assert remaining == len(shares[-1])
    return shares


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


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), max_size=5))
def test_any_chain_of_interruptions_loses_and_repeats_nothing(chain: list[tuple[int, int]]) -> None:
    order = global_order(ShuffleSampler)
    received: list[int] = []
    state = ShuffleSampler(range(LENGTH)).state_after()
    for world, consumed in chain:
        shares = [share[:consumed] for share in shares_of(ShuffleSampler, world, state)]
        received = (received + interleaved(shares))[:LENGTH]  # the rest is padding
        sampler = ShuffleSampler(range(LENGTH), world, 0)
        sampler.load_state_dict(state)
        state = sampler.state_after(len(shares[0]))
        assert received == order[: state["position"]]
    assert received + shares_of(ShuffleSampler, 1, state)[0] == order


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


def test_set_epoch_keeps_the_loaded_position_of_its_epoch_and_warns_of_another() -> None:
    sampler = ShuffleSampler(range(LENGTH))
    sampler.set_epoch(5)
    state = sampler.state_after(4)
    sampler.load_state_dict(state)
    sampler.set_epoch(5)
    assert sampler.remaining == LENGTH - 4 == len(list(sampler))
    for epoch in (6, 0):
        sampler.load_state_dict(state)
        with pytest.warns(UserWarning, match=rf"set_epoch\({epoch}\) leaves out the rest of epoch 5: .* position 4 of"):
            sampler.set_epoch(epoch)
        assert sampler.remaining == LENGTH == len(list(sampler))
    sampler.set_epoch(1)
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
    with pytest.warns(UserWarning, match="leaves out the rest of epoch 1"):
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


@pytest.mark.parametrize("seed", [2**70, -(2**70)])
def test_a_seed_may_be_of_any_size(seed: int) -> None:
    for make in PADDED:
        sampler = make(range(LENGTH), seed=seed)
        begun = [*itertools.islice(sampler, 4)]
        state = sampler.state_after(4)
        resumed = make(range(LENGTH))
        resumed.load_state_dict(state)
        assert [*begun, *resumed] == [*make(range(LENGTH), seed=seed)]


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
