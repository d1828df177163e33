"""A loader whose workers are threads."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from dbloader._describe import describe
from dbloader._options import checked_flag, whole_number
from dbloader.batches.base import call, part_size, whole
from dbloader.batches.create import create_fetcher
from dbloader.batches.threads import limit_intraop_threads
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.data import Sampler

    from dbloader.batches.base import BatchFetcher, Finish, Submit
    from dbloader.batches.timed import TimedBatch

_THREAD_NAME = "dbloader-worker"


class ThreadLoader:
    """A DataLoader whose workers are threads of this process: nothing is pickled, copied to it, or started anew.

    It suits datasets that let Python's lock go where they work. LMDBDataset and MongoDataset with one of dbloader's
    decoders do: the records of a batch are read at once from a server, or by all threads from a file, which has been
    told of them, and their images decoded by all threads straight into the tensor of the batch. Python code holds the
    lock, so a transform in Python gains little from threads; on a free-threaded Python it does. What a worker calls of
    torch runs in its own thread alone, as in a DataLoader's processes.

    Batches come in their order, with the errors of their samples at their place. A PrefetchLoader in front takes
    TimedBatches too, and then tells in its ``stats()`` what they took; ``create_loader`` puts both together. The
    threads begin with the first ``next()``. They have ended when the consumer sees the end or an error, and after the
    iterator's ``close()``; where it is only dropped, they end after the batches that were begun.

    Args:
        dataset: A map-style dataset, which threads can share.
        batch_size: Samples in a batch.
        shuffle: Take torch's RandomSampler.
        sampler: The order of the samples: an iterable with a length.
        batch_sampler: Gives the indices of each batch, in place of the four arguments around it.
        num_workers: Threads; with 0 the caller's makes the batches, each when it is asked for.
        collate_fn: Makes a batch of a list of samples; torch's if None.
        pin_memory: Make the batches in pinned memory, from which they are copied to a GPU.
        drop_last: Leave out the last batch if it has fewer samples.
        prefetch_factor: Batches that are in the making or made, at the most, beside the one that was given last; 2 if
            None. Unlike DataLoader's, it is not for each worker.
        generator: Of the shuffling.
        timed: Whether the batches come as TimedBatches, for a PrefetchLoader in front.
        maker: Makes the batches; chosen for the dataset if None.

    Raises:
        OptionError: ``num_workers`` is below 0 or ``prefetch_factor`` below 1; the dataset is iterable-style, or
            ``batch_size`` is None without a ``batch_sampler``.
        TypeError: One of them is no int; or ``shuffle``, ``pin_memory``, ``drop_last`` or ``timed`` no bool.
        ValueError: torch's DataLoader refuses the others.
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
        maker: BatchFetcher | None = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise OptionError(f"the dataset must have samples at indices, got the iterable {type(dataset).__name__}")
        if batch_size is None and batch_sampler is None:
            raise OptionError("batch_size must be an int, got None: threads make whole batches")
        self.num_workers = whole_number("num_workers", num_workers, 0)
        self.prefetch_factor = 2 if prefetch_factor is None else whole_number("prefetch_factor", prefetch_factor, 1)
        # Its samplers and its checks of the arguments are wanted, not its iterator.
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
        self._maker = maker or create_fetcher(dataset, collate_fn)
        self._maker.pin_memory = self.pin_memory

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __repr__(self) -> str:
        return describe(self)

    def __iter__(self) -> Iterator[Any]:
        order = iter(self.batch_sampler)
        # As a DataLoader draws for the seeds of its workers: so that torch.manual_seed gives the same order with both.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return _Batches(self._maker.as_now(), order, self.num_workers, self.prefetch_factor, timed=self.timed)


class _Batches(Iterator[Any]):
    """One run over a ThreadLoader.

    No generator, as that would do something when it is dropped, which may be in the middle of anything, and to end an
    executor takes locks. An executor that is dropped itself ends its threads without.
    """

    def __init__(
        self, maker: BatchFetcher, order: Iterator[Sequence[int]], threads: int, ahead: int, *, timed: bool
    ) -> None:
        self._maker = maker
        # The first now: a sampler that is a generator takes its epoch and draws its seed with that, not with iter().
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
                self._begin_one()
            if self._pending:
                batch = whole(self._pending.popleft())
                return batch if self._timed else batch.batch
        except BaseException as error:
            self._end(wait=isinstance(error, Exception))  # Ctrl-C must get out of a dataset that hangs
            raise
        self.close()
        raise StopIteration

    def _begin_one(self) -> None:
        """Begin the next batch; an error in that, too, comes at the place of its batch, after those before it."""
        assert self._order is not None, "else there is none"
        try:
            indices = next(self._order)
        except StopIteration:
            self._order = None
            return
        except Exception as error:
            self._fail_with(error)
            return
        try:
            self._pending.append(whole(self._maker.begin, indices, self._submit(), self._part(len(indices))))
        except Exception as error:
            self._fail_with(error)

    def _fail_with(self, error: Exception) -> None:
        self._order = None
        self._pending.append(functools.partial(_fail, error))

    def _submit(self) -> Submit:
        if not self._threads:
            return call
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, _THREAD_NAME, initializer=limit_intraop_threads)
        return self._pool.submit

    def _part(self, length: int) -> int:
        if not self._threads:
            return max(1, length)
        # Decoding wants large parts; all threads have something to do nevertheless, as batches are begun ahead.
        batches = self._ahead if self._maker.frees_lock else 1
        return part_size(length, -(-self._threads // batches))

    def close(self) -> None:
        """End the threads; waits for what they are in the middle of."""
        self._end(wait=True)

    def _end(self, *, wait: bool) -> None:
        self._order = None
        self._pending.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=True)


def _fail(error: Exception) -> TimedBatch:
    raise error
