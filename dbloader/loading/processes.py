"""A DataLoader whose worker processes make whole batches."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from typing_extensions import override

from dbloader.batches.dataset import BatchDataset, pass_batch
from dbloader.batches.shared_memory import SharedBatchPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dbloader.batches.base import BatchFetcher

# Batches that a consumer has at a time: the one it works on, and the one before, while it asks for the next.
_HELD = 2

# Held while the workers of a run are started, so that they get the blocks of their own run.
_starting = threading.Lock()


class ProcessLoader(DataLoader[Any]):
    """A DataLoader for batches that a BatchFetcher makes, in memory that its workers share with it and use again.

    Args:
        maker: Makes the batches.
        threads: Threads in each worker.
        batch_size: Most samples of a batch.
        batch_sampler: Gives their indices.
        num_workers: Processes; 0 makes them in this one.
        source_dataset: The dataset that they are batches of.
        prefetch_factor: Batches ahead for each of them.
        persistent_workers: As in DataLoader.
        worker_init_fn: As in DataLoader.
        ahead: Batches that whoever takes them has, beside those that the consumer works on.
    """

    whole_batches = True
    """Batches are not collated from samples, so ``write_store`` cannot store the samples."""

    def __init__(
        self,
        maker: BatchFetcher,
        threads: int,
        batch_size: int,
        batch_sampler: Iterable[list[Any]],
        num_workers: int,
        *,
        source_dataset: Any,
        prefetch_factor: int,
        persistent_workers: bool,
        worker_init_fn: Callable[[int], None] | None,
        ahead: int,
    ) -> None:
        super().__init__(
            BatchDataset(maker, threads),
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=pass_batch,
            persistent_workers=persistent_workers and num_workers > 0,
            prefetch_factor=prefetch_factor if num_workers else None,
            worker_init_fn=worker_init_fn,
        )
        self.source_dataset = source_dataset
        self._maker = maker
        self._most = batch_size
        self._kept = ahead + _HELD
        self._started = False

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names a private class
        image = self._maker.image_nbytes
        again = self.persistent_workers and self._started
        if not self.num_workers or image is None or again or not SharedBatchPool.can_be_made():
            return super().__iter__()
        # What each worker has made and nobody has asked for yet, and its share of what was given.
        each = int(self.prefetch_factor or 1) + -(-self._kept // self.num_workers)
        # Of each run its own: the numbers of its workers are those of another's that is still going on.
        with _starting:
            try:
                blocks = self._maker.blocks = SharedBatchPool(self.num_workers, each, self._most * image)
            except OSError:  # too many open files: then as torch does it
                return super().__iter__()
            try:
                iterator = super().__iter__()
            finally:
                self._maker.blocks = None
                blocks.started()
        self._started = True
        weakref.finalize(iterator, lambda _: None, blocks).atexit = False
        return iterator
