"""A real Ray cluster of several nodes on this machine, one of which dies while it makes a part of a conversion.

Run as a program: Ray leaves threads and files in the process that uses it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 100
_OBJECT_STORE = 80 * 2**20  # memory of a node in bytes, close to Ray's minimum


@contextmanager
def ray_nodes(folder: Path, count: int) -> Iterator[tuple[Any, list[Any]]]:
    """Start a cluster of a head without CPUs and some nodes with one each, on loopback addresses, and connect.

    Node i has ``folder/i`` as its local folder for parts.
    """
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # clusters on loopback addresses only
        "RAY_TMPDIR": tempfile.gettempdir(),  # a folder for sockets, whose paths must be short
    }
    import ray
    from ray.cluster_utils import Cluster

    common: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": _OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **common})
    try:
        nodes = [add_node(cluster, folder, number) for number in range(count)]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, folder: Path, number: int) -> Any:
    """Add a node to a cluster."""
    scratch = folder / str(number)
    scratch.mkdir(exist_ok=True)
    return cluster.add_node(
        num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=_OBJECT_STORE, env_vars={"TMPDIR": str(scratch)}
    )


def workers_of(node: Any) -> list[int]:
    """Return the process ids of a node's workers."""
    raylet = node.all_processes["raylet"][0].process.pid
    return [int(pid) for pid in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()]


def parts_in(scratch: Path) -> list[Path]:
    """Return the folders of the parts that are being made, or were when their process was killed."""
    return [*scratch.glob("dbloader-*")]


def replace_node(cluster: Any, folder: Path, worker: int) -> None:
    """Kill a worker's node with all of its workers, and add another node."""
    for node in [*cluster.worker_nodes]:
        workers = workers_of(node)
        if worker in workers:
            kill_node(cluster, node, workers)
            add_node(cluster, folder, 0)


def kill_node(cluster: Any, node: Any, workers: list[int]) -> None:
    """Kill a node and all of its workers, without a word to the cluster."""
    cluster.remove_node(node, allow_graceful=False)
    signal_all(workers, signal.SIGKILL)


def kill_at_work(cluster: Any, node: Any, scratch: Path) -> None:
    """Kill a node and all of its workers, without a word to the cluster, while one of them makes a part."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, f"no part was made in {scratch}"
        if parts_in(scratch):
            workers = workers_of(node)
            signal_all(workers, signal.SIGSTOP)
            if parts_in(scratch):  # the worker is paused in the middle of the part
                break
            signal_all(workers, signal.SIGCONT)
        time.sleep(0.002)
    kill_node(cluster, node, workers)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main(root: Path, place: Path, folder: Path) -> None:
    """Convert a folder on two nodes with one CPU each, one of which dies. Print the result."""
    from dbloader import convert
    from dbloader.conversion.parts.run import run_parts
    from dbloader.errors import OptionError
    from tests.support.conversion import plan_conversion

    with ray_nodes(folder, 2) as (cluster, nodes):
        plan_conversion(root, place, 12)
        refused = []
        for workers in (0, 2):
            try:
                [*run_parts(str(place), [0], "ray", workers, patience=0.0)]
            except OptionError as error:
                refused.append(str(error))
        killer = threading.Thread(target=kill_at_work, args=(cluster, nodes[1], folder / "1"))
        killer.start()
        report = convert(root, place, shards=12, executor="ray")
        killer.join(WAIT_S)
    unfinished = [len(parts_in(folder / str(n))) for n in range(2)]
    print(json.dumps({"digest": report.digest, "unfinished": unfinished, "refused": refused}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
