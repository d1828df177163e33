"""The program scripts/simulate: read the options, simulate, and print a table or JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import fields

import numpy as np

from simulation.cluster import Cluster, parser
from simulation.limits import describe, describe_caches, limits
from simulation.training import Training

LINES = {
    "first_batch_s": "time to the first batch, s",
    "seconds": "time of the epoch, s",
    "stall_percent": "share of this time without a running step, %",
    "read_per_data": "bytes read by all nodes / bytes of the store",
    "most_read_by_a_node_per_share": "most bytes read by a node / its even share",
    "shards_per_node": "shards that a node needs",
}
TOTALS = {
    "index_gb": "size of the index, which each node reads first, GB",
    "peak_cache_gb": "largest size of a node's cache, GB",
    "peak_requests": "most requests in a second",
    "refused": "requests that were answered 503",
    "longest_refused_s": "longest time for which one fetch was refused, s",
    "lost_nodes": "lost nodes",
    "simulated_in_s": "time of this simulation, s",
}


def simulate(cluster: Cluster) -> dict[str, object]:
    """Return the measures of each epoch and of the whole training."""
    began = time.perf_counter()
    rng = np.random.default_rng(cluster.seed + 1)
    every_s = cluster.mtbf_hours * 3600 / cluster.nodes
    fail_at = np.cumsum(rng.exponential(every_s, 1000)).tolist() if every_s else []
    training = Training(cluster, fail_at)
    epochs = training.run()
    totals = {
        "index_gb": training.index_bytes / 1e9,
        "peak_cache_gb": max(node.peak for node in training.nodes) / 1e9,
        "peak_requests": training.network.most_requests,
        "refused": training.network.refused,
        "longest_refused_s": training.network.longest_s,
        "limits": limits(cluster, epochs[0], training.index_bytes),
        "lost_nodes": training.lost_nodes,
        "simulated_in_s": time.perf_counter() - began,
    }
    return {"epochs": epochs, **totals}


def print_table(cluster: Cluster, found: dict[str, object]) -> None:
    epochs = found["epochs"]
    assert isinstance(epochs, list)
    for name, text in LINES.items():
        print(f"{text:<56}" + "".join(f"{epoch[name]:>14,.2f}" for epoch in epochs))
    for name, text in TOTALS.items():
        print(f"{text:<56}{found[name]:>14,.2f}")
    print(describe(found["limits"], epochs[0]))  # type: ignore[arg-type]
    if len(epochs) > 1:
        print(describe_caches(cluster, epochs))


def main(arguments: list[str] | None = None) -> int:
    options = parser()
    given = vars(options.parse_args(arguments))
    try:
        cluster = Cluster(**{option.name: given[option.name] for option in fields(Cluster)})
        found = simulate(cluster)
    except ValueError as error:  # an OptionError is a ValueError
        options.error(str(error))
    if given["json"]:
        print(json.dumps({"cluster": vars(cluster), **found}, indent=1))
    else:
        print_table(cluster, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
