"""What the fetcher of a cache counts, as metrics of OpenTelemetry, in a program that uses OpenTelemetry."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from dbloader.caching.folder import read_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

# Name, unit, description, and the field of CacheStats.
_COUNTERS = (
    ("fetches", "{shard}", "Shards fetched", "fetches"),
    ("retries", "{attempt}", "Attempts at fetching that failed and were repeated", "retries"),
    ("fetch", "s", "Time spent fetching, of all threads of the fetcher", "seconds"),
)
_SIZE = ("size", "By", "Bytes of the shards in the cache", "nbytes")


# The caches that processes have opened, by their ids: a forked process tells only of those that it has opened itself.
_opened: set[tuple[int, str]] = set()


def watch(cache: str) -> None:
    """Tell of the cache in a folder, if the program uses OpenTelemetry."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return
    if not _opened:  # a forked process inherits the instruments
        meter = api.get_meter("dbloader")
        for number, (name, unit, description, field) in enumerate((*_COUNTERS, _SIZE)):
            make = meter.create_observable_counter if number < len(_COUNTERS) else meter.create_observable_gauge
            make(f"dbloader.cache.{name}", [_reader(field, api)], unit, description)
    _opened.add((os.getpid(), cache))


def _reader(field: str, api: Any) -> Any:
    def read(_: Any) -> Iterator[Any]:
        for cache in sorted(cache for pid, cache in _opened if pid == os.getpid()):
            yield api.Observation(getattr(read_stats(cache), field), {"dbloader.cache": cache})

    return read
