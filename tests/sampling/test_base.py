"""All samplers share samples among ranks, give each epoch its order, and resume in the middle of an epoch."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dbloader.errors import OptionError
from dbloader.sampling import OrderedSampler, ResumableSampler, SeededBatchSampler, ShuffleSampler
from dbloader.sampling.base import BLOCK
from tests.sampling.kinds import HUGE, LENGTH, WORLDS, global_order, interleaved


# The tests of samplers around the core import the tests of these fixtures, and have their own fixtures.
@pytest.fixture(params=[ShuffleSampler, OrderedSampler])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[ShuffleSampler])
def make_padded(request: pytest.FixtureRequest) -> Any:
    """A sampler that repeats the first samples of its order until all ranks have equally many."""
    return request.param


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 64])
def test_each_rank_gets_the_positions_of_distributed_sampler(
    make_padded: Callable[..., ResumableSampler], length: int, drop_last: bool
) -> None:
    order = global_order(make_padded, length)
    for world in (1, 2, 3, 7, 8, 65):
        for rank in range(world):
            dataset: Any = range(length)
            reference = DistributedSampler[int](dataset, world, rank, shuffle=False, drop_last=drop_last)
            sampler = make_padded(range(length), world, rank, drop_last=drop_last)
            indices = list(sampler)
            assert indices == [order[position] for position in reference]
            assert {type(index) for index in indices} <= {int}
            assert len(sampler) == len(reference) == sampler.remaining
            assert sampler.population in (length, LENGTH)


def test_empty_dataset_has_empty_shares(make: Callable[..., ResumableSampler]) -> None:
    for world in WORLDS:
        sampler = make(range(0), world, 0)
        assert list(sampler) == []
        assert len(sampler) == sampler.remaining == sampler.state_after()["position"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("length", [BLOCK, BLOCK + 5])
def test_order_does_not_depend_on_how_many_indices_are_computed_at_once(
    make: Callable[..., ResumableSampler], length: int
) -> None:
    whole = global_order(make, length)
    assert len(whole) == length
    assert interleaved([list(make(range(length), 3, rank)) for rank in range(3)])[:length] == whole


def test_orders_never_change() -> None:
    assert global_order(ShuffleSampler, 8, epoch=1) == [6, 4, 7, 1, 3, 2, 0, 5]
    large = ShuffleSampler(range(HUGE))
    assert [*itertools.islice(large, 3)] == [1096580550970646, 229917934713715, 863242579229535]


def test_each_epoch_and_seed_has_its_own_order(make_padded: Callable[..., ResumableSampler]) -> None:
    orders = set()
    for seed in range(5):
        sampler = make_padded(range(100), seed=seed)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            order = list(sampler)
            assert list(sampler) == order
            orders.add(tuple(order))
    assert len(orders) == 25


def test_running_iterator_ignores_epochs_and_states_that_are_set_later(make: Callable[..., ResumableSampler]) -> None:
    length = BLOCK + 1
    expected = global_order(make, length)
    sampler = make(range(length))
    begun, fresh = iter(sampler), iter(sampler)
    received = list(itertools.islice(begun, 10))
    sampler.load_state_dict({**sampler.state_after(), "seed": 9, "epoch": 3, "position": 5})
    with pytest.warns(UserWarning, match="leaves out the rest of epoch 3"):
        sampler.set_epoch(4)
    assert received + list(begun) == expected
    assert list(fresh) == expected


def test_set_epoch_keeps_the_position_in_the_same_epoch_and_warns_otherwise() -> None:
    sampler = ShuffleSampler(range(LENGTH))
    sampler.set_epoch(5)
    state = sampler.state_after(4)
    sampler.load_state_dict(state)
    sampler.set_epoch(5)
    assert sampler.remaining == LENGTH - 4 == len(list(sampler))
    for epoch in (6, 0):
        sampler.load_state_dict(state)
        with pytest.warns(UserWarning, match=rf"set_epoch\({epoch}\) leaves out the rest of epoch 5, .* position 4 of"):
            sampler.set_epoch(epoch)
        assert sampler.remaining == LENGTH == len(list(sampler))
    sampler.set_epoch(1)
    assert sampler.remaining == LENGTH


def resumed_shares(
    make: Callable[..., ResumableSampler], world: int, state: dict[str, Any], **options: Any
) -> list[Any]:
    shares = []
    for rank in range(world):
        sampler = make(range(LENGTH), world, rank, **options)
        sampler.load_state_dict(state)
        remaining = sampler.remaining
        shares.append(list(sampler))
        assert remaining == len(shares[-1])
    return shares


@pytest.mark.parametrize("after", WORLDS)
@pytest.mark.parametrize("before", WORLDS)
def test_any_number_of_ranks_resumes_the_order(make: Callable[..., ResumableSampler], before: int, after: int) -> None:
    order = global_order(make, epoch=2)
    samplers = [make(range(LENGTH), before, rank) for rank in range(before)]
    for sampler in samplers:
        sampler.set_epoch(2)
    shares = [list(sampler) for sampler in samplers]
    for consumed in range(len(shares[-1]) + 1):
        states = [sampler.state_after(consumed) for sampler in samplers]
        assert all(state == states[0] for state in states)
        resumed = resumed_shares(make, after, states[0])
        position = min(consumed * before, LENGTH)
        rest = interleaved(resumed)
        assert rest[: LENGTH - position] == order[position:]
        padding = rest[LENGTH - position :]
        if make is OrderedSampler:
            assert not padding
        elif make.__name__ == "sticking":
            assert set(padding) <= set(order[:LENGTH])
        else:
            assert len({len(share) for share in resumed}) == 1
            assert padding == order[: len(padding)]
            assert len(padding) < after
        if before == after:
            assert resumed == [share[consumed:] for share in shares]


@pytest.mark.parametrize("after", WORLDS)
@pytest.mark.parametrize("before", WORLDS)
def test_resuming_with_drop_last_drops_only_the_tail(
    make_padded: Callable[..., ResumableSampler], before: int, after: int
) -> None:
    order = global_order(make_padded)
    sampler = make_padded(range(LENGTH), before, 0, drop_last=True)
    share = list(sampler)
    for consumed in range(len(share) + 1):
        resumed = resumed_shares(make_padded, after, sampler.state_after(consumed), drop_last=True)
        rest = order[consumed * before :]
        assert interleaved(resumed) == rest[: len(rest) // after * after]
        if before == after:
            assert resumed[0] == share[consumed:]


CHAINS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), max_size=5)


@given(chain=CHAINS)
def test_repeated_interruptions_lose_and_repeat_no_sample(chain: list[tuple[int, int]]) -> None:
    check_interruptions(ShuffleSampler, chain)


def check_interruptions(make: Callable[..., ResumableSampler], chain: list[tuple[int, int]]) -> None:
    order = global_order(make)
    received: list[int] = []
    state = make(range(LENGTH)).state_after()
    for world, consumed in chain:
        shares = [share[:consumed] for share in resumed_shares(make, world, state)]
        received = (received + interleaved(shares))[:LENGTH]  # the rest is padding
        sampler = make(range(LENGTH), world, 0)
        sampler.load_state_dict(state)
        state = sampler.state_after(len(shares[0]))
        assert received == order[: state["position"]]
    assert received + resumed_shares(make, 1, state)[0] == order


@pytest.mark.parametrize("make", [ShuffleSampler, OrderedSampler])
@pytest.mark.parametrize("position", [10_000_000, HUGE // 2 + 1, HUGE - 1])
def test_resuming_computes_only_needed_indices(make: Callable[..., ResumableSampler], position: int) -> None:
    sampler = make(range(HUGE))
    sampler.load_state_dict({**sampler.state_after(), "position": position})
    received = list(itertools.islice(sampler, 3))
    assert sampler.state_after(len(received))["position"] == position + len(received)
    assert len(set(received)) == len(received) == min(3, HUGE - position)
    assert len(sampler) == HUGE


def test_samplers_and_their_iterators_have_no_state_dict(make: Callable[..., ResumableSampler]) -> None:
    """torchdata calls state_dict() if it exists. Otherwise torchdata skips the samples taken before the state."""
    sampler = make(range(LENGTH))
    batches = SeededBatchSampler(sampler, 2)
    for part in (sampler, iter(sampler), batches, iter(batches)):
        assert not hasattr(part, "state_dict")


def test_state_and_sampler_survive_serialization(make: Callable[..., ResumableSampler]) -> None:
    sampler = make(range(LENGTH), 2, 1)
    sampler.set_epoch(3)
    state = sampler.state_after(2)
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    sampler.load_state_dict(torch.load(file, weights_only=True))
    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - of our own making
    assert again.state_after() == sampler.state_after() == state
    assert repr(again) == repr(sampler)
    assert list(again) == list(sampler)


@pytest.mark.parametrize("seed", [2**70, -(2**70)])
def test_state_with_a_seed_of_any_size_is_resumed(make_padded: Callable[..., ResumableSampler], seed: int) -> None:
    sampler = make_padded(range(LENGTH), seed=seed)
    begun = [*itertools.islice(sampler, 4)]
    resumed = make_padded(range(LENGTH))
    resumed.load_state_dict(sampler.state_after(4))
    assert [*begun, *resumed] == [*make_padded(range(LENGTH), seed=seed)]


WANTED = r"^a state must be a dict from state_dict\(\) of a loader with this ShuffleSampler, got "


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, **changes}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (changed(length=12), OptionError, "state must have length 11, like this sampler, to continue .*, got 12"),
        (changed(sampler="OrderedSampler"), OptionError, "must have sampler ShuffleSampler, .* got Ordered"),
        (changed(position=12), OptionError, "^'position' in the state must be 0 to 11, got 12$"),
        (changed(epoch=-1), OptionError, "^'epoch' in the state must be at least 0, got -1$"),
        (changed(model=1, lr=3), OptionError, WANTED + "one that also has 'lr', 'model'$"),
        (lambda _: {"length": LENGTH}, OptionError, WANTED + "one that lacks 'epoch', 'position', 'sampler', 'seed'"),
        (lambda _: "x", TypeError, WANTED + "'x'"),
        (lambda _: [("epoch", 1)], TypeError, WANTED + r"\[\('epoch', 1\)\]"),
        (changed(seed="4"), TypeError, "^'seed' in the state must be an int, got '4'$"),
        (changed(position=True), TypeError, "^'position' in the state must be an int, got True$"),
    ],
)
def test_unusable_state_is_refused_and_changes_nothing(
    change: Callable[[dict[str, Any]], Any], kind: type[Exception], message: str
) -> None:
    check_refusal(ShuffleSampler(range(LENGTH)), change, kind, message)


def check_refusal(
    sampler: ResumableSampler, change: Callable[[dict[str, Any]], Any], kind: type[Exception], message: str
) -> None:
    sampler.set_epoch(3)
    state = change(sampler.state_after(5))
    with pytest.raises(kind, match=message):
        sampler.load_state_dict(state)
    with pytest.raises(kind, match=message):
        sampler.state_after(since=state)
    assert sampler.state_after() == {**sampler.state_after(), "epoch": 3, "position": 0}
