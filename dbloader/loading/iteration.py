"""One run over a loader: what happens to each batch between the loader and its consumer."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import override

from dbloader._describe import stop_iteration_error
from dbloader.batches.timed import TimedBatch, now
from dbloader.errors import LoaderError
from dbloader.loading.background import BackgroundIterator
from dbloader.loading.checkpoint import Position
from dbloader.loading.last_batch import LastBatch
from dbloader.loading.stats import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.batches.skipped import SkipLimit, SkippedSample
    from dbloader.device.preparation import Preparation
    from dbloader.device.transfer import Transfer
    from dbloader.loading.checkpoint import State

T = TypeVar("T")


class BatchInTransit(NamedTuple):
    """A batch on its way to the consumer, with the loader's own state after it."""

    batch: Any
    snapshot: State | None
    samples: int
    skipped: tuple[SkippedSample, ...]


class Iteration(Iterator[BatchInTransit]):
    """One run over a loader.

    The producer, which is the background thread if there is one, calls ``next()`` and ``close()``: make a batch, send
    it to the device, prepare it. The consumer calls ``start()``, ``receive()`` and ``finish()``.
    ``counts_samples`` says whether the items of the loader are batches, whose samples can be counted.
    """

    def __init__(
        self,
        make_iterator: Callable[[], tuple[Iterator[Any], Position]],
        transfer: Transfer | None,
        preparation: Preparation | None,
        skip_limit: SkipLimit | None = None,
        *,
        counts_samples: bool = True,
    ) -> None:
        self.clock = Clock()
        self._make_iterator: Callable[[], tuple[Iterator[Any], Position]] | None = make_iterator
        self._iterator: Iterator[Any] = iter(())
        self._position = Position()
        self._transfer = transfer
        self._preparation = preparation
        self._image = "image" if preparation is None else preparation.image
        self._counts_samples = counts_samples
        self._skip_limit = skip_limit
        self._number = 0
        self._failed = False
        self._last_batch = LastBatch()

    def start(self) -> None:
        """Make the loader's iterator, in the consumer's thread, unless that was done."""
        make_iterator, self._make_iterator = self._make_iterator, None
        if make_iterator is not None:
            self._iterator, self._position = make_iterator()

    @override
    def __next__(self) -> BatchInTransit:
        try:
            began = now()
            batch = next(self._iterator)
            snapshot = self._position.snapshot()
            made = now()
            self.clock.add_batch(batch, made - began)
            skipped: tuple[SkippedSample, ...] = ()
            if type(batch) is TimedBatch:
                batch, samples, skipped = batch.batch, batch.samples, batch.skipped
            else:
                samples = count_samples(batch, self._image)
            batch = self._prepare(batch, samples)
            self.clock.stats.copied_s += now() - made
        except StopIteration as stop:
            if _is_from_a_sample(stop):
                raise stop_iteration_error("a sample or batch") from stop
            raise
        except (OSError, EOFError) as error:
            worker = _find_killed_worker(self._iterator, error)
            if worker is None:
                raise
            # torch reports a worker that it finds dead, but not one that dies while its batch is fetched from it.
            raise LoaderError(f"DataLoader worker (pid {worker.pid}) exited unexpectedly: {error}") from error
        self._number += 1
        return BatchInTransit(batch, snapshot, samples if self._counts_samples else 0, skipped)

    def _prepare(self, batch: Any, samples: int) -> Any:
        prepare = None
        if self._preparation is not None:
            prepare = functools.partial(self._preparation, rng=self._position.sample_rng(self._number, samples))
        if self._transfer is not None:
            return self._transfer.start(batch, prepare)
        return batch if prepare is None else prepare(batch)

    def receive(self, in_transit: BatchInTransit) -> Any:
        """Count a batch as received and return it, in the consumer's thread."""
        self._failed = False
        if in_transit.skipped and self._skip_limit is not None:  # first, as too many make this an error
            self._skip_limit.receive(in_transit.skipped, *self.clock.stats.skip(in_transit.skipped))
        self._position.receive(in_transit.snapshot)
        self._last_batch.receive(self._position)
        if in_transit.samples:
            self.clock.stats.samples = in_transit.samples + (self.clock.stats.samples or 0)
        return in_transit.batch if self._transfer is None else self._transfer.receive(in_transit.batch)

    def finish(self, error: BaseException) -> None:
        """Note what ended the iteration, in the consumer's thread: StopIteration or an error."""
        self._last_batch.finish()
        if not isinstance(error, StopIteration):
            self._position.fail()
            self._failed = True
        elif not self._failed:  # a further next() after an error raises StopIteration, too
            self._position.end()

    def close(self) -> None:
        """Drop the loader's iterator, and end its workers unless they are persistent."""
        self._make_iterator = None
        iterator, self._iterator = self._iterator, iter(())
        if hasattr(iterator, "close"):
            iterator.close()
        elif hasattr(iterator, "_shutdown_workers") and not getattr(iterator, "_persistent_workers", False):
            # A DataLoader's iterator has no close(). One that raised stays in a cycle with its error until the garbage
            # collector finds it.
            iterator._shutdown_workers()


