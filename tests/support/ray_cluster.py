"""A real Ray cluster of several nodes on this machine. Ray leaves threads and files in the process that uses it."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_OBJECT_STORE = 80 * 2**20  # memory of a node in bytes, close to Ray's minimum


@contextmanager
def ray_nodes(folder: Path, count: int) -> Iterator[Any]:
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
        for number in range(count):
            add_node(cluster, folder, number)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, folder: Path, number: int) -> None:
    """Add a node to a cluster."""
    scratch = folder / str(number)
    scratch.mkdir(exist_ok=True)
    cluster.add_node(
        num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=_OBJECT_STORE, env_vars={"TMPDIR": str(scratch)}
    )


def workers_of(node: Any) -> list[int]:
    """Return the process ids of a node's workers."""
    raylet = node.all_processes["raylet"][0].process.pid
    return [int(pid) for pid in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()]


def replace_node(cluster: Any, folder: Path, worker: int) -> None:
    """Kill the node of a worker and all workers of the node, and add another node. The cluster is not told."""
    for node in [*cluster.worker_nodes]:
        workers = workers_of(node)
        if worker in workers:
            cluster.remove_node(node, allow_graceful=False)
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            add_node(cluster, folder, 0)
