"""Run emulated nodes here, as real processes with real caches, and compare them with what the simulator predicts.

Everything but the network and the GPU is real: the store, the sampler, the cache with its fetcher, and reading. A
server gives the shards as slowly as a network would, and a step sleeps. Sizes and speeds are a hundredth of real ones,
so the times are those of nodes with shards of 100 MB.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image
from torch.utils.data import BatchSampler

from dbloader import convert
from dbloader.caching.folder import read_stats
from dbloader.caching.store import CachedStore
from simulation.cluster import Cluster
from simulation.needs import Order
from simulation.slow_server import serve
from simulation.training import Training

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

SHARDS, RECORDS, SIDE = 128, 16, 240
SCALE = 100
RUNS = ((8, 500), (4, 500), (8, 100), (8, 1000), (2, 500), (1, 500))
REPEATS = 3
WARM_STEPS = 24
_LONGEST_WAIT_S = 60.0


class Measured(NamedTuple):
    """What a node measures: seconds of a step without waiting, and of a fetch; bytes that it has read."""

    first_batch_s: float
    seconds: float
    step_s: float
    fetch_s: float
    read: float


FORK = multiprocessing.get_context("fork")


def make_store(folder: Path) -> float:
    """Make a store of noise, and return the bytes of a shard."""
    rng = np.random.default_rng(0)
    (folder / "images" / "noise").mkdir(parents=True)
    for number in range(SHARDS * RECORDS):
        pixels = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "noise" / f"{number:05}.jpg", quality=75)
    convert(folder / "images", folder / "store.lmdb", shards=SHARDS, workers=2, check="none")
    return statistics.mean(path.stat().st_size for path in (folder / "store.lmdb" / "shards").iterdir())


def run_node(cluster: Cluster, node: int, port: int, cache: str, together: Barrier, results: Queue[Measured]) -> None:
    """Train on one node: read the batches of its ranks one step ahead, and sleep in place of computing."""
    store = CachedStore(f"http://127.0.0.1:{port}/node{node}/store.lmdb", cache)
    order = Order(cluster, store.shard_lengths or (), 0)  # the index comes now
    ranks = range(node * cluster.ranks, (node + 1) * cluster.ranks)
    of_ranks = [BatchSampler(order.sampler(cluster.world, rank), cluster.batch, drop_last=False) for rank in ranks]
    steps = [[*chain.from_iterable(batches)] for batches in zip(*of_ranks, strict=True)]
    needs = order.needs(cluster.nodes)[node]
    together.wait()
    began = time.monotonic()
    store.expect(needs)
    first = run_steps(store, steps, cluster, together) - began
    seconds, stats = time.monotonic() - began, read_stats(cache)
    few = steps[:WARM_STEPS]  # again, now that their shards are here
    began = run_steps(store, few, cluster, together)
    step_s = (time.monotonic() - began) / len(few)
    results.put(Measured(first, seconds, step_s, stats.seconds / stats.fetches, stats.fetched_bytes))


def run_steps(store: CachedStore, steps: list[list[int]], cluster: Cluster, together: Barrier) -> float:
    """Read and sleep; return when the first batch was there, on all nodes."""
    first = 0.0
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(store.read, steps[0])
        for step in range(len(steps)):
            coming.result()
            together.wait()  # as the exchange of gradients does
            first = first or time.monotonic()
            coming = reader.submit(store.read, steps[min(step + 1, len(steps) - 1)])
            time.sleep(cluster.step_ms / 1e3)
    return first


def run_nodes(cluster: Cluster, folder: Path) -> Measured:
    """Run all nodes, and return the means of what they measure, and all bytes."""
    mine, port = FORK.Pipe()
    speeds = (cluster.nic_mbs * 1e6, cluster.stream_mbs * 1e6, cluster.store_mbs * 1e6)
    server = FORK.Process(target=serve, args=(folder, cluster.latency_ms / 1e3, cluster.latency_spread, speeds, port))
    server.start()
    together, results = FORK.Barrier(cluster.nodes, timeout=_LONGEST_WAIT_S), FORK.Queue()
    with tempfile.TemporaryDirectory(dir=folder) as caches:
        number = mine.recv()
        nodes = [
            FORK.Process(target=run_node, args=(cluster, node, number, f"{caches}/{node}", together, results))
            for node in range(cluster.nodes)
        ]
        try:
            for process in nodes:
                process.start()
            for process in nodes:
                process.join()  # a barrier ends a node that waits alone
            assert not any(process.exitcode for process in nodes), "a node failed"
            found = [results.get() for _ in nodes]
        finally:
            for process in (*nodes, server):
                process.kill()
                process.join()
    return Measured(*(statistics.mean(values) for values in zip(*found, strict=True)))


def calibrate() -> None:
    """Print a table of what was predicted and measured here, the median of some runs."""
    with tempfile.TemporaryDirectory() as name:
        shard_bytes = make_store(Path(name))
        print("predicted / measured, the median of", REPEATS)
        print(f"{'nodes':>5}{'MB/s':>6}{'first batch, s':>20}{'epoch, s':>20}{'no step runs, %':>20}{'x the data':>20}")
        for nodes, speed in RUNS:
            cluster = Cluster(
                nodes=nodes, ranks=2, shards=SHARDS, records=RECORDS, shard_mb=shard_bytes / 1e6, buffer_shards=2,
                batch=4, step_ms=150.0, step_spread=0, nic_mbs=speed / SCALE, nic_spread=0, stream_mbs=250 / SCALE,
                store_mbs=2500 / SCALE, index_bytes=0, latency_ms=30.0, latency_spread=0.5,
            )  # fmt: skip
            # What a fetch and a step take on this machine without limits: with processes that start, wake and read.
            free = run_nodes(replace(cluster, nic_mbs=1e6, stream_mbs=1e6, store_mbs=1e6), Path(name))
            runs = [run_nodes(cluster, Path(name)) for _ in range(REPEATS)]
            found = Measured(*(statistics.median(values) for values in zip(*runs, strict=True)))
            latency_ms = 1e3 * free.fetch_s / 2 / math.exp(cluster.latency_spread**2 / 2)  # a fetch is two requests
            here = replace(cluster, step_ms=1e3 * found.step_s, latency_ms=latency_ms)
            expected = Training(here, []).run()[0]
            steps = -(-cluster.length // (cluster.world * cluster.batch))
            measured = {
                "first_batch_s": found.first_batch_s,
                "seconds": found.seconds,
                "stall_percent": 100 * (1 - steps * found.step_s / found.seconds),
                "read_per_data": found.read * nodes / (SHARDS * shard_bytes),
            }
            cells = (f"{expected[what]:>9.2f} /{value:>9.2f}" for what, value in measured.items())
            took = f"step {1e3 * found.step_s:.0f} ms, fetch {1e3 * free.fetch_s:.0f} ms"
            print(f"{nodes:>5}{speed:>6}{''.join(cells)}   {took}", flush=True)
