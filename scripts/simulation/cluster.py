"""The options of scripts/simulate: the simulated cluster, with units, limits and defaults."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, fields
from typing import Any

ORDERS = ("lanes", "stick_to_shard", "blocks")

EXAMPLES = """examples:
  scripts/simulate                                              1,000 nodes, 100,000 shards of 100 MB
  scripts/simulate --nic-mbs 100 --store-mbs 50000              slow networks, and a store that sends 50 GB/s in all
  scripts/simulate --order blocks --nodes 16 --shards 1600      without lanes: each node reads all shards
  scripts/simulate --epochs 3 --cache-gb 20 --mtbf-hours 2000   a small cache; a node is lost every two hours
  scripts/simulate --epochs 3 --order stick_to_shard            each node reads the same shards in all epochs
  scripts/simulate --json --nodes 100 --shards 10000            as JSON, for a program
"""


def _option(default: Any, text: str, least: float = 0) -> Any:
    return field(default=default, metadata={"help": text, "least": least})


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A training, its nodes and its store. MB are 1e6 bytes, GB 1e9."""

    nodes: int = _option(1000, "machines, each with one cache", 1)
    ranks: int = _option(8, "training processes on a node, one for each GPU", 1)
    shards: int = _option(100_000, "shards in the store", 1)
    records: int = _option(1000, "records in a shard", 1)
    shard_mb: float = _option(100.0, "size of a shard", 1e-6)
    order: str = _option("lanes", f"one of {', '.join(ORDERS)}: BlockShuffleSampler with lanes, fixed lanes, no lanes")
    lanes: int = _option(0, "lanes of the order; 0: the number of all ranks")
    buffer_shards: int = _option(4, "shards that are shuffled together (in each lane)", 1)
    batch: int = _option(64, "samples in a batch of one rank", 1)
    step_ms: float = _option(100.0, "time of a training step on a node with median speed", 1e-3)
    decode_ms: float = _option(2.0, "time in which one core decodes and crops an image; 0: no time")
    cores: int = _option(64, "cores of a node that decode", 1)
    start_s: float = _option(20.0, "time from the start of the job until the ranks open the store")
    step_spread: float = _option(0.02, "spread of the nodes' speed (sigma of a lognormal); all wait for the slowest")
    nic_mbs: float = _option(1000.0, "speed of a node's network in MB/s", 1e-6)
    nic_spread: float = _option(0.1, "spread of the networks' speed (sigma of a lognormal)")
    streams: int = _option(4, "shards that a node fetches at a time", 1)
    stream_mbs: float = _option(400.0, "highest speed of one fetch in MB/s", 1e-6)
    latency_ms: float = _option(30.0, "median time until a request is answered")
    latency_spread: float = _option(0.5, "spread of this time (sigma of a lognormal)")
    fetch_ms: float = _option(0.0, "time that a node needs to begin a fetch and to check the fetched file")
    store_mbs: float = _option(0.0, "speed of the store for all nodes together in MB/s; 0: no limit")
    store_requests: float = _option(
        5500.0, "requests/s that the store accepts, one for each 8 MiB; others get a 503; 0: no limit"
    )
    cache_gb: float = _option(500.0, "size of a node's cache", 1e-9)
    index_bytes: float = _option(60.0, "bytes of a record in the store's index, which each node fetches first")
    epochs: int = _option(1, "epochs", 1)
    mtbf_hours: float = _option(0.0, "mean time between failures of one node; 0: no node fails")
    restart_s: float = _option(120.0, "time from a failure until all ranks run again")
    restart_nodes: int = _option(0, "nodes after a failure; 0: as many as before, one of them with an empty cache")
    checkpoint_steps: int = _option(50, "steps from one checkpoint to the next", 1)
    seed: int = _option(0, "seed of the order and of all random times")

    def __post_init__(self) -> None:
        """Raise ValueError if these options cannot be simulated."""
        for option in fields(self):
            value, least = getattr(self, option.name), option.metadata["least"]
            if not isinstance(value, str) and not (math.isfinite(value) and value >= least):
                raise ValueError(f"--{option.name.replace('_', '-')} must be at least {least:g}, got {value:g}")
        if self.order not in ORDERS:
            raise ValueError(f"--order must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if self.lanes and self.order == "blocks":
            raise ValueError("--lanes is for orders with lanes, got --order blocks")
        if self.restart_nodes > self.nodes:
            raise ValueError(f"--restart-nodes must be at most --nodes, {self.nodes:,}, got {self.restart_nodes:,}")
        if self.world > self.length:
            raise ValueError(f"{self.world:,} ranks are more than the {self.length:,} records")

    @property
    def length(self) -> int:
        """Number of records in the store."""
        return self.shards * self.records

    @property
    def world(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.ranks

    @property
    def decode_s(self) -> float:
        """Seconds in which a node decodes the images of one step."""
        return self.ranks * self.batch * self.decode_ms / 1e3 / self.cores

    @property
    def shard_bytes(self) -> int:
        """Size of a shard in bytes."""
        return max(1, int(self.shard_mb * 1e6))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: an option for each attribute of Cluster and --json."""
    found = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Simulate how a training on many nodes waits for its shards.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = {"int": int, "float": float, "str": str}
    for option in fields(Cluster):
        name = "--" + option.name.replace("_", "-")
        text = f"{option.metadata['help']} ({option.default:g})" if option.name != "order" else option.metadata["help"]
        found.add_argument(name, type=kinds[str(option.type)], default=option.default, help=text, metavar="N")
    found.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return found