def _find_killed_worker(iterator: Any, error: BaseException) -> Any:
    """Return the DataLoader worker process whose death explains an error of its connection, or None."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.startswith("multiprocessing.") for module in modules):
        return None  # the error of a sample
    workers = getattr(iterator, "_workers", [])
    for worker in workers:
        worker.join(1.0 / len(workers))  # a killed worker may take a second in all to show an exit code
    return next((worker for worker in workers if worker.exitcode), None)


def _is_from_a_sample(stop: StopIteration) -> bool:
    """Return whether a map-style dataset or a preparation raised this, which torch would take for the end."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        module = frame.f_globals.get("__name__")
        if module == "torch.utils.data._utils.fetch":
            if type(frame.f_locals["self"]).__name__ == "_MapDatasetFetcher":  # an iterable-style one ends like this
                return True
        elif module == "torch._utils" or frame.f_code is Iteration._prepare.__code__:
            return True  # torch._utils raises again what a worker process raised
    return False


def count_samples(batch: Any, image: str = "image") -> int:
    """Return the length of a batch's images, or of the first thing in it that has a length; 0 if nothing has."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        parts = [batch[image]] if image in batch else [*batch.values()]
    else:
        parts = [*batch] if isinstance(batch, (tuple, list)) else []
    return next(filter(None, (count_samples(part, image) for part in parts)), 0)


class BackgroundBatches(BackgroundIterator[T]):
    """The batches of an iteration, made ahead in a background thread."""

    def __init__(self, iteration: Iteration, depth: int) -> None:
        super().__init__(iteration, depth, iteration.clock, iteration.start)  # type: ignore[arg-type] # see __next__
        self._iteration = iteration

    @override
    def __next__(self) -> T:
        try:
            batch: T = self._iteration.receive(self.thread.take())  # type: ignore[arg-type] # a BatchInTransit
        except BaseException as error:
            self.thread.stop()
            self._iteration.finish(error)
            raise
        return batch


class SynchronousBatches(Iterator[T]):
    """The batches of an iteration, each made in the consumer's thread when it is asked for."""

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._closed = False
        self._reason: str | None = None

    @override
    def __next__(self) -> T:
        if self._closed:
            raise StopIteration if self._reason is None else LoaderError(self._reason)
        clock = self._iteration.clock
        asked = clock.start_waiting()
        try:
            self._iteration.start()
            batch: T = self._iteration.receive(next(self._iteration))
        except BaseException as error:
            self._iteration.finish(error)
            self.close()
            raise
        finally:
            clock.stop_waiting(asked)
        clock.receive()
        return batch

    def close(self, reason: str | None = None) -> None:
        """End the iteration; a reason is the message of the LoaderError that ``next()`` then raises."""
        if not self._closed:
            self._closed, self._reason = True, reason
            self._iteration.close()
