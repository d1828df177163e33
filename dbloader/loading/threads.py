"""A loader whose workers are threads."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from threadpoolctl import ThreadpoolController
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from dbloader._describe import describe
from dbloader._options import checked_flag, whole_number
from dbloader.batches.base import call_now, refuse_stop_iteration, split_size
from dbloader.batches.create import create_fetcher
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.data import Sampler

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.timed import TimedBatch


class ThreadLoader:
    """A DataLoader whose workers are threads of this process: nothing is pickled, copied or started up.

    It suits datasets that release the GIL while they work. LMDBDataset and MongoDataset with one of dbloader's decoders
    do: the records of a batch are read in one round trip from a server, or by all threads from a file, and all threads
    decode their images straight into the tensor of the batch. Python code holds the GIL, so a transform in Python gains
    little from threads, except on a free-threaded Python. Each thread's torch operations use one core, as in a
    DataLoader's worker processes.

    Batches come in order, and so do the errors of their samples. The threads start with the first ``next()``. They have
    ended when the consumer sees the end or an error, and after the iterator's ``close()``. If the iterator is only
    dropped, they end after the batches that were begun.

    Args not named here are those of DataLoader.

    Args:
        dataset: A map-style dataset, which threads can share.
        num_workers: Threads; with 0 the caller's thread makes each batch when it is asked for.
        prefetch_factor: Most batches ahead of the one that was received last, for all threads together; 2 if None.
        timed: Make TimedBatches, from which a PrefetchLoader in front takes its ``stats()``.

    Raises:
        OptionError: ``num_workers`` is below 0 or ``prefetch_factor`` below 1; the dataset is iterable-style, or
            ``batch_size`` is None without a ``batch_sampler``.
        TypeError: One of these numbers is no int; or ``shuffle``, ``pin_memory``, ``drop_last`` or ``timed`` no bool.
        ValueError: torch's DataLoader refuses other arguments.
    """

    whole_batches = True
    """Batches are not collated from samples, so ``write_store`` cannot store the samples."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        pin_memory: bool = False,
        drop_last: bool = False,
        prefetch_factor: int | None = None,
        generator: torch.Generator | None = None,
        timed: bool = False,
        _fetcher: BatchFetcher | None = None,  # the one that create_loader chose
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise OptionError(f"the dataset must have samples at indices, got the iterable {type(dataset).__name__}")
        if batch_size is None and batch_sampler is None:
            raise OptionError("batch_size must be an int, got None: threads make whole batches")
        self.num_workers = whole_number("num_workers", num_workers, 0)
        self.prefetch_factor = 2 if prefetch_factor is None else whole_number("prefetch_factor", prefetch_factor, 1)
        # Makes the samplers and checks the arguments; it is not iterated.
        plan: DataLoader[Any] = DataLoader(
            dataset,
            batch_size,
            checked_flag("shuffle", shuffle, none=True),
            sampler,
            batch_sampler,
            drop_last=checked_flag("drop_last", drop_last),
            generator=generator,
        )
        self.dataset = dataset
        self.batch_size = plan.batch_size
        self.drop_last = plan.drop_last
        self.sampler = plan.sampler
        self.batch_sampler: Any = plan.batch_sampler
        self.generator = generator
        self.collate_fn = collate_fn
        self.pin_memory = checked_flag("pin_memory", pin_memory) and torch.cuda.is_available()
        self.timed = checked_flag("timed", timed)
        self._fetcher = _fetcher or create_fetcher(dataset, collate_fn)
        self._fetcher.pin_memory = self.pin_memory

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __repr__(self) -> str:
        return describe(self)

    def __iter__(self) -> Iterator[Any]:
        order = iter(self.batch_sampler)
        # A DataLoader draws this for the seeds of its workers; so torch.manual_seed gives the same order with both.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return _Batches(self._fetcher.snapshot(), order, self.num_workers, self.prefetch_factor, timed=self.timed)


class _Batches(Iterator[Any]):
    """One run over a ThreadLoader.

    It is no generator: a generator that is dropped runs its ``finally``, at any moment, and shutting an executor down
    takes locks. An executor that is dropped ends its threads without locks.
    """

    def __init__(
        self, fetcher: BatchFetcher, order: Iterator[Sequence[int]], threads: int, ahead: int, *, timed: bool
    ) -> None:
        self._fetcher = fetcher
        # Ask for the first indices now: a sampler that is a generator takes its epoch and draws its seed only then.
        self._order: Iterator[Sequence[int]] | None = itertools.chain([*itertools.islice(order, 1)], order)
        self._threads = threads
        self._ahead = ahead if threads else 0
        self._timed = timed
        self._pending: deque[Finish] = deque()
        self._pool: ThreadPoolExecutor | None = None

    @override
    def __next__(self) -> Any:
        try:
            while self._order is not None and len(self._pending) <= self._ahead:
                self._begin_batch(self._order)
            if self._pending:
                batch = refuse_stop_iteration(self._pending.popleft())
                return batch if self._timed else batch.batch
        except BaseException as error:
            self.close(wait=isinstance(error, Exception))  # Ctrl-C must get out of a dataset that hangs
            raise
        self.close()
        raise StopIteration

    def _begin_batch(self, order: Iterator[Sequence[int]]) -> None:
        """Begin the next batch. An error in that comes out in its place, after the batches before it."""
        try:
            indices = next(order)
            size = self._split_size(len(indices))
            self._pending.append(refuse_stop_iteration(self._fetcher.begin, indices, self._submit(), size))
        except StopIteration:
            self._order = None
        except Exception as error:
            self._order = None
            self._pending.append(functools.partial(_raise, error))

    def _submit(self) -> Submit:
        if not self._threads:
            return call_now
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dbloader-worker", initializer=limit_intraop_threads)
        return self._pool.submit

    def _split_size(self, length: int) -> int:
        if not self._threads:
            return max(1, length)
        # Decoding wants large parts. As batches are begun ahead, all threads have something to do nevertheless.
        batches = self._ahead if self._fetcher.releases_gil else 1
        return split_size(length, -(-self._threads // batches))

    def close(self, *, wait: bool = True) -> None:
        """End the threads, and wait for the parts that they are working on."""
        self._order = None
        self._pending.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=True)


def _raise(error: Exception) -> TimedBatch:
    raise error


def limit_intraop_threads() -> None:
    """Make torch's operations in this thread use one core, as in a DataLoader's worker processes.

    torch splits larger operations among as many threads as there are cores, and each thread that calls it has a team of
    its own: many workers would get into each other's way. OpenMP, which torch uses for that, keeps the size of the team
    for each thread, while ``torch.set_num_threads`` would change it for all later threads.
    """
    torch.get_num_threads()  # when a thread first asks, torch sets its number
    _threadpool_controller().limit(limits=1, user_api="openmp")


@functools.lru_cache(maxsize=1)
def _threadpool_controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes 10 ms
