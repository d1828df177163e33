"""Exact properties of the order, without time: each sample once, at any number of ranks; shards of each node."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import numpy as np

from dbloader.sampling import BlockShuffleSampler, ShuffleSampler
from simulation.needs import Records

RANKS = 8  # of a node
_JUDGED = 8  # nodes


def make_sampler(order: str, records: Records, world: int, rank: int, lanes: int) -> Any:
    """Return the sampler of a rank: order is "lanes", "blocks" (of 32) or "global"."""
    if order == "global":
        return ShuffleSampler(records, world, rank)
    if order == "blocks":
        return BlockShuffleSampler(records, None, 32, world, rank)
    return BlockShuffleSampler(records, None, lanes, world, rank, lanes=lanes)


def each_once(records: Records, worlds: list[int], lanes: int, rounds: int) -> bool:
    """Return whether an epoch has each record once, if after some rounds it goes on with the next number of ranks.

    What the last ranks repeat, so that all have equally many, is left out.

    Args:
        records: The dataset.
        worlds: Numbers of ranks, one after the other.
        lanes: Lanes of the order.
        rounds: Samples that each rank takes before the number of ranks changes.
    """
    seen = np.zeros(len(records), np.int64)
    state = None
    for number, world in enumerate(worlds):
        last = number == len(worlds) - 1
        position = state["position"] if state else 0
        for rank in range(world):
            sampler = make_sampler("lanes", records, world, rank, lanes)
            if state:
                sampler.load_state_dict(state)
            share = len(range(position + rank, len(records), world))
            np.add.at(seen, list(islice(sampler, share if last else min(rounds, share))), 1)
        sampler = make_sampler("lanes", records, world, 0, lanes)
        if state:
            sampler.load_state_dict(state)
        state = sampler.state_after(min(rounds, sampler.remaining))
    return bool((seen == 1).all())


def shards_of_node(order: str, records: Records, world: int, lanes: int, node: int) -> int:
    """Return how many shards the records of one node come from."""
    starts = np.cumsum([0, *records.shard_lengths])
    samplers = (make_sampler(order, records, world, node * RANKS + rank, lanes) for rank in range(min(RANKS, world)))
    indices = np.fromiter(chain.from_iterable(samplers), np.int64)
    return int(np.unique(np.searchsorted(starts, indices, side="right")).size)


def bound(records: Records, world: int, lanes: int) -> int:
    """Return the most shards of equal lengths that a node may need, if the world size divides the lanes.

    The lanes of a node are as many runs of neighbors as a rank has lanes. The node's piece of the data may begin and
    end inside a shard, in each run.
    """
    runs, length = lanes // world, max(records.shard_lengths)
    of_run = -(-len(records) // lanes) * min(RANKS, world)
    return runs * (-(-of_run // length) + 1)


def check(shards: int = 4096, each: int = 64, worlds: tuple[int, ...] = (8, 64, 512, 2048, 8192)) -> bool:
    """Print what holds for some numbers of ranks, and return whether all does."""
    records, most = Records([each] * shards), max(worlds)
    good = True
    print(f"{shards:,} shards of {each} records, nodes of {RANKS} ranks; shards that a node needs, x its share")
    print(f"{'ranks':>6}{'each once':>11}{'lanes = ranks':>18}{f'lanes = {most:,}':>18}{'blocks':>18}{'global':>18}")
    for world in worlds:
        nodes = max(1, world // RANKS)
        once = each_once(records, [world], world, 0) and each_once(records, [most, world], most, each // 2)
        cells = []
        for order, lanes in (("lanes", world), ("lanes", most), ("blocks", 1), ("global", 1)):
            some = sorted({part * (nodes - 1) // (_JUDGED - 1) for part in range(_JUDGED)})
            found = [shards_of_node(order, records, world, lanes, node) for node in some]
            once = once and (order != "lanes" or max(found) <= bound(records, world, lanes))
            cells.append(f"{max(found):>9,} {max(found) * nodes / shards:>6.2f} x")
        good = good and once
        print(f"{world:>6,}{'yes' if once else 'NO':>11}{''.join(cells)}")
    return good
