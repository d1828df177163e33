"""The shards that a cache fetches and removes."""

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


def test_awaited_shard_is_fetched_first() -> None:
    policy = CachePolicy([10] * 4, 20)
    policy.expect("reader", [Need(0, 0, 9), Need(1, 5, 19), Need(2, 20, 29)])
    assert policy.next({0, 1}, [3]) == Fetch(3, [1])
    assert policy.next({0, 1}, [3], fixed={1}) == Fetch(3, [0])
    assert policy.next({0, 1}, [3], fixed={0, 1}) is None
    assert policy.next({0, 1}, [0, 1]) is None  # both are there, and 2 has no room


def test_shards_in_use_do_not_replace_each_other() -> None:
    policy = CachePolicy([1] * 3, 2)
    policy.expect("reader", [Need(shard, 0, 9) for shard in range(3)])
    assert policy.next({0, 2}) is None
    assert policy.next({0, 2}, [1]) == Fetch(1, [0])


def test_least_recently_asked_shard_is_removed_without_order() -> None:
    policy = CachePolicy([1] * 4, 3)
    for shard in (0, 1, 2, 0):
        policy.ask("reader", shard)
    assert policy.next({0, 1, 2}, [3]) == Fetch(3, [1])
    assert policy.next({0, 1, 2}) is None


def test_everything_is_fetched_without_limit() -> None:
    policy = CachePolicy([1] * 3)
    policy.expect("reader", [Need(shard, shard, shard) for shard in range(3)])
    assert policy.next({0, 1}) == Fetch(2, [])
    assert policy.next({0, 1, 2}) is None


def test_nearest_need_of_all_readers_counts() -> None:
    policy = CachePolicy([1] * 4, 2)
    policy.expect(0, [Need(0, 0, 9), Need(1, 100, 109)])
    policy.expect(1, [Need(2, 500, 509), Need(3, 520, 529)])  # another rank, at its own position
    assert policy.next({0}) == Fetch(2, [])
    policy.ask(1, 3)
    assert policy.next({0, 2}) == Fetch(3, [2])
    policy.forget(1)
    assert policy.next({0, 2}) == Fetch(1, [2])


def test_shard_may_be_needed_several_times() -> None:
    policy = CachePolicy([1] * 3, 2)
    policy.expect("reader", [Need(0, 0, 0), Need(1, 1, 1), Need(2, 2, 2), Need(0, 3, 3)])
    policy.ask("reader", 1)
    policy.ask("reader", 2)
    assert policy.next({0, 1}, [2]) == Fetch(2, [1])


def test_least_bytes_are_shards_in_use_at_one_time() -> None:
    policy = CachePolicy([10, 20, 40])
    assert policy.least_bytes() == 0
    policy.expect(0, [Need(0, 0, 9), Need(1, 9, 19), Need(2, 20, 29)])
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(0, 0, 9), Need(2, 9, 19)])  # at 9, both read two
    assert policy.least_bytes() == 70
    policy.expect(1, [Need(0, 100, 109), Need(1, 120, 129)])  # at its 20, where the other one reads 2
    assert policy.least_bytes() == 60
    policy.expect(1, [Need(0, 100, 109), Need(2, 120, 129)])  # both read the same
    assert policy.least_bytes() == 40
    policy.expect(1, [Need(shard, 0, 29) for shard in range(3)])  # as a shuffle of all records does
    assert policy.least_bytes() == 70


def test_each_shard_is_fetched_once_with_least_bytes() -> None:
    for order in permutations(range(4)):
        needs = [Need(shard, 10 * at, 10 * at + 14) for at, shard in enumerate(order)]  # two at a time
        policy = CachePolicy([1] * 4)
        policy.expect("reader", needs)
        policy.limit = policy.least_bytes()
        assert policy.limit == 2
        assert fetches(policy, list(order)) == 4


def test_policy_of_many_shards_answers_in_time() -> None:
    count = 2_000
    policy = CachePolicy([1] * count, 100)
    policy.expect("reader", [Need(shard, 10 * shard, 10 * shard + 9) for shard in range(count)])
    present: set[int] = set()
    for shard in range(count):
        policy.ask("reader", shard)
        while (step := policy.next(present, () if shard in present else [shard])) is not None:
            present = (present - set(step.remove)) | {step.shard}
        assert shard in present
