"""One iteration over a loader: take each batch from the loader, send and prepare it, and give it to the consumer."""

from __future__ import annotations

import dataclasses
import functools
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import override

from dbloader._describe import stop_iteration_error
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.errors import LoaderError
from dbloader.loading.background import BackgroundIterator
from dbloader.loading.checkpoint import Position
from dbloader.loading.stats import Clock, SourceStats
from dbloader.loading.torch_workers import close_iterator, find_killed_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.batches.timed import SkippedSample
    from dbloader.device.preparation import Preparation
    from dbloader.device.transfer import Transfer
    from dbloader.loading.checkpoint import State

T = TypeVar("T")


class BatchInTransit(NamedTuple):
    """A batch on its way to the consumer, with the loader's own state after this batch."""

    made: TimedBatch
    snapshot: State | None


class Iteration(Iterator[BatchInTransit]):
    """One run over a loader.

    The background thread calls ``next()`` and ``close()``. ``next()`` makes a batch, sends it to the device and
    prepares it. The consumer calls ``start()``, ``receive()`` and ``finish()``.

    Args:
        make_iterator: Returns the loader's iterator, and a Position for counting batches. ``start()`` calls it once.
        transfer: Sends batches to the device; None leaves them where they are.
        preparation: Prepares batches on the device; None does nothing.
        check_skipped: As in BatchFetcher.
        counts_samples: Whether to count the samples of batches. False if the loader may yield single samples.
    """

    def __init__(
        self,
        make_iterator: Callable[[], tuple[Iterator[Any], Position]],
        transfer: Transfer | None,
        preparation: Preparation | None,
        check_skipped: Callable[[Sequence[SkippedSample], int, Sequence[SkippedSample]], None] | None,
        *,
        counts_samples: bool,
    ) -> None:
        self.clock = Clock()
        self._make_iterator: Callable[[], tuple[Iterator[Any], Position]] | None = make_iterator
        self._iterator: Iterator[Any] = iter(())
        self._position = Position()
        self._transfer = transfer
        self._preparation = preparation
        self._image = "image" if preparation is None else preparation.image
        self._counts_samples = counts_samples
        self._check_skipped = check_skipped
        self._number = 0
        self._active = ActiveLoader()

    def start(self) -> None:
        """Make the loader's iterator in the consumer's thread, unless it was made before."""
        if self._transfer is not None:
            self._transfer.begin()
        make_iterator, self._make_iterator = self._make_iterator, None
        if make_iterator is not None:
            self._iterator, self._position = make_iterator()

    @override
    def __next__(self) -> BatchInTransit:
        try:
            began = now()
            made = next(self._iterator)
            snapshot = self._position.snapshot()
            if type(made) is not TimedBatch:
                made = TimedBatch(made, Work(), count_samples(made, self._image))
            ended = now()
            self.clock.add_batch(made, ended - began)
            made = dataclasses.replace(made, batch=self._prepare(made.batch, made.samples))
            self.clock.stats.copied_s += now() - ended
        except StopIteration as stop:
            if _is_from_a_sample(stop):
                raise stop_iteration_error("a sample or batch") from stop
            raise
        except (OSError, EOFError) as error:
            worker = find_killed_worker(self._iterator, error)
            if worker is None:
                raise
            # If a worker dies while torch receives its batch, the error of torch does not name the worker.
            raise LoaderError(f"DataLoader worker (pid {worker.pid}) exited unexpectedly: {error}") from error
        self._number += 1
        return BatchInTransit(made, snapshot)

    def _prepare(self, batch: Any, samples: int) -> Any:
        prepare = None
        if self._preparation is not None:
            from torch import no_grad  # adds no time: the Preparation has imported torch already

            rng = self._position.sample_rng(self._number, samples)
            # no_grad applies to one thread, so the consumer's setting has no effect in this thread.
            prepare = no_grad()(functools.partial(self._preparation, rng=rng))
        if self._transfer is not None:
            return self._transfer.start(batch, prepare)
        return batch if prepare is None else prepare(batch)

    def receive(self, in_transit: BatchInTransit) -> Any:
        """Count a batch as received and return it. This is called in the consumer's thread."""
        made = in_transit.made
        if made.skipped and self._check_skipped is not None:  # may raise an error, so do not count the batch yet
            self._check_skipped(made.skipped, *self.clock.stats.skip(made.skipped))
        self._position.receive(in_transit.snapshot)
        self._active.receive(self._position)
        if made.samples and self._counts_samples:
            self.clock.stats.samples = made.samples + (self.clock.stats.samples or 0)
        for name, (samples, waited_s) in made.sources.items():
            source = self.clock.stats.sources.setdefault(name, SourceStats())
            source.samples, source.waited_s = source.samples + samples, source.waited_s + waited_s
        return made.batch if self._transfer is None else self._transfer.receive(made.batch)

    def finish(self, error: BaseException) -> None:
        """Handle the StopIteration or error that ended the iteration. This is called in the consumer's thread."""
        self._active.finish()
        if not isinstance(error, StopIteration):
            self._position.fail()
        else:
            self._position.end()

    def close(self) -> None:
        """Close the loader's iterator, and end its workers unless they are persistent."""
        self._make_iterator = None
        iterator, self._iterator = self._iterator, iter(())
        close_iterator(iterator)


