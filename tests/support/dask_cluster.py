"""A real Dask cluster of two processes on this machine, for parts of a conversion. Run as a program."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed import Client, LocalCluster

from dbloader import convert
from tests.support.engine_kills import Killer

if TYPE_CHECKING:
    from collections.abc import Iterator


OPTIONS = {"threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}


@contextmanager
def supervised_workers() -> Iterator[str]:
    """Start a scheduler and two workers, and yield the scheduler's address.

    A shell starts a worker again when it dies, as Kubernetes or systemd would. Dask's own nanny gives up a worker that
    is killed while it starts.
    """
    with LocalCluster(n_workers=0, silence_logs=50, **OPTIONS) as cluster:
        worker = f"{sys.executable} -m distributed.cli.dask_worker {cluster.scheduler_address}"
        line = f"while :; do {worker} --no-nanny --nthreads 1 --no-dashboard; done"
        shells = [
            subprocess.Popen(["bash", "-c", line], stderr=subprocess.DEVNULL, start_new_session=True) for _ in range(2)
        ]
        try:
            yield cluster.scheduler_address
        finally:
            for shell in shells:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()


class Keeping:
    """A client that keeps all its futures, so Dask answers a repeated call with the earlier result."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.kept: list[Any] = []

    def submit(self, *call: Any) -> Any:
        self.kept.append(self.client.submit(*call))
        return self.kept[-1]


def main(root: str, place: str) -> None:
    """Convert a folder with Dask's client and with Dask's executor. Each time, kill a worker while it makes a part."""
    found: dict[str, list[Any]] = {"digests": [], "kills": []}
    with LocalCluster(n_workers=2, **OPTIONS) as cluster, Client(cluster) as client:
        for executor in (Keeping(client), client.get_executor()):
            killer = Killer(random.Random(0), 0.0, 1)
            killer.start()
            try:
                found["digests"].append(convert(root, place, shards=6, executor=executor, overwrite=True).digest)
            finally:
                killer.ended.set()
                killer.join()
            found["kills"].append(killer.kills.total())
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
