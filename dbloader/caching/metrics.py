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
    api, pid = sys.modules.get("opentelemetry.metrics"), os.getpid()
    if api is None:
        return
    is_first = pid not in {one for one, _ in _opened}
    _opened.add((pid, cache))
    if is_first:
        meter = api.get_meter("dbloader")
        for name, unit, description, field in _COUNTERS:
            meter.create_observable_counter(f"dbloader.cache.{name}", [_reader(pid, field, api)], unit, description)
        name, unit, description, field = _SIZE
        meter.create_observable_gauge(f"dbloader.cache.{name}", [_reader(pid, field, api)], unit, description)


def _reader(pid: int, field: str, api: Any) -> Any:
    def read(_: Any) -> Iterator[Any]:
        for cache in sorted(cache for one, cache in _opened if one == pid == os.getpid()):
            yield api.Observation(getattr(read_stats(cache), field), {"dbloader.cache": cache})

    return read
