"""A loader whose workers are threads."""

from __future__ import annotations

import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from operator import index as as_index
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from dbloader.batches import choose_maker, part_size
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch
    from torch.utils.data import Sampler

    from dbloader.batches import BatchMaker
    from dbloader.batches.base import Finish
    from dbloader.timing import TimedBatch

_THREAD_NAME = "dbloader-worker"


class ThreadLoader:
    """A DataLoader whose workers are threads of this process: nothing is pickled, copied to it, or started anew.

    It suits datasets that let Python's lock go where they work. LMDBDataset and MongoDataset with one of dbloader's
    decoders do: the records of a batch are read in one transaction, and their images decoded by all threads straight
    into the tensor of the batch. Python code holds the lock, so a transform in Python gains little from threads; on a
    free-threaded Python it does.

    Batches come in their order, with the errors of their samples at their place. They are TimedBatches, as a
    PrefetchLoader in front wants them, unless ``timed=False``; ``create_loader`` puts both together. The threads begin
    with the first ``next()``, and end with the iterator: at its end, with its ``close()``, and when it is dropped.

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
        timed: Whether the batches come as TimedBatches.
        maker: Makes the batches; chosen for the dataset if None.

    Raises:
        OptionError: ``num_workers`` is below 0 or ``prefetch_factor`` below 1; the dataset is iterable-style, or
            ``batch_size`` is None without a ``batch_sampler``.
        ValueError: torch's DataLoader refuses the others.
    """

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
        timed: bool = True,
        maker: BatchMaker | None = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise OptionError(f"the dataset must have samples at indices, got the iterable {type(dataset).__name__}")
        if batch_size is None and batch_sampler is None:
            raise OptionError("batch_size must be an int, got None: threads make whole batches")
        self.num_workers = as_index(num_workers)
        if self.num_workers < 0:
            raise OptionError(f"num_workers must be at least 0, got {num_workers}")
        self.prefetch_factor = 2 if prefetch_factor is None else as_index(prefetch_factor)
        if self.prefetch_factor < 1:
            raise OptionError(f"prefetch_factor must be at least 1, got {prefetch_factor}")
        # Its samplers, its checks of the arguments and its length are wanted, not its iterator.
        plan: DataLoader[Any] = DataLoader(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            drop_last=drop_last,
            generator=generator,
        )
        self.dataset = dataset
        self.batch_size = plan.batch_size
        self.drop_last = plan.drop_last
        self.sampler = plan.sampler
        self.batch_sampler: Any = plan.batch_sampler
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timed = timed
        self._length = plan.__len__
        self._maker = maker or choose_maker(dataset, collate_fn)
        self._maker.pin_memory = pin_memory

    def __len__(self) -> int:
        return self._length()

    def __iter__(self) -> Iterator[Any]:
        # No generator itself: the order is taken now, not with the first next().
        return self._batches(iter(self.batch_sampler))

    def _batches(self, order: Iterator[Sequence[int]]) -> Iterator[Any]:
        if not self.num_workers:
            for indices in order:
                yield self._given(self._maker.make(indices))
            return
        pool = ThreadPoolExecutor(self.num_workers, _THREAD_NAME)
        try:
            pending: deque[Finish] = deque()
            beginnings = self._beginnings(order, pool)
            for finish in beginnings:
                pending.append(finish)
                if len(pending) > self.prefetch_factor:
                    yield self._given(pending.popleft()())
            while pending:
                yield self._given(pending.popleft()())
        finally:
            pool.shutdown(cancel_futures=True)

    def _beginnings(self, order: Iterator[Sequence[int]], pool: ThreadPoolExecutor) -> Iterator[Finish]:
        """Begins the batches; an error in that, too, comes at the place of its batch, after those before it."""
        try:
            for indices in order:
                yield self._begun(indices, pool)
        except Exception as error:
            yield functools.partial(_fail, error)

    def _begun(self, indices: Sequence[int], pool: ThreadPoolExecutor) -> Finish:
        return self._maker.begin(indices, pool.submit, part_size(len(indices), self.num_workers))

    def _given(self, batch: TimedBatch) -> Any:
        return batch if self.timed else batch.batch


def _fail(error: Exception) -> TimedBatch:
    raise error
