"""A loader whose workers are threads."""

from __future__ import annotations

import functools
import itertools
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.timed import TimedBatch


class ThreadLoader:
    """The TimedBatches of a BatchFetcher, made by threads of this process: nothing is pickled, copied or started up.

    It suits fetchers that release the GIL. Records come from a file in all threads, or from a server in one round trip
    of one thread. Then all threads decode images into the tensor of the batch. In each thread, torch's operations use
    one core, as in a DataLoader's worker processes.

    Batches and errors come in order. The threads start with the first ``next()``. They have ended when the consumer
    sees the end or an error, and after the iterator's ``close()``. If the consumer only drops the iterator, they end
    after the batches that they have begun.

    Args:
        fetcher: Makes the batches.
        batch_sampler: The indices of each batch.
        num_workers: Threads; with 0 the caller's thread makes each batch when it is asked for.
        dataset: The dataset whose samples are in the batches.
        prefetch_factor: Most batches ahead of the batch that was received last, for all threads together. No more than
            these are in memory.
    """

    whole_batches = True
    """Batches are not collated from samples, so ``write_store`` cannot store the samples."""

    shares_prefetch_factor = True
    """``prefetch_factor`` is for all workers together, not for each."""

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
        # A DataLoader draws this for the seeds of its workers; so torch.manual_seed gives the same order with both.
        torch.empty((), dtype=torch.int64).random_()
        return _Batches(self._fetcher.snapshot(), order, self.num_workers, self.prefetch_factor)


class _Batches(Iterator["TimedBatch"]):
    """One run over a ThreadLoader.

    This is not a generator: a dropped generator runs its ``finally`` at any moment, and shutting an executor down takes
    locks. A dropped executor ends its threads without locks.
    """

    def __init__(self, fetcher: BatchFetcher, order: Iterator[Sequence[int]], threads: int, ahead: int) -> None:
        self._fetcher = fetcher
        # Take the first indices now: only then does a sampler that is a generator choose its epoch and draw its seed.
        self._order: Iterator[Sequence[int]] | None = itertools.chain([*itertools.islice(order, 1)], order)
        self._threads = threads
        self._ahead = ahead if threads else 0
        self._part_size = PartSize(threads)
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
                self._part_size.adapt(asked)
                return batch
        except StopIteration as stop:  # a sample raised it, and it would end the epoch
            self.close()
            raise stop_iteration_error("a sample or batch") from stop
        except BaseException as error:
            self.close(wait=isinstance(error, Exception))  # Ctrl-C must not wait for a dataset that hangs
            raise
        self.close()
        raise StopIteration

    def _begin_batch(self, order: Iterator[Sequence[int]]) -> None:
        """Begin the next batch; keep an error for its place, after the batches before it."""
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
        # Large parts decode faster. All threads are busy even so, because batches are begun ahead.
        batches = self._ahead if self._fetcher.releases_gil else 1
        return max(1, min(self._part_size.most, -(-length // -(-self._threads // batches))))

    def _submit(self) -> Submit:
        if not self._threads:
            return call_now
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dbloader-worker", initializer=limit_intraop_threads)
        return functools.partial(self._part_size.submit, self._pool)

    def close(self, *, wait: bool = True) -> None:
        """End the threads, and wait for the parts that they are working on."""
        self._order = None
        self._pending.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=True)


class PartSize:
    """How many samples a thread makes at a time: fewer while threads are idle because one of them is late.

    A thread that has some slow images among many delays its batch, and the batches after it cannot begin. With smaller
    parts the other threads take over the rest.
    """

    # Parts of one sample took a fifth longer, for handing them over; parts of 16 took 3 % longer than parts of 32.
    _LARGEST = 32
    _IDLE_SHARE = 0.05  # of the time of all threads, since the last batch

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._limit = float(self._LARGEST)
        self._lock = threading.Lock()
        self._open = 0
        self._ends: deque[float] = deque(maxlen=max(1, threads))
        self._last = now()

    @property
    def most(self) -> int:
        """Most samples in a part."""
        return int(self._limit)

    def submit(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a part, and note when it ends."""
        with self._lock:
            self._open += 1
        future = pool.submit(function, *arguments)
        future.add_done_callback(self._end)
        return future

    def _end(self, _: Future[Any]) -> None:
        with self._lock:
            self._open -= 1
            self._ends.append(now())

    def adapt(self, asked: float) -> None:
        """Adapt the size to the time that threads were idle while a batch was awaited, since ``asked``."""
        ended = now()
        with self._lock:
            ends = [*self._ends][min(0, self._open - self._threads) or len(self._ends) :]
        idle = sum(ended - max(end, asked) for end in ends)
        if idle > self._IDLE_SHARE * self._threads * (ended - self._last):
            self._limit = max(1.0, self._limit / 2)
        else:
            self._limit = min(self._LARGEST, self._limit * 1.05)
        self._last = ended


def _raise(error: Exception) -> TimedBatch:
    raise error


def limit_intraop_threads() -> None:
    """Make torch's operations in this thread use one core, as in a DataLoader's worker processes.

    torch splits larger operations among as many threads as there are cores, and each thread that calls torch has a team
    of threads of its own. Many workers would slow each other down. OpenMP, which torch uses here, keeps the size of the
    team for each thread. ``torch.set_num_threads`` would change it for all later threads.
    """
    torch.get_num_threads()  # torch sets a thread's number at its first call; do that before the limit
    _threadpool_controller().limit(limits=1, user_api="openmp")


@functools.lru_cache(maxsize=1)
def _threadpool_controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes 10 ms
