"""The counters of a cache, read with OpenTelemetry's SDK in a process that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dbloader.caching.folder import read_stats
from tests.support.caching import WAIT_S, make_shards, wait_until_ended

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, os, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from dbloader.caching.store import CachedStore

def found():
    data = reader.get_metrics_data()
    scopes = data.resource_metrics[0].scope_metrics if data else ()
    return [
        (metric.name, metric.unit, point.value, dict(point.attributes))
        for scope in scopes for metric in scope.metrics for point in metric.data.data_points
    ]

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
with CachedStore(sys.argv[1], sys.argv[2]) as store:
    list(store)
child = os.fork()
if not child:
    os._exit(len(found()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # a forked process tells nothing again
print("read", flush=True)
sys.stdin.read()  # until the fetcher has ended
print(json.dumps(found()))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_counters_are_what_the_fetcher_counts(tmp_path: Path) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")
    make_shards(tmp_path / "origin.lmdb")
    cache = tmp_path / "cache"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path / "origin.lmdb", cache],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "read\n"
            wait_until_ended(cache)
            printed, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    stats, where = read_stats(cache), {"dbloader.cache": str(cache)}
    assert stats.fetches == 6
    assert json.loads(printed) == [
        ["dbloader.cache.fetches", "{shard}", 6, where],
        ["dbloader.cache.retries", "{attempt}", 0, where],
        ["dbloader.cache.fetch", "s", stats.seconds, where],
        ["dbloader.cache.size", "By", stats.nbytes, where],
    ]
    assert stats.nbytes > 0
