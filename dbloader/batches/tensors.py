"""The images of a store, decoded straight into the tensor of their batch."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from typing_extensions import override

from dbloader.batches.base import BatchFetcher, parts, put_together
from dbloader.batches.memory import BatchMemory
from dbloader.batches.shared_memory import ByValue, SharedSlot, small_by_value
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.decoder import Decoder
from dbloader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit
    from dbloader.decoding.decoder import Plan
    from dbloader.records.record import Record


# Bytes of the image files whose decoding a thread plans at a time: a plan may hold a copy of nearly all of a file.
_PLANNED = 2**23


class _Part(NamedTuple):
    """What else is in some samples, and what it took to make them."""

    others: list[Any]
    work: Work


def _next_of(records: Iterator[Record]) -> tuple[list[Record], Exception | None]:
    """Return the next records, all of them unless their files are large; and the error that came after them."""
    some: list[Record] = []
    nbytes = 0
    try:
        for record in records:
            some.append(record)
            if isinstance(record.image, (bytes, memoryview)):
                nbytes += len(record.image)
                if nbytes > _PLANNED:
                    break
    except Exception as error:
        return some, error
    return some, None


class TensorBatchFetcher(BatchFetcher):
    """Decodes the images of a store's dataset straight into the tensor of their batch.

    Args:
        dataset: Its ``decode`` must be a Decoder whose outputs are of one size, and which is called as all are; and it
            must have no ``transform``.
    """

    frees_lock = True

    def __init__(self, dataset: StoreDataset) -> None:
        self.dataset: StoreDataset = dataset
        decode: Any = dataset.decode
        self.image_nbytes = 3 * math.prod(decode.size)
        self._memory = BatchMemory()

    @staticmethod
    def suits(dataset: Any) -> bool:
        """Return whether a dataset is of this kind."""
        return (
            isinstance(dataset, StoreDataset)
            and isinstance(dataset.decode, Decoder)
            and type(dataset.decode).__call__ is Decoder.__call__
            and dataset.decode.size is not None
            and dataset.transform is None
            and (dataset.fields is None or "image" in dataset.fields)
            and not dataset._makes_its_own_samples
        )

    @override
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        began = now()
        numbers = self.dataset._numbers(indices)
        images, slots = self._room(len(indices))
        if self.dataset.store.has_views:
            self.dataset._prefetch(indices)
        # A store that lends its records is read by whoever decodes; of others all are read at once, in one round trip.
        records = indices if self.dataset.store.has_views else self.dataset.records(indices)
        read = now() - began
        futures = [
            submit(self._decode, slots[some], records[some], None if numbers is None else numbers[some])
            for some in parts(len(indices), part)
        ]
        return functools.partial(self._finish, images, indices, futures, read)

    def _decode(
        self, slots: np.ndarray[Any, Any], records: Sequence[Any], numbers: np.ndarray[Any, Any] | None
    ) -> _Part:
        """Decode some images to where they belong; first it does what Python does of many, as Decoder.plan says."""
        others: list[Any] = []
        work, began = Work(), now()
        with self.dataset._borrow(records) if self.dataset.store.has_views else nullcontext(iter(records)) as lent:
            while len(others) < len(slots):
                some, failure = _next_of(lent)
                if not some and failure is None:
                    raise LoaderError(f"{self.dataset.root} gave fewer records than it was asked for")
                read, plans, first = now(), [], len(others)
                try:
                    for record in some:
                        plans.append(self._plan(record, None if numbers is None else numbers[len(others)]))
                        others.append(self.dataset._others(record))
                except Exception as error:
                    failure = error
                for slot, record, plan in zip(slots[first:], some, plans, strict=False):
                    with self.dataset._named(record):
                        plan.decode(slot)
                if failure is not None:  # not before those of the images before it
                    try:
                        raise failure
                    finally:
                        del failure  # which has this frame, in its traceback
                decoded = now()
                work += Work(read - began, decoded - read)
                began = decoded
        return _Part(others, work)

    def _plan(self, record: Record, numbers: np.ndarray[Any, Any] | None) -> Plan:
        with self.dataset._named(record):
            plan = self.dataset._plan(record, numbers)
        if plan is None:
            raise LoaderError(f"a batch of images needs one in each record, got none in record {record.index}")
        return plan

    def _finish(self, images: Any, indices: Sequence[int], futures: list[Future[_Part]], read: float) -> TimedBatch:
        done = [future.result() for future in futures]
        began = now()
        others = [others for part in done for others in part.others]
        if isinstance(images, (SharedSlot, ByValue)):
            batch = put_together(self.dataset, indices, images, others, small_by_value)
        else:
            batch = put_together(self.dataset, indices, images, others)
        serial = Work(read, 0.0, now() - began)
        return TimedBatch(batch, sum((part.work for part in done), serial), len(indices), serial=serial.total)

    def _room(self, count: int) -> tuple[Any, np.ndarray[Any, Any]]:
        """Return what the images of a batch will be in it, and its memory: uint8, shape (count, height, width, 3)."""
        decode: Any = self.dataset.decode
        shape = (count, *decode.size, 3)
        worker = get_worker_info()
        if worker is not None and self.blocks is not None:
            block = self.blocks.take(worker.id, shape)
            if block is not None:
                return block, block.pixels
            # The consumer keeps batches, and may keep them all: of memory that is shared, or open files, there is less.
            private = torch.empty(shape, dtype=torch.uint8)
            return ByValue(private, (0, 3, 1, 2)), private.numpy()
        room = self._empty(shape, shared=worker is not None)
        return room.permute(0, 3, 1, 2), room.numpy()

    def _empty(self, shape: tuple[int, ...], *, shared: bool) -> torch.Tensor:
        if shared:
            # In memory that the worker shares with the training; else they would be copied there.
            storage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
            return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
        if self.pin_memory:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)  # of memory that torch uses again
        return self._memory.empty(shape)
