"""The counters of OpenTelemetry, read with its SDK, in processes that have it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dbloader import create_loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader import PrefetchLoader

WAIT_S = 60


class Images:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 4, 4, dtype=torch.uint8), index


def loader_of(batch_size: int = 3, **options: Any) -> PrefetchLoader[Any]:
    return create_loader(
        Images(), 4, batch_size, device=None, mean=None, std=None, transform=None, num_workers=1, **options
    )


@pytest.fixture(autouse=True)
def sdk() -> None:
    if "CI" not in os.environ:
        pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")


def in_child(function: Callable[[Any], object]) -> None:
    """Run a function with a reader of metrics in a process of its own, since a process has one provider for good."""
    process = multiprocessing.get_context("fork").Process(target=with_reader, args=(function,))
    process.start()
    process.join(WAIT_S)
    exitcode = process.exitcode
    process.kill()
    assert exitcode == 0


def with_reader(function: Callable[[Any], object]) -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    os.environ["RANK"] = "5"
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics.set_meter_provider(provider)
    function(reader)
    provider.shutdown()


def read(reader: Any) -> dict[str, tuple[float, str]]:
    """Return the values and units by the names of the counters."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    found = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        (point,) = metric.data.data_points
        assert dict(point.attributes) == {"dbloader.rank": 5}
        assert metric.data.is_monotonic
        found[metric.name] = (point.value, metric.unit)
    return found


def count_two_loaders(reader: Any) -> None:
    loader = loader_of()
    batches = iter(loader)
    next(batches)
    first = read(reader)
    assert list(first["dbloader.loader.samples"]) == [3, "{sample}"]
    assert set(first) == {
        f"dbloader.loader.{name}" for name in ("wait", "start", "compute", "samples", "skipped", "read", "decode")
    }
    list(batches)
    stats = loader.stats()
    assert stats.work is not None
    found = read(reader)
    assert found["dbloader.loader.wait"] == (stats.waited_s, "s")
    assert found["dbloader.loader.start"] == (stats.first_s, "s")
    assert found["dbloader.loader.compute"] == (stats.computed_s, "s")
    assert found["dbloader.loader.read"] == (stats.work.read, "s")
    assert found["dbloader.loader.decode"] == (stats.work.decode, "s")
    # Sums go on over epochs and loaders, also those that are gone.
    list(loader)
    list(loader_of(4, workers="processes"))
    kept = weakref.ref(loader._clock.stats)
    del loader, batches, stats
    for batch_size in (2, 3, 4):
        gc.collect()
        list(loader_of(batch_size))
    assert kept() is None, "only the sums of what has ended are kept"
    again = read(reader)
    assert again["dbloader.loader.samples"][0] == 72
    assert all(again[name][0] >= value for name, (value, _) in found.items())


def test_the_counters_are_what_stats_counts_summed_over_all_loaders() -> None:
    in_child(count_two_loaders)


def count_in_a_fork(reader: Any) -> None:
    def count() -> None:
        assert read(reader) == {}
        list(loader_of())
        assert read(reader)["dbloader.loader.samples"][0] == 12

    list(loader_of())
    child = multiprocessing.get_context("fork").Process(target=count)
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert read(reader)["dbloader.loader.samples"][0] == 12


def test_a_forked_process_does_not_tell_of_what_its_parent_has_counted() -> None:
    in_child(count_in_a_fork)


def test_without_opentelemetry_nothing_of_it_is_imported() -> None:
    program = """
import sys
from dbloader import PrefetchLoader
assert list(PrefetchLoader([1, 2])) == [1, 2]
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S)
