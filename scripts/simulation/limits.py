"""Find what limits the speed: for each part of the work, how long the first epoch would take with this part alone."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from dbloader.ext.remote.bucket import PART_BYTES

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class Limit(NamedTuple):
    """A part of the work: its name, the seconds of a first epoch with this part alone, and what makes it faster."""

    name: str
    seconds: float
    remedy: str


def limits(cluster: Cluster, epoch: dict[str, float], index_bytes: int) -> list[Limit]:
    """Return all limits, the slowest first.

    Args:
        cluster: The simulated cluster.
        epoch: The measures of the first epoch.
        index_bytes: Bytes of the manifest and the index. Each node fetches both.
    """
    data = cluster.shards * cluster.shard_bytes * epoch["read_per_data"]
    node = data / cluster.nodes + index_bytes
    steps = ceil(cluster.length / cluster.world / cluster.batch)
    parts = data / cluster.shard_bytes * (1 + ceil(cluster.shard_bytes / PART_BYTES))
    parts += cluster.nodes * (1 + ceil(index_bytes / PART_BYTES))
    stream, nic = cluster.stream_mbs * 1e6, cluster.nic_mbs * 1e6
    found = [
        Limit("the training step", steps * cluster.step_ms / 1e3, "Faster GPUs or a smaller model"),
        Limit("decoding", steps * cluster.decode_s, "More cores, or smaller images in the store,"),
        Limit("the network cards", node / nic, "Faster cards, smaller images or a larger cache"),
        Limit("the speed of one fetch", node / (cluster.streams * stream), "A store nearer to the nodes"),
        Limit("the index", index_bytes / min(stream, nic), "A cache that is filled before the job"),
        Limit("the start of the ranks", cluster.start_s, "Longer epochs between restarts"),
    ]
    if cluster.store_mbs:
        found.append(Limit("the store's speed", node * cluster.nodes / cluster.store_mbs / 1e6, "A faster store"))
    if cluster.store_requests:
        remedy = "More prefixes, or a cache that is filled before the job,"
        found.append(Limit("the store's requests", parts / cluster.store_requests, remedy))
    return sorted(found, key=lambda limit: -limit.seconds)


def describe_caches(cluster: Cluster, epochs: list[dict[str, float]]) -> str:
    """Return one line: how much all nodes read, and why caches help little if they read much after the first epoch."""
    read = [epoch["read_per_data"] for epoch in epochs]
    line = f"caches: all nodes read {sum(read):.2f} times the store in {len(read)} epochs."
    most_gb = max(epoch["shards_per_node"] for epoch in epochs) * cluster.shard_bytes / 1e9
    if cluster.lanes % cluster.world and cluster.order != "blocks":
        return f"{line} Several nodes read each shard, because {cluster.world:,} ranks do not divide the lanes."
    if sum(read[1:]) <= 0.1 * len(read[1:]):
        return line
    if cluster.cache_gb < most_gb:
        return f"{line} They help little, because a node needs {most_gb:.3g} GB in an epoch: give at least as much."
    if cluster.order == "lanes":
        return f"{line} They help little, because a node gets other shards in each epoch: try --order stick_to_shard."
    return f"{line} The rest was read again after nodes were lost."


def describe(found: list[Limit], epoch: dict[str, float]) -> str:
    """Return one line: the slowest and the second slowest limit, and what would help most."""
    first, second = found[:2]
    return (
        f"limit: {first.name} (at least {first.seconds:,.0f} s of {epoch['seconds']:,.0f} s), then {second.name} "
        f"({second.seconds:,.0f} s). {first.remedy} would help most."
    )
