"""The policy chooses the shards to fetch and to remove."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from dbloader.ext.caching.policy import CachePolicy, Fetch, Need


def fetches(policy: CachePolicy, order: list[int]) -> int:
    """Return how many fetches a reader of whole shards needs when nothing is fetched ahead."""
    present: set[int] = set()
    count = 0
    for shard in order:
        policy.ask("reader", shard)
        if shard not in present:
            step = policy.next(present, [shard])
            assert step is not None
            assert step.shard == shard
            present = (present - set(step.remove)) | {shard}
            count += 1
        assert sum(policy.nbytes[one] for one in present) <= (policy.limit or inf)
    return count


def fewest(order: list[int], room: int) -> int:
    """Return the fewest fetches possible, by trying every choice of shards to remove."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for shard in order:
        new: dict[frozenset[int], int] = {}
        for state, count in states.items():
            if shard in state:
                choices = [(state, count)]
            elif len(state) < room:
                choices = [(state | {shard}, count + 1)]
            else:
                choices = [((state - {old}) | {shard}, count + 1) for old in state]
            for choice, cost in choices:
                new[choice] = min(cost, new.get(choice, cost))
        states = new
    return min(states.values())


@pytest.mark.parametrize("room", [1, 2, 3])
def test_policy_fetches_no_more_than_the_best_choice_of_removals(room: int) -> None:
    for order in product(range(4), repeat=6):
        policy = CachePolicy([1] * 4, room)
        policy.expect("reader", [Need(shard, at, at) for at, shard in enumerate(order)])
        assert fetches(policy, list(order)) == fewest(list(order), room), order


def test_shards_are_fetched_in_order_of_need_while_there_is_room() -> None:
    policy = CachePolicy([10] * 5, 30)
    policy.expect("reader", [Need(0, 20, 29), Need(4, 0, 9), Need(1, 30, 39), Need(2, 10, 19)])
    present: set[int] = set()
    for expected in (4, 2, 0):
        step = policy.next(present)
        assert step == Fetch(expected, [])
        present.add(expected)
    assert policy.next(present) is None  # shard 1 is needed later than every shard in the cache
    policy.ask("reader", 2)
    assert policy.next(present) == Fetch(1, [4])  # shard 4 is no longer needed


def test_shard_replaces_another_only_when_it_is_needed_next() -> None:
    policy = CachePolicy([1] * 6, 3)
    policy.expect("reader", [Need(shard, 10 * shard, 10 * shard + 9) for shard in range(6)])
    assert policy.next({0, 4, 5}) == Fetch(1, [5])
    assert policy.next({0, 1, 4}) is None  # shard 2 can wait; if shard 4 were removed, it would be fetched twice
    policy.ask("reader", 1)
    assert policy.next({0, 1, 4}) == Fetch(2, [0])


def test_least_bytes_is_the_largest_size_of_shards_in_use_at_once() -> None:
    policy = CachePolicy([10, 20, 40])
    assert policy.least_bytes() == 0
    policy.expect(0, [Need(0, 0, 9), Need(1, 9, 19), Need(2, 20, 29)])
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(0, 0, 9), Need(2, 9, 19)])  # at position 9, each reader uses two shards
    assert policy.least_bytes() == 70
    policy.expect(1, [Need(0, 100, 109), Need(1, 120, 129)])  # at position 120, while the other reader uses shard 2
    assert policy.least_bytes() == 60
    policy.expect(1, [Need(0, 100, 109), Need(2, 120, 129)])  # both readers use the same shard
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(shard, 0, 29) for shard in range(3)])  # a shuffle of all records needs every shard
    assert policy.least_bytes() == 70
