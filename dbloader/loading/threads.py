"""A loader whose workers are threads."""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

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

    from dbloader.batches.base import BatchFetcher, Finish
    from dbloader.batches.timed import TimedBatch

_IDLE_SHARE = 0.05  # parts get smaller if workers are idle for more than this share of their time


class ThreadLoader:
    """Makes the batches of a BatchFetcher in threads of this process. Nothing is pickled or copied.

    Threads suit fetchers that release the GIL. From a file, all threads read records. From a server, one thread
    requests all records of a batch in one round trip. In both cases, all threads decode images into the tensor of the
    batch. In each thread, torch's operations use one core, as in a DataLoader's worker processes.

    Batches and errors come in order. The threads start with the first ``next()``. ``close()`` waits until they have
    ended, and so does ``next()`` before it raises an error or StopIteration. If the consumer only drops the iterator,
    the threads finish the batches that they have begun, and then end.

    Args:
        fetcher: Makes the batches.
        batch_sampler: The indices of each batch.
        num_workers: Number of threads. With 0, the caller's thread makes each batch in ``next()``.
        dataset: The dataset whose samples are in the batches.
        prefetch_factor: Largest number of batches that all threads together make ahead of the last received batch.
    """

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

    @property
    def batches_ahead(self) -> int:
        """The most batches that the workers make ahead of the last received batch."""
        return self.prefetch_factor

    @property
    def advice(self) -> str | None:
        """Advice to use worker processes, which are usually faster; None if processes are not faster or not allowed."""
        alone = self._fetcher.releases_gil and self._fetcher.image_nbytes is None  # as in create.choose_workers
        if not self.num_workers or alone or multiprocessing.current_process().daemon:
            return None
        return "worker_type='processes' is usually faster, but starts slowly where processes are not forked"

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_fetcher" in vars(self) and not name.startswith("_"):
            raise AttributeError(f"create_loader's loader would ignore {name!r}: make a new loader with other options")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return describe(self)

    def __iter__(self) -> Iterator[TimedBatch]:
        order = iter(self.batch_sampler)
        # Draw a number, as a DataLoader does for its workers. So torch.manual_seed gives the same order in both.
        torch.empty((), dtype=torch.int64).random_()
        threads = _Threads(self._fetcher, self.num_workers, self.prefetch_factor)
        return Batches(threads, order, self.prefetch_factor if self.num_workers else 0)


class Team(Protocol):
    """Makes the batches of one iteration, in threads or processes."""

    def begin(self, indices: Sequence[int]) -> Finish:
        """Begin a batch. The returned function waits for the batch."""

    def close(self, *, wait: bool) -> None:
        """End the iteration. With ``wait``, also wait for threads that are making a part."""


class Batches(Iterator["TimedBatch"]):
    """One iteration over a ThreadLoader or a ProcessLoader.

    A generator that shuts down its executor in a ``finally`` would be shorter, but could wait forever. Garbage
    collection may run the ``finally`` in a thread that already holds a lock, and the shutdown needs this lock. If this
    object is dropped, its executor is dropped too, and ends its threads without locks.

    Args:
        team: Makes the batches.
        order: The indices of each batch.
        ahead: Largest number of batches to begin after the batch that the consumer waits for.
    """

    def __init__(self, team: Team, order: Iterator[Sequence[int]], ahead: int) -> None:
        self._team, self._ahead = team, ahead
        # Take the first indices now: a sampler that is a generator chooses its epoch and seed at its first index.
        self._order: Iterator[Sequence[int]] | None = itertools.chain([*itertools.islice(order, 1)], order)
        self._pending: deque[Finish] = deque()

    def begin(self) -> None:
        """Begin the next batches. Keep an error of the sampler, and raise it after the earlier batches."""
        while self._order is not None and len(self._pending) <= self._ahead:
            try:
                indices = next(self._order, None)
                if indices is None:
                    self._order = None
                else:
                    self._pending.append(self._team.begin(indices))
            except Exception as error:
                self._order = None
                self._pending.append(functools.partial(_raise, error))

    @override
    def __next__(self) -> TimedBatch:
        try:
            self.begin()
            if self._pending:
                return self._pending.popleft()()
        except StopIteration as stop:  # a sample raised it, and it would silently end the epoch
            self.close()
            raise stop_iteration_error("a sample or batch") from stop
        except BaseException as error:
            self.close(wait=isinstance(error, Exception))  # Ctrl-C must not wait for a dataset that hangs
            raise
        self.close()
        raise StopIteration

    def close(self, *, wait: bool = True) -> None:
        """End the iteration."""
        self._order = None
        self._pending.clear()
        self._team.close(wait=wait)


