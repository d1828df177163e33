"""What all samplers promise: shares, epochs and options."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler, OrderedSampler, SeededBatchSampler, ShuffleSampler
from dbloader.sampling.base import BLOCK
from dbloader.sampling.permutation import Permutation
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

# Shares


@of_each_padded_kind
@pytest.mark.filterwarnings("ignore:.* ranks do not divide 6 lanes")
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


@pytest.mark.slow
@of_each_kind
@pytest.mark.parametrize("length", [BLOCK, BLOCK + 5])
def test_an_order_made_in_several_blocks_is_the_same(make: Callable[..., ResumableSampler], length: int) -> None:
    whole = global_order(make, length)
    assert len(whole) == length
    shares = [list(make(range(length), 3, rank)) for rank in range(3)]
    assert interleaved(shares)[:length] == whole


def test_the_shuffle_is_the_permutation() -> None:
    sampler = ShuffleSampler(range(20_000), seed=4)
    sampler.set_epoch(7)
    assert list(sampler) == Permutation(20_000, 4, 7)(np.arange(20_000)).tolist()


def test_the_orders_never_change() -> None:
    assert [global_order(make, 8, epoch=1) for make in PADDED] == [
        [6, 4, 7, 1, 3, 2, 0, 5],
        [10, 4, 5, 1, 8, 9, 9, 2],
        [3, 6, 1, 0, 7, 2, 4, 5],
        [6, 1, 2, 3, 4, 5, 7, 0],
        [4, 5, 7, 3, 6, 1, 2, 0],
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
    with pytest.warns(UserWarning, match="leaves out the rest of epoch 3"):
        sampler.set_epoch(4)
    assert received + list(begun) == expected
    assert list(fresh) == expected


@pytest.mark.parametrize("epoch", [-1, -(2**70)])
def test_a_negative_epoch_is_refused(epoch: int) -> None:
    with pytest.raises(OptionError, match=f"epoch must be at least 0, got {epoch}"):
        ShuffleSampler(range(3)).set_epoch(epoch)


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
