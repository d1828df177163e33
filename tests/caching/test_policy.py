"""The policy chooses the shards to fetch and to remove."""

from __future__ import annotations

from itertools import permutations, product
from math import inf

import pytest

from dbloader.caching.policy import CachePolicy, Fetch, Need


def fetches(policy: CachePolicy, order: list[int]) -> int:
    """Return the number of fetches for a reader of whole shards, without fetching ahead."""
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
    """Return the fewest fetches of any order of removal, by trying all of them."""
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
def test_no_order_of_removal_needs_fewer_fetches(room: int) -> None:
    for order in product(range(4), repeat=6):
        policy = CachePolicy([1] * 4, room)
        policy.expect("reader", [Need(shard, at, at) for at, shard in enumerate(order)])
        assert fetches(policy, list(order)) == fewest(list(order), room), order


def test_next_shard_is_fetched_first_and_later_ones_while_there_is_room() -> None:
    policy = CachePolicy([10] * 5, 30)
    policy.expect("reader", [Need(0, 20, 29), Need(4, 0, 9), Need(1, 30, 39), Need(2, 10, 19)])
    present: set[int] = set()
    for expected in (4, 2, 0):
        step = policy.next(present)
        assert step == Fetch(expected, [])
        present.add(expected)
    assert policy.next(present) is None  # 1 is needed later than all that are there
    policy.ask("reader", 2)
    assert policy.next(present) == Fetch(1, [4])  # 4 is done


def test_only_next_shards_replace_later_ones() -> None:
    policy = CachePolicy([1] * 6, 3)
    policy.expect("reader", [Need(shard, 10 * shard, 10 * shard + 9) for shard in range(6)])
    assert policy.next({0, 4, 5}) == Fetch(1, [5])
    assert policy.next({0, 1, 4}) is None  # 2 would come early enough after 0, and 4 would come twice
    policy.ask("reader", 1)
    assert policy.next({0, 1, 4}) == Fetch(2, [0])


def test_least_bytes_are_shards_in_use_at_one_time() -> None:
    policy = CachePolicy([10, 20, 40])
    assert policy.least_bytes() == 0
    policy.expect(0, [Need(0, 0, 9), Need(1, 9, 19), Need(2, 20, 29)])
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(0, 0, 9), Need(2, 9, 19)])  # at 9, each reads two shards
    assert policy.least_bytes() == 70
    policy.expect(1, [Need(0, 100, 109), Need(1, 120, 129)])  # at position 20, where the other reader reads shard 2
    assert policy.least_bytes() == 60
    policy.expect(1, [Need(0, 100, 109), Need(2, 120, 129)])  # both read the same
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(shard, 0, 29) for shard in range(3)])  # like a shuffle of all records
    assert policy.least_bytes() == 70


def test_each_shard_is_fetched_once_with_least_bytes() -> None:
    for order in permutations(range(4)):
        needs = [Need(shard, 10 * at, 10 * at + 14) for at, shard in enumerate(order)]  # two at a time
        policy = CachePolicy([1] * 4)
        policy.expect("reader", needs)
        policy.limit = policy.least_bytes()
        assert policy.limit == 2
        assert fetches(policy, list(order)) == 4