def _is_from_a_sample(stop: StopIteration) -> bool:
    """Return whether the code for a sample or for preparing a batch raised this StopIteration, not the epoch's end."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        code, module = frame.f_code, frame.f_globals.get("__name__")
        # _MapDatasetFetcher reads map-style datasets. For an iterable-style dataset, StopIteration is the normal end.
        if module == "torch.utils.data._utils.fetch" and code.co_qualname.startswith("_MapDatasetFetcher."):
            return True
        if module == "torch._utils" or code is Iteration._prepare.__code__:
            return True  # torch._utils reraises the errors of worker processes
    return False


def count_samples(batch: Any, image: str = "image") -> int:
    """Return the number of samples in a batch: the length of its images, or of its first tensor that is not empty."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        parts = [batch[image]] if image in batch else [*batch.values()]
    else:
        parts = [*batch] if isinstance(batch, (tuple, list)) else []
    return next(filter(None, (count_samples(part, image) for part in parts)), 0)


class ActiveLoader:
    """Shows Accelerate which batch is the last of an epoch.

    At this batch, ``Accelerator.accumulate`` steps the optimizer even after fewer batches than usual, so no gradients
    are left for the next epoch. Accelerate recognizes this batch by ``end_of_dataloader`` of the active loader. Only
    Accelerate's own loaders have this attribute, so a PrefetchLoader registers an ActiveLoader in the GradientState.

    Attributes:
        end_of_dataloader: Whether the consumer has received the last batch of its epoch.
        remainder: Always 0, because no samples were repeated to fill the last batch. ``gather_for_metrics`` reads it.
    """

    remainder = 0

    def __init__(self) -> None:
        self.end_of_dataloader = False

    def receive(self, position: Position) -> None:
        """Tell Accelerate whether the received batch, which ``position`` already counts, is the last."""
        state = self._gradient_state()
        if state is not None:
            self.end_of_dataloader = position.is_at_end
            # Check this at each batch: if an evaluation was left early, its loader is still the active loader.
            if state.active_dataloader is not self:
                state._remove_dataloader(self)
                state._add_dataloader(self)

    def finish(self) -> None:
        """Tell Accelerate that the iteration has ended."""
        state = self._gradient_state()
        if state is not None:
            state._remove_dataloader(self)

    @staticmethod
    def _gradient_state() -> Any:
        """Return Accelerate's GradientState, or None in a program that has not imported Accelerate."""
        kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
        return None if kind is None else kind()


class BackgroundBatches(BackgroundIterator[T]):
    """The batches of an iteration, made ahead in a background thread."""

    def __init__(self, iteration: Iteration, depth: int) -> None:
        super().__init__(iteration, depth, iteration.clock, iteration.start)  # type: ignore[arg-type] # see __next__
        self._iteration = iteration

    @override
    def __next__(self) -> T:
        try:
            batch: T = self._iteration.receive(self.thread.take())  # type: ignore[arg-type] # a BatchInTransit
            self.thread.make_room()  # only now: receive() records the CUDA event that the next batch must wait for
        except BaseException as error:
            closed = self.thread.stopped
            self.thread.stop_after(error)
            if not (closed and isinstance(error, StopIteration)):  # close() does not end the epoch
                self._iteration.finish(error)
            raise
        return batch
