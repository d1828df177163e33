"""A real Dask cluster of two processes on this machine, for parts of a conversion. Run as a program."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from distributed import Client, LocalCluster

from dbloader import convert
from tests.support.engine_kills import Killer


def main(root: str, place: str) -> None:
    """Convert a folder by an executor of Dask, and then by its client; each time, a worker is killed at a part."""
    told: dict[str, list[Any]] = {"digests": [], "kills": []}
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        for number, executor in enumerate((client.get_executor(), client)):
            killer = Killer(random.Random(0), 0.0, 1)
            killer.start()
            told["digests"].append(convert(root, f"{place}.{number}", shards=6, executor=executor).digest)
            killer.ended.set()
            killer.join()
            told["kills"].append(killer.kills)
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
