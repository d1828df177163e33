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


class CacheMetrics:
    """The caches that this process has opened; their fetchers are processes of their own, one for each folder."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._caches: set[str] = set()
        self._is_told = False

    def watch(self, cache: str) -> None:
        """Tell of the cache in a folder, if the program uses OpenTelemetry."""
        api = sys.modules.get("opentelemetry.metrics")
        if api is None:
            return
        if self._pid != os.getpid():  # a forked process tells of what it opens itself
            self._pid, self._caches = os.getpid(), set()
        self._caches |= {cache}
        if not self._is_told:
            self._is_told = True
            meter = api.get_meter("dbloader")
            for number, (name, unit, description, field) in enumerate((*_COUNTERS, _SIZE)):
                make = meter.create_observable_counter if number < len(_COUNTERS) else meter.create_observable_gauge
                make(f"dbloader.cache.{name}", [self._reader(field, api)], unit, description)

    def _reader(self, field: str, api: Any) -> Any:
        def read(_: Any) -> Iterator[Any]:
            if self._pid == os.getpid():
                for cache in sorted(self._caches):
                    yield api.Observation(getattr(read_stats(cache), field), {"dbloader.cache": cache})

        return read


METRICS = CacheMetrics()