class _Threads:
    """The threads of one iteration, which start with the first batch."""

    def __init__(self, fetcher: BatchFetcher, threads: int, ahead: int) -> None:
        self._fetcher, self._threads, self._ahead = fetcher, threads, ahead
        self._idling, self._part_size = _Idling(threads), PartSize(threads, 32)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, indices: Sequence[int]) -> Finish:
        if not self._threads:
            return self._fetcher.begin(indices, call_now, max(1, len(indices)))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dbloader-worker", initializer=limit_intraop_threads)
        # Large parts decode faster. They may be large, because the batches that are begun ahead also keep threads busy.
        batches = self._ahead if self._fetcher.releases_gil else 1
        most = math.ceil(len(indices) / math.ceil(self._threads / batches))
        submit = functools.partial(self._idling.submit, self._pool)
        finish = self._fetcher.begin(indices, submit, max(1, min(self._part_size.most, most)))
        return functools.partial(self._finish, finish)

    def _finish(self, finish: Finish) -> TimedBatch:
        asked = now()
        batch = finish()
        self._part_size.adapt(self._idling.since(asked))
        return batch

    def close(self, *, wait: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=True)


class PartSize:
    """The number of samples that a worker makes at a time. It becomes smaller while other workers are idle.

    A worker that gets slow images delays its batch and the batches after it, because batches come in order.
    If parts are small, the other workers can make the rest of the batch. But small parts take more time. Compared with
    parts of 32 images, an image takes up to 3 % longer in parts of 16, 8 % in parts of 4, and 20 % in parts of one.
    """

    def __init__(self, workers: int, largest: int) -> None:
        self._workers, self._largest = workers, largest
        self._limit = float(largest)
        self._last = now()

    @property
    def most(self) -> int:
        """Largest number of samples in a part."""
        return int(self._limit)

    def adapt(self, idle_s: float) -> None:
        """Adapt the size after a batch. ``idle_s`` is the idle time of all workers while the consumer waited."""
        ended = now()
        if idle_s > _IDLE_SHARE * self._workers * (ended - self._last):
            self._limit = max(1.0, self._limit / 2)
        else:
            self._limit = min(self._largest, self._limit * 1.05)
        self._last = ended


class _Idling:
    """Measures how long threads are idle."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._open = 0
        self._ends: deque[float] = deque(maxlen=max(1, threads))

    def submit(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a part, and note the time at which it ends."""
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
        """For the threads that are idle now, return the sum of their idle seconds since ``asked``."""
        ended = now()
        with self._lock:
            idle = self._threads - self._open
            ends = [*self._ends][-idle:] if idle > 0 else []
        return sum(ended - max(end, asked) for end in ends)


def _raise(error: Exception) -> TimedBatch:
    raise error


def limit_intraop_threads() -> None:
    """Make torch's operations in this thread use one core, as in a DataLoader's worker processes.

    For a larger operation, torch gives the calling thread a team of threads, one for each core. The teams of many
    workers would slow each other down. OpenMP, which torch uses for this, stores a team size for each calling thread.
    ``torch.set_num_threads`` would also change the size for all later threads.
    """
    torch.get_num_threads()  # torch's first call in a thread would undo the next line if it came later
    _threadpool_controller().limit(limits=1, user_api="openmp")


@functools.lru_cache(maxsize=1)
def _threadpool_controller() -> ThreadpoolController:
    return ThreadpoolController()  # takes 10 ms to look through all loaded libraries
