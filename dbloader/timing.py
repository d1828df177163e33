"""Where the time of a training goes: waiting for data or computing, and what the data's time is spent on."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, Any

from dbloader.machine import processors

if TYPE_CHECKING:
    from typing_extensions import Self

now = time.perf_counter

# Waiting less than this share of the time, a training gains nothing that could be seen from faster data.
KEEPS_UP = 0.02
# A consumer whose own work is a smaller share than this trains nothing: it measures the loader.
_MEASURES_ONLY = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What it took to make batches, in seconds of whoever made them, all workers together.

    Attributes:
        read: Getting records out of a store; of a dataset that is no store's, making its samples.
        decode: From the bytes of images to pixels of the size wanted.
        collate: Putting samples together to a batch.
    """

    read: float = 0.0
    decode: float = 0.0
    collate: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.read + self.decode + self.collate

    def __add__(self, other: Work) -> Work:
        return Work(self.read + other.read, self.decode + other.decode, self.collate + other.collate)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch on its way from a worker, with what it took to make it.

    Attributes:
        batch: The batch.
        work: The seconds it took.
        samples: Number of its samples.
    """

    batch: Any
    work: Work
    samples: int

    def pin_memory(self, device: Any = None) -> Self:
        """Gives the same around pinned memory, as torch's DataLoader asks of what is no tensor."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return dataclasses.replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


class Clock:
    """The times of one iteration, counted by the two sides of a loader: a few readings of the clock for each batch.

    Attributes:
        batches: Batches that the consumer has received.
        samples: Samples that were made, where that is known.
        first: Seconds that the consumer waited for its first batch, in which workers start.
        waited: Seconds that it waited for the others, and for the end.
        computed: Seconds between receiving a batch and asking for the next.
        produced: Seconds that the loader took to give its batches.
        copied: Seconds that the background thread took to send them to a device and prepare them.
        blocked: Seconds that it waited for the consumer to take one.
        work: What the workers report.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.first = self.waited = self.computed = 0.0
        self.produced = self.copied = self.blocked = 0.0
        self.work = Work()
        self._received: float | None = None

    def asked(self) -> float:
        """The consumer asks for a batch: gives the time."""
        asked = now()
        if self._received is not None:
            self.computed += asked - self._received
            self._received = None
        return asked

    def answered(self, asked: float) -> None:
        """It has one, or an error or the end."""
        answered = now()
        if self.batches:
            self.waited += answered - asked
        else:
            self.first += answered - asked

    def received(self) -> None:
        """It goes on to work with one."""
        self.batches += 1
        self._received = now()

    def unwrapped(self, batch: Any) -> Any:
        """Gives the batch, after counting what came with it."""
        if type(batch) is not TimedBatch:
            return batch
        self.work += batch.work
        self.samples += batch.samples
        return batch.batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """What the time of an iteration went into, so far; as a str, the verdict in one line.

    On a GPU the consumer's time is that of its Python code, which runs ahead of the device until something waits for
    that, as fetching a loss does. Then these times are the device's too.

    Attributes:
        batches: Batches received.
        samples: Samples in them, or None where that is not known.
        first_s: Seconds until the first batch was there: the start of the workers, which is not counted as waiting.
        waited_s: Seconds that the consumer waited for all other batches.
        computed_s: Seconds that it worked with them.
        produced_s: Seconds that the loader took to give its batches to the background thread.
        copied_s: Seconds that this took to send them to the device and prepare them.
        blocked_s: Seconds that it had a batch which nobody took yet.
        work: What the workers took to read, decode and collate, all together; None where they do not tell.
        num_workers: How many there are; None where that is not known.
        processors: That this process may use.
    """

    batches: int
    samples: int | None
    first_s: float
    waited_s: float
    computed_s: float
    produced_s: float
    copied_s: float
    blocked_s: float
    work: Work | None
    num_workers: int | None
    processors: int

    @classmethod
    def of(cls, clock: Clock, batch_size: int | None, num_workers: int | None) -> Self:
        """Gives the stats of an iteration.

        Args:
            clock: Its times.
            batch_size: Of the loader, if it has one.
            num_workers: Likewise.
        """
        samples = None if batch_size is None else clock.batches * batch_size
        if clock.samples:
            # What was made ahead has not been received; but the last batch may be a short one.
            samples = clock.samples if samples is None else min(clock.samples, samples)
        return cls(
            batches=clock.batches,
            samples=samples,
            first_s=clock.first,
            waited_s=clock.waited,
            computed_s=clock.computed,
            produced_s=clock.produced,
            copied_s=clock.copied,
            blocked_s=clock.blocked,
            work=clock.work if clock.work.total else None,
            num_workers=num_workers,
            processors=processors(),
        )

    @property
    def seconds(self) -> float:
        """The time from the first batch on."""
        return self.waited_s + self.computed_s

    @property
    def waiting(self) -> float:
        """The share of the time, 0 to 1, in which the consumer waited for data."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second, from the first batch on; None where that is not known."""
        return self.samples / self.seconds if self.samples and self.seconds else None

    @property
    def enough_workers(self) -> int | None:
        """How many workers would keep up with the consumer: where one is told, and it does more than take batches."""
        if self.num_workers is None or self.computed_s <= _MEASURES_ONLY * self.seconds:
            return None
        if self.work is not None:
            return max(1, math.ceil(self.work.total / self.computed_s))
        return max(1, math.ceil(max(self.num_workers, 1) * self.seconds / self.computed_s))

    def __str__(self) -> str:
        if self.batches < 2:
            return "too few batches to tell: take at least two"
        parts = [f"waited for data {100 * self.waiting:.{0 if self.waiting >= 0.1 else 1}f} % of the time"]
        if self.waiting < KEEPS_UP:
            return f"{parts[0]}: the data keeps up"
        if self.work is not None:
            name, share = max(
                ((name, getattr(self.work, name) / self.work.total) for name in ("read", "decode", "collate")),
                key=lambda pair: pair[1],
            )
            doing = {"read": "reading", "decode": "decoding", "collate": "collating"}[name]
            parts.append(f"{doing} takes {100 * share:.0f} % of a worker's time")
        parts.append(self._remedy())
        return "; ".join(parts)

    def _remedy(self) -> str:
        enough = self.enough_workers
        if self.num_workers is None:
            return "what is in front of this loader is too slow"
        if enough is None:
            return "the consumer only takes the batches, so this is how fast the data comes"
        if self.copied_s > self.produced_s:
            return "sending and preparing the batches takes longer than making them"
        if enough <= self.num_workers:
            # Their own time would do, so something else holds them up.
            return f"{counted(self.num_workers)} should keep up: the processors may be busy with other things"
        advice = f"about {counted(enough)} instead of {self.num_workers} would keep up"
        if enough > self.processors:
            advice += f", but there are {self.processors} processors: make the images cheaper to decode"
        return advice


def counted(workers: int) -> str:
    """Gives a number of workers in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
