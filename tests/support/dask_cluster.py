"""A real Dask cluster of two processes on this machine, for parts of a conversion. Run as a program."""

from __future__ import annotations

import json
import sys

from distributed import Client, LocalCluster

from dbloader import convert


def main(root: str, place: str) -> None:
    """Convert a folder by an executor of Dask, and then by its client."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        digests = [
            convert(root, f"{place}.{number}", shards=4, executor=executor).digest
            for number, executor in enumerate((client.get_executor(), client))
        ]
    print(json.dumps({"digests": digests}))


if __name__ == "__main__":
    main(*sys.argv[1:])
