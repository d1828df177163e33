"""The base classes that make batches, in one thread or in many.

``BatchFetcher.begin`` reads the records of the batch, and submits parts of the batch to threads, which decode the
images. Exception: for an LMDB file, a TensorBatchFetcher only asks the kernel to read ahead, and the threads read the
records. The function that ``begin`` returns waits for the parts and collates them. The batch is the same for any number
of threads and parts.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.sampling.rng import seed_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from dbloader.batches.timed import SkippedSample

Submit: TypeAlias = "Callable[..., Future[Any]]"
Finish: TypeAlias = "Callable[[], TimedBatch]"
Slot: TypeAlias = "Callable[[tuple[int, ...]], tuple[Any, Any]] | None"


class BatchFetcher(ABC):
    """Makes the batches of a dataset. A BatchFetcher can be pickled if its dataset can.

    Attributes:
        dataset: The dataset whose samples are in the batches.
        releases_gil: Whether threads do nearly all of the work without the GIL.
        image_nbytes: Bytes of each image in a batch, if one uint8 tensor holds all images; else None.
        check_skipped: A function that warns about each skipped sample once, and raises LoaderError if too many are
            skipped. Its arguments are the samples skipped now, and the number and the first 100 of all samples that
            this process has skipped in the epoch. None if no sample may be skipped.
    """

    dataset: Any
    releases_gil = False
    image_nbytes: int | None = None
    check_skipped: Callable[[Sequence[SkippedSample], int, Sequence[SkippedSample]], None] | None = None

    @abstractmethod
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        """Read the samples at some indices, and submit parts of ``size`` samples; the last part may be smaller.

        Args:
            indices: The indices of the samples. If they are SeededIndices, they decide all random numbers of the batch.
            submit: Calls a function with arguments in any thread, now or later, like ``Executor.submit``.
            size: The number of samples in a part.
            read: Whether to read all samples now. False if this worker makes only some of the parts. Then each part
                reads its own samples.
            slot: Makes shared memory for images of a shape, like ``SharedBatchPool.allocate``; None for private memory.

        Returns:
            A function that returns the batch, or raises an error of one of its samples.
        """


class DatasetBatchFetcher(BatchFetcher):
    """Makes the samples of one dataset in two steps: ``read`` and ``make``. A mixture has a fetcher per dataset."""

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        began = now()
        images, pixels = self.allocate(len(indices), slot)
        parts = [slice(start, start + size) for start in range(0, len(indices), size)]
        if read:
            given = self.read(indices)
            futures = [submit(self.make, given, part, pixels[part]) for part in parts]
        else:
            futures = [submit(self._read_and_make, part_of(indices, part), pixels[part]) for part in parts]
        return functools.partial(self._finish, indices, images, futures, now() - began)

    def allocate(self, count: int, slot: Slot) -> tuple[Any, Sequence[Any]]:
        """Return a tensor for the images of a batch, and an array to decode images into. They share their memory.

        ``slot`` is the argument of ``begin``. If ``make`` returns samples with images, return (None, ()).
        """
        return None, ()

    @abstractmethod
    def read(self, indices: Sequence[int], rows: Sequence[Any] | None = None) -> Any:
        """Read the records at some indices, or let the kernel read them ahead. Return what ``make`` needs.

        ``rows`` contains the random numbers, one row for each sample. If it is None, ``read`` draws them.
        """

    @abstractmethod
    def make(self, given: Any, part: slice, pixels: Sequence[Any] = ()) -> tuple[list[Any], Work]:
        """Make some samples of a batch, in any thread. Return the samples, and the time spent on them.

        Args:
            given: The result of ``read``.
            part: Which samples to make.
            pixels: The memory from ``allocate`` to decode each image into. If given, return the samples without images.
        """

    @abstractmethod
    def collate(self, indices: Sequence[int], images: Any, samples: list[Any]) -> Any:
        """Return a batch, given the images from ``allocate`` and the samples from ``make``."""

    def _read_and_make(self, indices: Sequence[int], pixels: Sequence[Any]) -> tuple[list[Any], Work]:
        began = now()
        given = self.read(indices)
        read = Work(now() - began)
        samples, work = self.make(given, slice(None), pixels)
        return samples, read + work

    def _finish(
        self, indices: Sequence[int], images: Any, futures: list[Future[tuple[list[Any], Work]]], read: float
    ) -> TimedBatch:
        parts = [future.result() for future in futures]
        began = now()
        samples = [sample for some, _ in parts for sample in some]
        batch = self.collate(indices, images, samples)
        serial = Work(read, 0.0, now() - began)
        return TimedBatch(batch, sum((work for _, work in parts), serial), len(samples), serial=serial.total)


class OuterBatchFetcher(BatchFetcher):
    """Makes batches by passing changed indices to another fetcher."""

    def __init__(self, dataset: Any, fetcher: BatchFetcher) -> None:
        self.dataset = dataset
        self.inner = fetcher
        self.releases_gil = fetcher.releases_gil
        self.image_nbytes = fetcher.image_nbytes


def part_of(indices: Sequence[Any], part: slice) -> Sequence[Any]:
    """Return a part of the indices or records of a batch. A part of SeededIndices has the positions of its samples."""
    return seed_like(indices, indices[part], part)


def row_for_each(rows: np.ndarray[Any, Any] | None, length: int) -> Sequence[Any]:
    """Return a row of random numbers for each sample of a batch, or None for each if nothing is random."""
    return [None] * length if rows is None else rows  # type: ignore[return-value] # an array is indexed like a list


def call_now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in this thread; return a Future with its result or error, like ``Executor.submit``."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future
