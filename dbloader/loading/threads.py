"""A loader whose workers are threads."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from threadpoolctl import ThreadpoolController
from torch.utils.data import SequentialSampler
from typing_extensions import override

from dbloader._describe import describe, stop_iteration_error
from dbloader.batches.base import call_now
from dbloader.batches.timed import now
from dbloader.loading.part_size import PartSize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.timed import TimedBatch


class ThreadLoader:
    """Makes the batches of a BatchFetcher in threads of this process. Nothing is pickled or copied.

    It suits fetchers that release the GIL. All threads read records from a file, or one thread requests them from a
    server in one round trip. Then all threads decode images into the tensor of the batch. In each thread, torch's
    operations use one core, as in a DataLoader's worker processes.

    Batches and errors are in order. The threads start with the first ``next()``. They have ended when ``next()`` raises
    an error or StopIteration, and after the iterator's ``close()``. If the consumer only drops the iterator, they end
    after the batches that they have begun.

    Args:
        fetcher: Makes the batches.
        batch_sampler: The indices of each batch.
        num_workers: Number of threads. With 0 the caller's thread makes each batch when it is asked for.
        dataset: The dataset whose samples are in the batches.
        prefetch_factor: Most batches ahead of the last received batch, finished or not, for all threads together.
    """

    whole_batches = True
    """Whether batches are made as a whole, so ``write_store`` cannot store their samples."""

    shares_prefetch_factor = True
    """Whether ``prefetch_factor`` counts the batches of all workers together, not of each worker."""

    # The same values as in a DataLoader that has a batch_sampler; frameworks read them.
    batch_size = None
    drop_last = False

    def __init__(
        self, fetcher: BatchFetcher, batch_sampler: Any, num_workers: int, *, dataset: Any, prefetch_factor: int
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.sampler: SequentialSampler = SequentialSampler(dataset)
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.check_skipped = fetcher.check_skipped
        self._fetcher = fetcher

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __repr__(self) -> str:
        return describe(self)

    def __iter__(self) -> Iterator[TimedBatch]:
        order = iter(self.batch_sampler)
        # A DataLoader draws this number too, for its workers. So torch.manual_seed gives the same order with both.
        torch.empty((), dtype=torch.int64).random_()
        return _Batches(self._fetcher.snapshot(), order, self.num_workers, self.prefetch_factor)


class _Batches(Iterator["TimedBatch"]):
    """One run over a ThreadLoader.

    This is not a generator. Python may run the ``finally`` of a dropped generator at any moment, and shutting an
    executor down takes locks. A dropped executor ends its threads without locks.
    """

    def __init__(self, fetcher: BatchFetcher, order: Iterator[Sequence[int]], threads: int, ahead: int) -> None:
        self._fetcher = fetcher
        # Take the first indices now, because a sampler that is a generator chooses its epoch and seed only then.
        self._order: Iterator[Sequence[int]] | None = itertools.chain([*itertools.islice(order, 1)], order)
        self._threads = threads
        self._ahead = ahead if threads else 0
        self._idling, self._part_size = _Idling(threads), PartSize(threads, 32)
        self._pending: deque[Finish] = deque()
        self._pool: ThreadPoolExecutor | None = None

    @override
    def __next__(self) -> TimedBatch:
        try:
            while self._order is not None and len(self._pending) <= self._ahead:
                self._begin_batch(self._order)
            if self._pending:
                asked = now()
                batch = self._pending.popleft()()
                self._part_size.adapt(self._idling.since(asked))
                return batch
        except StopIteration as stop:  # raised by a sample; it would silently end the epoch
            self.close()
            raise stop_iteration_error("a sample or batch") from stop
        except BaseException as error:
            self.close(wait=isinstance(error, Exception))  # Ctrl-C must not wait for a dataset that hangs
            raise
        self.close()
        raise StopIteration

    def _begin_batch(self, order: Iterator[Sequence[int]]) -> None:
        """Begin the next batch. Keep an error, and raise it after the earlier batches."""
        try:
            indices = next(order, None)
            if indices is None:
                self._order = None
            else:
                self._pending.append(self._fetcher.begin(indices, self._submit(), self._split_size(len(indices))))
        except Exception as error:
            self._order = None
            self._pending.append(functools.partial(_raise, error))

    def _split_size(self, length: int) -> int:
        """Return how many samples of a batch each thread decodes at a time."""
        if not self._threads:
            return max(1, length)
        # Large parts decode faster. All threads are still busy, because several batches are begun ahead.
        batches = self._ahead if self._fetcher.releases_gil else 1
        parts = math.ceil(self._threads / batches)
        return max(1, min(self._part_size.most, math.ceil(length / parts)))

    def _submit(self) -> Submit:
        if not self._threads:
            return call_now
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dbloader-worker", initializer=limit_intraop_threads)
        return functools.partial(self._idling.submit, self._pool)

    def close(self, *, wait: bool = True) -> None:
        """End the threads, and wait for the parts that they are working on."""
        self._order = None
        self._pending.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=True)


class _Idling:
    """Measures how long threads are idle."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._open = 0
        self._ends: deque[float] = deque(maxlen=max(1, threads))

    def submit(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a part, and record when it ends."""
        with self._lock:
            self._open += 1
        future = pool.submit(function, *arguments)
        future.add_done_callback(self._end)
        return future

    def _end(self, _: Future[Any]) -> None:
        with self._lock:
            self._open -= 1
            self._ends.append(now())

    def since(self, asked: float) -> float:
        """Return the idle seconds since ``asked``, summed over the threads that are idle now."""
        ended = now()
        with self._lock:
            idle = self._threads - self._open
            ends = [*self._ends][-idle:] if idle > 0 else []
        return sum(ended - max(end, asked) for end in ends)


def _raise(error: Exception) -> TimedBatch:
    raise error


def limit_intraop_threads() -> None:
    """Make torch's operations in this thread use one core, as in a DataLoader's worker processes.

    For larger operations, each thread that calls torch has its own team of threads, one for each core. Many workers
    would slow each other down. OpenMP, which torch uses for this, stores the size of the team for each thread.
    ``torch.set_num_threads`` would change the size for all later threads.
    """
    torch.get_num_threads()  # torch's first call in a thread sets the size, and would undo an earlier limit
    _threadpool_controller().limit(limits=1, user_api="openmp")


@functools.lru_cache(maxsize=1)
def _threadpool_controller() -> ThreadpoolController:
    return ThreadpoolController()  # takes 10 ms to look through all loaded libraries
