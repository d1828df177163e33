"""What happens to each batch between a loader and its consumer: it is counted, sent to a device and prepared."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import override

from dbloader.batches.timed import TimedBatch, now
from dbloader.errors import LoaderError
from dbloader.loading.background import BackgroundIterator
from dbloader.loading.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.device.transfer import Transfer
    from dbloader.loading.checkpoint import Position, State

T = TypeVar("T")

# Longest that the end of a process may take to be seen, after its connections are.
_DIES_IN_S = 1.0


class _Staged(NamedTuple):
    """A batch on its way, and what is to be told of the one that was received last."""

    batch: Any
    captured: State | None
    samples: int


class Iteration:
    """All that is known of one run over a loader, by whoever makes its batches and whoever receives them.

    Attributes:
        clock: Its times.
        transfer: How its batches get to a device, if they do.
        place: Where in the order of the samples it began; None before it did.
    """

    def __init__(self, transfer: Transfer | None) -> None:
        self.clock = Clock()
        self.transfer = transfer
        self.place: Position | None = None
        self._failed = False

    def received(self, staged: _Staged) -> Any:
        """Return the batch to its consumer, in whose thread this runs."""
        self._failed = False
        if self.place is not None:
            self.place.receive(staged.captured)
        self.clock.samples += staged.samples
        return staged.batch if self.transfer is None else self.transfer.receive(staged.batch)

    def over(self, error: BaseException) -> None:
        """Take note of what ended the iteration, in the consumer's thread: StopIteration or an error."""
        if self.place is None:
            return
        if isinstance(error, StopIteration):
            if not self._failed:  # else it is what a further next() raises after the error, not the end of the epoch
                self.place.end()
        else:
            self.place.fail()
            self._failed = True


class Batches(Iterator[Any]):
    """The batches of a loader, ready for the device's consumer: what the background thread iterates.

    Args:
        make: Makes the loader's iterator, and says where it begins.
        iteration: Is told what is measured.
        preparation: Called with each batch on the device.
        counts: Whether the samples in the batches are to be counted.
    """

    def __init__(
        self,
        make: Callable[[], tuple[Iterator[Any], Position]],
        iteration: Iteration,
        preparation: Callable[..., Any] | None,
        *,
        counts: bool = True,
    ) -> None:
        self._make: Callable[[], tuple[Iterator[Any], Position]] | None = make
        self._source: Iterator[Any] = iter(())
        self._iteration = iteration
        self._preparation = preparation
        self._counts = counts
        self._image = getattr(preparation, "image", "image")  # its name for the images of a mapping
        self._number = 0

    def begin(self) -> None:
        """Make the loader's iterator, unless that was done; in the consumer's thread, before any batch."""
        make, self._make = self._make, None
        if make is not None:
            self._source, self._iteration.place = make()

    @override
    def __next__(self) -> _Staged:
        clock, place = self._iteration.clock, self._iteration.place
        assert place is not None, "else it has not begun"
        try:
            began = now()
            batch = next(self._source)
            captured = place.capture()
            made = now()
            clock.made(batch, made - began)
            if type(batch) is TimedBatch:
                batch, samples = batch.batch, batch.samples
            else:
                samples = count_samples(batch, self._image)
            batch = self._sent(batch, samples)
            clock.copied += now() - made
        except StopIteration as stop:
            if _is_of_a_sample(stop):
                raise LoaderError(
                    "StopIteration was raised in the making of a sample or batch, which would end the epoch "
                    "early: catch it there, or give next() a default"
                ) from stop
            raise
        except (OSError, EOFError) as error:
            killed = _killed_worker(self._source, error)
            if killed is None:
                raise
            # Torch tells of a worker that it finds dead, but not of one that dies while its batch is fetched from it.
            raise LoaderError(f"DataLoader worker (pid {killed.pid}) exited unexpectedly: {error}") from error
        self._number += 1
        return _Staged(batch, captured, samples if self._counts else 0)

    def _sent(self, batch: Any, samples: int) -> Any:
        """Return the batch prepared, on its way to the device."""
        prepare = None
        if self._preparation is not None:
            assert self._iteration.place is not None, "else it has not begun"
            rng = self._iteration.place.keys(self._number, samples)
            prepare = functools.partial(self._preparation, rng=rng)
        if self._iteration.transfer is not None:
            return self._iteration.transfer.prepare(batch, prepare)
        return batch if prepare is None else prepare(batch)

    def close(self) -> None:
        """Let go of the loader's iterator, and ends its workers unless they are persistent."""
        self._make = None
        if hasattr(self._source, "close"):
            self._source.close()
        elif hasattr(self._source, "_shutdown_workers") and not getattr(self._source, "_persistent_workers", False):
            # A DataLoader's iterator has no close. One that raised lives on in a cycle with its error, and when the
            # garbage collector comes upon it, that waits 5 s for each worker, in whatever thread it runs.
            self._source._shutdown_workers()


