"""Measure how long a training waits and computes, and how long each part of making a batch takes."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from dbloader._describe import counted, print_pretty
from dbloader._machine import cpu_count
from dbloader.batches.timed import now

if TYPE_CHECKING:
    from dbloader.batches.timed import SkippedSample, TimedBatch, Work

_DOING = {"read": "reading", "decode": "decoding", "collate": "collating", "steps": "the transform, where not fused,"}


@dataclasses.dataclass
class SourceStats:
    """What this process has received from one source of a mixture.

    Attributes:
        samples: Number of samples received.
        waited_s: Seconds that workers waited for the records of these samples, summed over all workers.
        passes: Number of passes that all ranks together have made over the source since the training began. 0 if
            unknown, for example in a Subset of a mixture.
    """

    samples: int = 0
    waited_s: float = 0.0
    passes: float = 0.0


@dataclasses.dataclass(kw_only=True)
class Stats:
    """How an iteration has spent its time so far. ``str(stats)`` is a verdict in one line.

    The consumer's times are measured in its Python code. On a GPU, Python runs ahead of the device until it waits for
    the device, such as in ``loss.item()``. If each step has such a wait, the times include the device's work.

    Attributes:
        batches: Number of batches received.
        samples: Number of samples in these batches, or None if unknown.
        skipped: Number of damaged samples that were skipped, with ``create_loader(on_error=Skip())``.
        skipped_samples: The first 100 skipped samples, each with its index, name and reason.
        steps: Number of batches that the consumer has finished.
        first_s: Seconds until the first batch. These include the start of the workers, and do not count as waiting.
        waited_s: Seconds that the consumer waited for all other batches.
        computed_s: Seconds that the consumer worked.
        ahead: Number of batches that the loader has made, including those not received yet.
        produced_s: Seconds that the loader took to make these batches.
        copied_s: Seconds that the background thread took to send these batches to the device and to prepare them.
        blocked_s: Seconds that the background thread waited for the consumer to take a batch.
        work: Seconds to read, decode and collate these batches, summed over all workers; None if not measured.
        serial_s: Seconds of ``work`` that more workers would not save: reading and collating in a ThreadLoader.
        num_workers: Number of workers of the loader; None if unknown.
        depth: Largest number of batches ahead of the consumer, as in PrefetchLoader.
        cpus: Number of CPUs that this process may use.
        advice: Which other kind of workers is usually faster; None if the loader has the faster kind.
        sources: Samples and times of each source of a mixture, by the source's name.
    """

    batches: int = 0
    samples: int | None = None
    skipped: int = 0
    skipped_samples: tuple[SkippedSample, ...] = ()
    steps: int = 0
    first_s: float = 0.0
    waited_s: float = 0.0
    computed_s: float = 0.0
    ahead: int = 0
    produced_s: float = 0.0
    copied_s: float = 0.0
    blocked_s: float = 0.0
    work: Work | None = None
    serial_s: float = 0.0
    num_workers: int | None = None
    depth: int = 0
    cpus: int = dataclasses.field(default_factory=cpu_count)
    advice: str | None = None
    sources: dict[str, SourceStats] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds since the first batch."""
        return self.waited_s + self.computed_s

    @property
    def waiting(self) -> float:
        """Share of the time, 0 to 1, that the consumer waited for data."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second in finished steps, since the first batch; None if unknown."""
        # The time of an unfinished step is not known yet, so its samples do not count.
        return self.samples * self.steps / self.batches / self.seconds if self.samples and self.seconds else None

    @property
    def enough_workers(self) -> int | None:
        """Number of workers that would keep up with the consumer. None if unknown or if the consumer does no work."""
        if self.num_workers is None or self._measures_only:
            return None
        if self.work is not None:
            return max(1, math.ceil((self.work.total - self.serial_s) / self.ahead / self._step_s))
        return max(1, math.ceil(max(self.num_workers, 1) * self.seconds / self.computed_s))

    @property
    def _measures_only(self) -> bool:
        # A consumer that works for at most 2 % of the time does not train, but measures the loader.
        return self.computed_s <= 0.02 * self.seconds

    @property
    def _step_s(self) -> float:
        return self.computed_s / self.steps

    def skip(self, samples: tuple[SkippedSample, ...]) -> tuple[int, tuple[SkippedSample, ...]]:
        """Count newly skipped samples. Return the number of all skipped samples, and the first 100 of them."""
        self.skipped += len(samples)
        self.skipped_samples = (self.skipped_samples + samples)[:100]
        return self.skipped, self.skipped_samples

    _repr_pretty_ = print_pretty

    def __str__(self) -> str:
        skipped = f"{counted(self.skipped, 'damaged sample')} skipped" if self.skipped else None
        return "; ".join(filter(None, (self._verdict(), skipped)))

    def _verdict(self) -> str:
        if self.batches < 2:
            return "too few batches to measure: take at least two"
        decimals = 0 if self.waiting >= 0.1 else 1
        waited = f"waited for data {100 * self.waiting:.{decimals}f} % of the time"
        if self.waiting < 0.02:  # faster loading would make no visible difference
            return f"{waited}: the data keeps up"
        return "; ".join(filter(None, (waited, self._main_work(), self._remedy(), self.advice)))

    def _main_work(self) -> str | None:
        if self.work is None:
            return None
        most = max(_DOING, key=lambda name: float(getattr(self.work, name)))
        names = {most: 0, "steps": 0} if self.work.steps else [most]
        shares = (f"{_DOING[name]} is {100 * getattr(self.work, name) / self.work.total:.0f} %" for name in names)
        return f"{' and '.join(shares)} of making a batch"

    def _remedy(self) -> str:
        if self._measures_only:
            return "the consumer only takes the batches, so this measures the loader alone"
        if (self.copied_s + self.serial_s) / self.ahead >= self._step_s:
            # However many workers there are, the background thread is slower than the training.
            doing = "sending and preparing" if self.copied_s >= self.serial_s else "reading and collating"
            return f"{doing} a batch takes longer than a training step, and more workers would not help"
        enough = self.enough_workers
        if self.num_workers is None or enough is None:
            return "the wrapped loader is too slow"
        if enough <= self.num_workers:
            return (
                f"{counted(self.num_workers, 'worker')} should keep up: the CPUs may be busy with other programs, "
                "or some batches may take much longer than others"
            )
        advice = f"about {counted(enough, 'worker')} instead of {self.num_workers} would keep up"
        if enough > self.cpus:
            advice += f", but this process has {counted(self.cpus, 'CPU')}: make the images cheaper to decode"
        return advice


class Clock:
    """Measures how long the consumer and the background thread of one iteration work and wait."""

    def __init__(self) -> None:
        self.stats = Stats()
        self._received: float | None = None

    def start_waiting(self) -> float:
        """Start to measure how long the consumer waits for a batch. Return the start time."""
        asked = now()
        if self._received is not None:
            self.stats.computed_s += asked - self._received
            self.stats.steps += 1
            self._received = None
        return asked

    def stop_waiting(self, asked: float) -> None:
        """Stop the measurement that began at ``asked``. The consumer got a batch, an error or the end."""
        if self.stats.batches:
            self.stats.waited_s += now() - asked
        else:
            self.stats.first_s += now() - asked

    def receive(self) -> None:
        """Count a batch. The consumer now starts to work with it."""
        self.stats.batches += 1
        self._received = now()

    def add_batch(self, batch: TimedBatch, seconds: float) -> None:
        """Count a batch that the loader made in this number of seconds."""
        self.stats.ahead += 1
        self.stats.produced_s += seconds
        if batch.work.total:
            self.stats.work = batch.work if self.stats.work is None else self.stats.work + batch.work
            self.stats.serial_s += batch.serial
