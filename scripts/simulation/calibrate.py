"""Run nodes as processes on this machine, and compare their times with the simulator's prediction.

Everything but the network and the GPU is real: the store, the sampler, the cache with its fetcher, and reading. A
server sends the shards as slowly as a network would, and a step sleeps. Sizes and speeds are a hundredth of real sizes
and speeds, so the times are the same as with shards of 63 MB on real nodes.
"""

from __future__ import annotations

import multiprocessing
import os
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
from dbloader._machine import cpu_count
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.store import CachedStore
from simulation.cluster import Cluster
from simulation.needs import Order
from simulation.slow_server import serve
from simulation.training import Training

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    from dbloader.ext.caching.folder import CacheStats

SHARDS, RECORDS, SIDE = 80, 16, 240
SCALE = 100
RUNS = ((1, 500), (2, 500), (4, 500), (8, 500), (8, 100), (8, 1000))  # number of nodes, MB/s of each node
REPEATS = 3
COLUMNS = {
    "first_batch_s": "first batch, s",
    "seconds": "epoch, s",
    "stall_percent": "no step runs, %",
    "read_per_data": "x the data",
}
_LONGEST_WAIT_S = 60.0


class Log(NamedTuple):
    """What one node records. All times are values of ``time.monotonic()``, which is the same in all processes."""

    ended: list[float]  # time of the beginning, then of the end of each step
    read: list[float]  # time when the batch of each step was ready
    cache: CacheStats


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


def run_node(cluster: Cluster, node: int, port: int, cache: str, together: Barrier, logs: Queue[Log]) -> None:
    """Emulate a node's training. Read the batches of its ranks one step ahead, and sleep instead of computing."""
    store = CachedStore(f"http://127.0.0.1:{port}/node{node}/store.lmdb", cache)
    order = Order(cluster, store.shard_lengths or (), 0)  # this fetches the index
    ranks = range(node * cluster.ranks, (node + 1) * cluster.ranks)
    of_ranks = [BatchSampler(order.sampler(cluster.world, rank), cluster.batch, drop_last=False) for rank in ranks]
    steps = [[*chain.from_iterable(batches)] for batches in zip(*of_ranks, strict=True)]
    needs = order.needs(cluster.nodes)[node]

    def read(step: list[int]) -> float:
        store.read(step)
        return time.monotonic()

    together.wait()
    log = Log([time.monotonic()], [], read_stats(cache))
    store.expect(needs)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(read, steps[0])
        for following in [*steps[1:], []]:
            log.read.append(coming.result())
            together.wait()  # wait for all nodes, as in an exchange of gradients
            coming = reader.submit(read, following)
            time.sleep(cluster.step_ms / 1e3)
            log.ended.append(time.monotonic())
    logs.put(log._replace(cache=read_stats(cache)))


def run_nodes(cluster: Cluster, folder: Path) -> dict[str, float]:
    """Run all nodes. Return what the simulator predicts, and its inputs ``step_ms`` and ``fetch_ms``."""
    mine, port = FORK.Pipe()
    speeds = (cluster.nic_mbs * 1e6, cluster.stream_mbs * 1e6, cluster.store_mbs * 1e6)
    answering = FORK.Value("d")
    latency = (cluster.latency_ms / 1e3, cluster.latency_spread)
    server = FORK.Process(target=serve, args=(folder, *latency, speeds, port, answering))
    server.start()
    together, queue = FORK.Barrier(cluster.nodes, timeout=_LONGEST_WAIT_S), FORK.Queue()
    with tempfile.TemporaryDirectory(dir=folder) as caches:
        number = mine.recv()
        nodes = [
            FORK.Process(target=run_node, args=(cluster, node, number, f"{caches}/{node}", together, queue))
            for node in range(cluster.nodes)
        ]
        try:
            for process in nodes:
                process.start()
            for process in nodes:
                process.join()  # a timeout of the barrier ends a node that waits alone
            assert not any(process.exitcode for process in nodes), "a node failed"
            logs: list[Log] = [queue.get() for _ in nodes]
        finally:
            for process in (*nodes, server):
                process.kill()
                process.join()
    # A step ends with the slowest node. Then all nodes wait until the last node has its next batch.
    ended, read = (np.max([getattr(log, what) for log in logs], axis=0) for what in ("ended", "read"))
    waits, seconds = np.maximum(0, read - ended[:-1]), float(ended[-1] - ended[0])
    fetches = sum(log.cache.fetches for log in logs)
    return {
        "first_batch_s": float(waits[0]),
        "seconds": seconds,
        "stall_percent": 100 * float(waits.sum()) / seconds,
        "read_per_data": sum(log.cache.fetched_bytes for log in logs) / (cluster.shards * cluster.shard_bytes),
        "step_ms": 1e3 * (seconds - float(waits.sum())) / len(waits),
        "fetch_ms": 1e3 * (sum(log.cache.seconds for log in logs) - answering.value) / fetches,
    }


def calibrate() -> None:
    """Print a table of predicted and measured values. Measured values are the medians of some runs."""
    with tempfile.TemporaryDirectory() as name:
        print(f"load of the machine before: {os.getloadavg()[0]:.1f}, on {cpu_count()} CPUs")
        shard_bytes = make_store(Path(name))
        print(f"shards of {shard_bytes / 1e6:.2f} MB; predicted / measured (median of {REPEATS} runs)")
        print(f"{'nodes':>5}{'MB/s':>6}" + "".join(f"{text:>18}" for text in COLUMNS.values()))
        for nodes, speed in RUNS:
            cluster = Cluster(
                nodes=nodes, ranks=2, shards=SHARDS, records=RECORDS, shard_mb=shard_bytes / 1e6, buffer_shards=2,
                batch=4, step_ms=150.0, step_spread=0, nic_mbs=speed / SCALE, nic_spread=0, stream_mbs=250 / SCALE,
                store_mbs=2500 / SCALE, index_bytes=0, decode_ms=0, start_s=0, latency_ms=30.0, latency_spread=0.5,
            )  # fmt: skip
            runs = [run_nodes(cluster, Path(name)) for _ in range(REPEATS)]
            measured = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
            here = replace(cluster, step_ms=measured["step_ms"], fetch_ms=max(0, measured["fetch_ms"]))
            predicted = Training(here, []).run()[0]
            cells = (f"{predicted[what]:>9.2f} /{measured[what]:>7.2f}" for what in COLUMNS)
            took = f"step {here.step_ms:.0f} ms, fetch {here.fetch_ms:.0f} ms"
            print(f"{nodes:>5}{speed:>6}{''.join(cells)}   {took}, load {os.getloadavg()[0]:.1f}", flush=True)
