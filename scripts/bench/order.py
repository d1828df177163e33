"""Count the shards that each node reads in an epoch: shuffled globally, in blocks, and in blocks with lanes.

It runs the samplers, and reads no store. A node that needs one record of a shard counts as reading the whole shard, as
a cache of shards does. Records have 110 kB.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

from dbloader.sampling import BlockShuffleSampler, ShuffleSampler

RANKS = 8  # ranks of a node
RECORD_MB = 0.11
ORDERS = {"global shuffle": None, "blocks": None, "lanes = ranks": 0, "512 lanes": 512, "128 lanes": 128}


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
