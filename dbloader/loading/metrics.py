"""What ``stats()`` counts, as metrics of OpenTelemetry, in a program that uses OpenTelemetry.

That is one that has imported ``opentelemetry.metrics``, without which no provider of meters can be set. Nothing is done
for a batch: the numbers are read when the program exports its metrics. Those of worker processes are in them, since
``stats()`` has them already.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from itertools import compress
from typing import TYPE_CHECKING, Any

from dbloader._options import number_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.loading.stats import Clock, Stats

# Name, unit, description, and the number of an iteration so far.
COUNTERS: tuple[tuple[str, str, str, Callable[[Stats], float]], ...] = (
    ("wait", "s", "Time that the training waited for batches other than the first", lambda stats: stats.waited_s),
    ("start", "s", "Time until the first batch of each iteration was there", lambda stats: stats.first_s),
    ("compute", "s", "Time that the training worked", lambda stats: stats.computed_s),
    ("samples", "{sample}", "Samples received", lambda stats: stats.samples or 0),
    ("skipped", "{sample}", "Damaged samples that were skipped", lambda stats: stats.skipped),
    ("read", "s", "Time to read records, of all workers", lambda stats: stats.work.read if stats.work else 0.0),
    ("decode", "s", "Time to decode images, of all workers", lambda stats: stats.work.decode if stats.work else 0.0),
)


class LoaderMetrics:
    """The sums over all iterations of all loaders of this process."""

    def __init__(self) -> None:
        self._meter: Any = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._iterations: list[tuple[weakref.ref[Clock], Stats]] = []
        self._ended = [0.0] * len(COUNTERS)

    def watch(self, clock: Clock) -> None:
        """Count the iteration of a clock, if the program uses OpenTelemetry."""
        api = sys.modules.get("opentelemetry.metrics")
        if api is None:
            return
        if self._pid != os.getpid():  # a forked process counts its own iterations
            self._begin()
        with self._lock:
            self._fold()
            self._iterations.append((weakref.ref(clock), clock.stats))
            if self._meter is None:
                self._meter = api.get_meter("dbloader")
                for number, (name, unit, description, _) in enumerate(COUNTERS):
                    self._meter.create_observable_counter(
                        f"dbloader.loader.{name}", [self._reader(number, api)], unit, description
                    )

    def _reader(self, number: int, api: Any) -> Callable[[Any], Iterator[Any]]:
        def read(_: Any) -> Iterator[Any]:
            if self._pid != os.getpid():  # a forked worker must not export its parent's sums again
                return
            with self._lock:
                total = self._ended[number] + sum(COUNTERS[number][3](stats) for _, stats in self._iterations)
            yield api.Observation(total, {"dbloader.rank": _rank()})

        return read

    def _fold(self) -> None:
        """Keep only the sums of iterations whose clock is gone: their numbers do not change any more."""
        going = [clock() is not None for clock, _ in self._iterations]  # asked once: a clock may go at any moment
        ended = [stats for (_, stats), goes in zip(self._iterations, going, strict=True) if not goes]
        self._iterations = [*compress(self._iterations, going)]
        for number, (_, _, _, value) in enumerate(COUNTERS):
            self._ended[number] += sum(map(value, ended))


def _rank() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return number_from_environment("RANK", 0)


METRICS = LoaderMetrics()
