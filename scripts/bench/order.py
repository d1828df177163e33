"""Count the shards that each node reads in an epoch: shuffled globally, in blocks, and in blocks with lanes.

It runs the samplers, and reads no store. A node that needs one record of a shard counts as reading the whole shard, as
a cache of shards does. Records have 110 kB.

A second table compares epochs: what caches without a limit download in all epochs together, how much of the data a rank
sees, and how often two samples that were in one batch meet again in a batch of the next epoch.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

from dbloader.sampling import BlockShuffleSampler, ShuffleSampler

RANKS = 8  # ranks of a node
RECORD_MB = 0.11
BATCH = 64  # samples of a rank in a batch
ORDERS = {"global shuffle": None, "blocks": None, "lanes = ranks": 0, "512 lanes": 512, "128 lanes": 128}
COMPARED = ("global shuffle", "blocks", "lanes = ranks", "lanes = ranks, stick_to_shard")


class Shards:
    def __init__(self, shard_lengths: list[int]) -> None:
        self.shard_lengths = shard_lengths

    def __len__(self) -> int:
        return sum(self.shard_lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1024)
    parser.add_argument("--records", type=int, default=1250, help="average number of records in a shard")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4, 8, 16, 64])
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the second table, at least 2")
    options = parser.parse_args()
    lengths = np.random.default_rng(0).integers(options.records // 2, options.records * 3 // 2, options.shards)
    dataset = Shards(lengths.tolist())
    shard_of = np.repeat(np.arange(options.shards), lengths)
    nbytes = lengths * RECORD_MB / 1000
    print(
        f"{len(dataset):,} records in {options.shards:,} shards, {nbytes.sum():,.0f} GB; {RANKS} ranks on each node\n"
    )
    print(
        "| nodes | order | GB a node reads, mean | most | all nodes / data | shards in use on a node | epoch's order |"
    )
    print("| --: | --- | --: | --: | --: | --: | --: |")
    for nodes in options.nodes:
        for order, lanes in ORDERS.items():
            count_one(dataset, shard_of, nbytes, nodes, order, lanes)
    print(
        f"\n| nodes | order | downloads in {options.epochs} epochs / data | data that a rank sees, % "
        "| pairs that meet again in a batch of a rank | in a batch of all ranks |"
    )
    print("| --: | --- | --: | --: | --: | --: |")
    for nodes in options.nodes:
        for order in COMPARED:
            compare_epochs(dataset, shard_of, nbytes, nodes, order, options.epochs)


def compare_epochs(
    dataset: Shards, shard_of: np.ndarray, nbytes: np.ndarray, nodes: int, order: str, epochs: int
) -> None:
    """Print a row of the second table. With a global shuffle, the last two columns are 1 on average."""
    world, length = nodes * RANKS, len(dataset)
    lanes = world if "lanes" in order else None
    stick = order.endswith("stick_to_shard")
    sampler = (
        ShuffleSampler(dataset, 1, 0)
        if order == "global shuffle"
        else BlockShuffleSampler(dataset, None, 32, 1, 0, lanes=lanes, stick_to_shard=stick)
    )
    position = np.arange(length)
    rank_of, number = position % world, position // world // BATCH
    node_has = np.zeros((nodes, len(nbytes)), bool)
    rank_seen = np.zeros(length, bool)
    meet, before = [], None
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        indices = np.array(list(sampler))
        node_has[rank_of // RANKS, shard_of[indices]] = True
        rank_seen[indices[rank_of == 0]] = True
        of_all, of_rank = np.empty(length, np.int64), np.empty(length, np.int64)
        of_all[indices], of_rank[indices] = number, number * world + rank_of  # the batch of each sample
        if before is not None:
            meet.append([again(*pair) for pair in zip(before, (of_all, of_rank), strict=True)])
        before = of_all, of_rank
    meet_all, meet_rank = np.mean(meet, axis=0)
    print(
        f"| {nodes} | {order} | {(node_has @ nbytes).sum() / nbytes.sum():.2f} | {100 * rank_seen.mean():.1f} "
        f"| {meet_rank:.1f} x | {meet_all:.2f} x |",
        flush=True,
    )


def again(before: np.ndarray, after: np.ndarray) -> float:
    """Return how many pairs of one batch meet again in a batch, relative to the mean of a global shuffle."""
    pairs = [
        (counts * (counts - 1) / 2).sum()
        for counts in (
            np.unique(before, return_counts=True)[1],
            np.unique(after, return_counts=True)[1],
            np.unique(before * (after.max() + 1) + after, return_counts=True)[1],
        )
    ]
    return float(pairs[2] * len(before) * (len(before) - 1) / 2 / pairs[0] / pairs[1])


def count_one(
    dataset: Shards, shard_of: np.ndarray, nbytes: np.ndarray, nodes: int, order: str, lanes: int | None
) -> None:
    world = nodes * RANKS
    began = time.perf_counter()
    if order == "global shuffle":
        indices = list(ShuffleSampler(dataset, 1, 0, seed=1))
        in_use = len(dataset.shard_lengths)
    else:
        sampler = BlockShuffleSampler(dataset, None, 32, 1, 0, seed=1, lanes=world if lanes == 0 else lanes)
        indices = list(sampler)
        of_node = BlockShuffleSampler(dataset, None, 32, world, 0, seed=1, lanes=sampler.lanes)
        in_use = max(len(blocks) for _, blocks in of_node.blocks_ahead(range(RANKS)))
    seconds = time.perf_counter() - began
    shards = shard_of[indices]
    read = []
    for node in range(nodes):
        mine = [shards[rank::world] for rank in range(node * RANKS, (node + 1) * RANKS)]
        read.append(nbytes[np.unique(np.concatenate(mine))].sum())
    print(
        f"| {nodes} | {order} | {np.mean(read):,.1f} | {max(read):,.1f} | {sum(read) / nbytes.sum():.2f} x | {in_use} "
        f"| {seconds:.1f} s |",
        flush=True,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