def _killed_worker(source: Any, error: BaseException) -> Any:
    """Return the process of a DataLoader's worker whose end an error of its connections tells of, if there is one."""
    workers = getattr(source, "_workers", [])
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.startswith("multiprocessing.") for module in modules):
        return None  # of a sample
    for worker in workers:
        worker.join(_DIES_IN_S / len(workers))
    return next((worker for worker in workers if worker.exitcode), None)


def _is_of_a_sample(stop: StopIteration) -> bool:
    """Whether it came out of a map-style dataset or the stages, and torch lets it pass for the end."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        module = frame.f_globals.get("__name__")
        if module == "torch.utils.data._utils.fetch":
            if type(frame.f_locals["self"]).__name__ == "_MapDatasetFetcher":  # an iterable one ends this way
                return True
        elif module == "torch._utils" or frame.f_code is Batches._sent.__code__:
            return True  # the former raises again what a worker raised
    return False


def count_samples(batch: Any, image: str = "image") -> int:
    """Return the length of the images of a batch, or of the first thing in it that has a length; 0 if nothing has.

    Args:
        batch: As a loader gives it.
        image: Where a mapping has its images.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        parts = [batch[image]] if image in batch else [*batch.values()]
    else:
        parts = [*batch] if isinstance(batch, (tuple, list)) else []
    return next(filter(None, (count_samples(part, image) for part in parts)), 0)


class Ahead(BackgroundIterator[T]):
    """The batches, made ahead in a thread."""

    def __init__(self, batches: Batches, depth: int, iteration: Iteration) -> None:
        super().__init__(batches, depth, iteration.clock)
        self.run.prepare = batches.begin
        self._iteration = iteration

    @override
    def __next__(self) -> T:
        try:
            return super().__next__()
        except BaseException as error:
            self._iteration.over(error)
            raise

    @override
    def _receive(self, item: Any) -> T:
        batch: T = self._iteration.received(item)
        return batch


class InTurn(Iterator[T]):
    """The batches, each made when it is asked for, by whoever asks: without a thread."""

    def __init__(self, batches: Batches, iteration: Iteration) -> None:
        self._batches: Batches | None = batches
        self._iteration = iteration
        self._why: str | None = None

    @override
    def __next__(self) -> T:
        if self._batches is None:
            raise StopIteration if self._why is None else LoaderError(self._why)
        clock = self._iteration.clock
        asked = clock.asked()
        try:
            self._batches.begin()
            staged = next(self._batches)
        except BaseException as error:
            self._iteration.over(error)
            self.close()
            raise
        finally:
            clock.answered(asked)
        clock.received()
        batch: T = self._iteration.received(staged)
        return batch

    def close(self, why: str | None = None) -> None:
        """Let go of the loader's iterator; tells why, where the consumer cannot know."""
        batches, self._batches = self._batches, None
        if batches is not None:
            self._why = why
            batches.close()
