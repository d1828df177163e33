"""A DataLoader whose worker processes make whole batches."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from typing_extensions import override

from dbloader.batches.shared_memory import SharedBatchPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.batches.base import BatchFetcher

# Held while the workers of a run start, because they inherit the shared memory that is set meanwhile. They inherit the
# held lock too. It is reentrant: a loader that a forked worker makes then fails with torch's error, and does not hang.
_starting = threading.RLock()

# Batches in use: three of the PrefetchLoader, and two of its consumer, which works on one and may still hold the last.
_HELD_BATCHES = 5


class ProcessLoader(DataLoader[Any]):
    """The TimedBatches of a BatchFetcher, made by worker processes in memory that they share with this process.

    ``source_dataset`` is the dataset whose samples are in the batches. (``dataset`` is the fetcher, for torch.)
    """

    whole_batches = True
    """Batches are not collated from samples, so ``write_store`` cannot store the samples."""

    def __init__(
        self, fetcher: BatchFetcher, batch_sampler: Any, num_workers: int, *, dataset: Any, prefetch_factor: int
    ) -> None:
        super().__init__(
            fetcher,  # type: ignore[arg-type] # torch calls its __getitems__
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=_forget_serial,
            persistent_workers=num_workers > 0,
            prefetch_factor=prefetch_factor if num_workers else None,
        )
        self.source_dataset = dataset
        self.check_skipped = fetcher.check_skipped
        self._fetcher = fetcher
        self._largest_batch: int = batch_sampler.batch_size

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names a private class
        nbytes = self._fetcher.image_nbytes
        # torch keeps an iterator, and with it the workers, if they are persistent.
        if not self.num_workers or nbytes is None or self._iterator is not None:
            return super().__iter__()
        # Slots of each worker: for the batches that it makes ahead, and for its share of the batches in use.
        slots = int(self.prefetch_factor or 1) + -(-_HELD_BATCHES // self.num_workers)
        # One pool for each run, because workers of another live run have the same numbers.
        with _starting:
            try:
                pool = SharedBatchPool(self.num_workers, slots, self._largest_batch * nbytes)
            except OSError:  # too many open files: use torch's own shared memory
                return super().__iter__()
            self._fetcher.shared_pool = pool
            try:
                iterator = super().__iter__()
            finally:
                self._fetcher.shared_pool = None
                pool.close_files()
        weakref.finalize(iterator, lambda _: None, pool).atexit = False  # keeps the pool as long as the iterator
        return iterator


def _forget_serial(batch: Any) -> Any:
    """Return a batch with ``serial`` set to 0, because worker processes do that work in parallel."""
    return dataclasses.replace(batch, serial=0.0)
