"""Make a batch, in one thread or in many.

It takes three steps. ``begin`` reads the records, or announces them to a store that each decoding thread reads itself.
``submit`` hands parts of the batch to threads, which decode them. The function that ``begin`` returned waits for the
parts and collates the rest. The batch does not depend on who makes it, nor on the number of parts.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import override

from dbloader._describe import stop_iteration_error
from dbloader.datasets.store import StoreDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.batches.shared_memory import SharedBatchPool
    from dbloader.batches.timed import TimedBatch

T = TypeVar("T")
Submit: TypeAlias = "Callable[..., Future[Any]]"
Finish: TypeAlias = "Callable[[], TimedBatch]"


class BatchFetcher(ABC):
    """Makes the batches of a dataset. It can be pickled if the dataset can.

    Attributes:
        dataset: The dataset whose samples are in the batches.
        pin_memory: Whether the tensors that it makes are in pinned memory, from which they are copied to a GPU.
        releases_gil: Whether nearly all of the work is done without the GIL, so that threads share it well.
        image_nbytes: Bytes of each image in the batches, if they are in one tensor of uint8; else None.
        shared_pool: Memory for that tensor, for the worker processes that this is sent to.
    """

    dataset: Any
    pin_memory = False
    releases_gil = False
    image_nbytes: int | None = None
    shared_pool: SharedBatchPool | None = None

    @abstractmethod
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        """Read the samples at some indices, and decode at most ``size`` of them in each call of ``submit``.

        SeededIndices decide all random numbers of the batch. ``submit`` calls a function with some arguments in any
        thread, now or later, like ``Executor.submit``. Return a function that returns the batch, or raises the first
        error of its samples.
        """

    def snapshot(self) -> BatchFetcher:
        """Return a fetcher of the same batches that ``MongoDataset.refresh`` does not change."""
        if not isinstance(self.dataset, StoreDataset) or not hasattr(self.dataset, "refresh"):
            return self
        fetcher = copy.copy(self)
        fetcher.dataset = copy.copy(self.dataset)
        return fetcher

    def __getitems__(self, indices: Sequence[int]) -> TimedBatch:
        """Make a batch in this thread; the worker processes of a DataLoader call this."""
        return self.begin(indices, call_now, max(1, len(indices)))()


class OuterBatchFetcher(BatchFetcher):
    """Makes the batches of a dataset with the fetcher of another one, or with other indices."""

    def __init__(self, dataset: Any, fetcher: BatchFetcher) -> None:
        self.dataset = dataset
        self.inner = fetcher
        self.releases_gil = fetcher.releases_gil
        self.image_nbytes = fetcher.image_nbytes

    @override
    def snapshot(self) -> BatchFetcher:
        fetcher = copy.copy(self)
        fetcher.inner = self.inner.snapshot()
        return fetcher

    def _begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        self.inner.pin_memory = self.pin_memory
        self.inner.shared_pool = self.shared_pool
        return self.inner.begin(indices, submit, size)


def split(length: int, size: int) -> list[slice]:
    """Return the parts of a batch, each of at most ``size`` samples."""
    return [slice(start, start + size) for start in range(0, length, size)]


def split_size(length: int, threads: int) -> int:
    """Return how many samples of a batch each thread should decode at a time."""
    # With one each, handing them over took a fifth of the time; with 16 a sample took 3 % longer than with 32.
    return max(1, min(32, -(-length // threads)))


def call_now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in this thread, and return its result like ``Executor.submit``."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def refuse_stop_iteration(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that makes a batch; turn StopIteration, which would end the epoch, into a LoaderError."""
    try:
        return function(*arguments)
    except StopIteration as stop:
        raise stop_iteration_error("a sample or batch") from stop
