"""The samplers around the core keep the promises of all samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler, ResumableSampler
from tests.ext.sampling.kinds import EACH, PADDED, blocks, growing, lanes, shards, sticking
from tests.sampling.kinds import LENGTH, WORLDS, global_order
from tests.sampling.test_base import (  # noqa: F401 - the same tests with the fixtures of this file
    CHAINS,
    WANTED,
    changed,
    check_interruptions,
    check_refusal,
    test_any_number_of_ranks_resumes_the_order,
    test_each_epoch_and_seed_has_its_own_order,
    test_each_rank_gets_the_positions_of_distributed_sampler,
    test_order_does_not_depend_on_how_many_indices_are_computed_at_once,
    test_resuming_with_drop_last_drops_only_the_tail,
    test_running_iterator_ignores_epochs_and_states_that_are_set_later,
    test_samplers_and_their_iterators_have_no_state_dict,
    test_state_and_sampler_survive_serialization,
    test_state_with_a_seed_of_any_size_is_resumed,
)


@pytest.fixture(params=EACH, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=PADDED, ids=lambda make: make.__name__)
def make_padded(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_empty_dataset_has_empty_shares() -> None:
    for world in WORLDS:
        sampler = BlockShuffleSampler([], num_replicas=world, rank=0)
        assert list(sampler) == []
        assert len(sampler) == sampler.remaining == sampler.state_after()["position"] == 0


def test_orders_never_change() -> None:
    assert [global_order(make, 8, epoch=1) for make in EACH] == [
        [10, 4, 5, 1, 8, 9, 9, 2],
        [3, 6, 1, 0, 7, 2, 4, 5],
        [6, 1, 2, 3, 4, 5, 7, 0],
        [4, 5, 7, 3, 6, 1, 2, 0],
        [1, 5, 2, 6, 4, 0, 3, 7],
        [5, 1, 6, 2, 0, 4, 7, 3],
    ]


@pytest.mark.parametrize("kind", [lanes, shards, growing, sticking])
@given(chain=CHAINS)
def test_repeated_interruptions_lose_and_repeat_no_sample(
    kind: Callable[..., ResumableSampler], chain: list[tuple[int, int]]
) -> None:
    check_interruptions(kind, chain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(sampler="OrderedSampler"), "must have sampler BlockShuffleSampler, .* got Ordered"),
        (changed(buffer_blocks=4), "must have buffer_blocks 3, .* got 4"),
        (
            lambda _: {"length": LENGTH},
            WANTED.replace("Shuffle", "BlockShuffle") + "one that lacks 'block_size', 'buffer_blocks', 'epoch'",
        ),
    ],
)
def test_state_with_other_blocks_is_refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    check_refusal(blocks(range(LENGTH)), change, OptionError, message)
