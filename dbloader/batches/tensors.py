"""Decode the images of a store straight into the tensor of their batch."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from typing_extensions import override

from dbloader.batches.base import BatchFetcher, split
from dbloader.batches.collate_fields import ELEMENTS, collate
from dbloader.batches.memory import BatchMemory
from dbloader.batches.shared_memory import TensorByValue, send_small_by_value
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.datasets.fields import has_image, join_image
from dbloader.datasets.noted_errors import NotedErrors
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.decoder import Decoder
from dbloader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit
    from dbloader.batches.collate_fields import Collate
    from dbloader.decoding.decoder import Plan
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# Bytes of image files that a thread plans to decode at a time: a plan may hold a copy of nearly a whole file.
PLANNED_NBYTES = 2**21


class TensorBatchFetcher(BatchFetcher):
    """Decodes the images of a store's dataset that ``suits`` straight into the tensor of their batch."""

    releases_gil = True

    def __init__(self, dataset: StoreDataset, rule: Collate | None = None) -> None:
        self.dataset: StoreDataset = dataset
        self.rule = rule
        decode: Any = dataset.decode
        self.image_nbytes = 3 * math.prod(decode.size)
        self._memory = BatchMemory()

    @staticmethod
    def suits(dataset: Any) -> bool:
        """Return whether a dataset is a store's, and its ``decode`` a plain Decoder with outputs of one size."""
        return (
            isinstance(dataset, StoreDataset)
            and isinstance(dataset.decode, Decoder)
            and dataset.decode.can_plan
            and dataset.decode.size is not None
            and dataset.transform is dataset.transforms is None
            and has_image(dataset.fields)
            and not dataset.makes_own_samples
        )

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        began = now()
        rows = self.dataset.random_numbers(indices)
        images, pixels = self._allocate(len(indices))
        store, places = self.dataset.locate(indices)
        records: Sequence[Any] = places
        if store.has_views:  # each decoding thread reads its own
            store.prefetch(places)
        else:  # all are read at once, in one round trip
            records = store.read(places)
        read = now() - began
        futures = [
            submit(self._decode, store, pixels[part], records[part], None if rows is None else rows[part])
            for part in split(len(indices), size)
        ]
        return functools.partial(self._finish, images, indices, futures, read)

    def _decode(
        self, store: Store, pixels: np.ndarray[Any, Any], records: Sequence[Any], rows: np.ndarray[Any, Any] | None
    ) -> tuple[list[Any], Work]:
        """Decode the images of some records, or of those at some indices of a store with views, into their pixels.

        Plan many of them first, which holds the GIL (see ``Decoder.plan``). Return the rest of each sample, and the
        time that it took to make them.
        """
        rest: list[Any] = []
        work, began = Work(), now()
        with store.borrow(records, prefetched=True) if store.has_views else nullcontext(iter(records)) as borrowed:
            while len(rest) < len(pixels):
                some, failure = _take_some(borrowed)
                if not some and failure is None:
                    raise LoaderError(f"{self.dataset.root} gave fewer records than it was asked for")
                read, plans, first = now(), [], len(rest)
                try:
                    for record in some:
                        plan = self._plan(record, None if rows is None else rows[len(rest)])
                        plans.append(plan)
                        rest.append(self.dataset.rest(record, plan))
                except Exception as error:
                    failure = error
                try:
                    for out, record, plan in zip(pixels[first:], some, plans, strict=False):
                        with NotedErrors(self.dataset, record):
                            plan.decode(out)
                    if failure is not None:  # after the errors of the images before it
                        raise failure
                finally:
                    del failure  # its traceback holds this frame
                decoded = now()
                work += Work(read - began, decoded - read)
                began = decoded
        return rest, work

    def _plan(self, record: Record, random_numbers: np.ndarray[Any, Any] | None) -> Plan:
        if record.image is None:
            raise LoaderError(f"a batch of images needs one in each record, got none in record {record.index}")
        return self.dataset.plan(record, random_numbers)

    def _finish(
        self, images: Any, indices: Sequence[int], futures: list[Future[tuple[list[Any], Work]]], read: float
    ) -> TimedBatch:
        parts = [future.result() for future in futures]
        began = now()
        others = [one for rest, _ in parts for one in rest]
        others = collate(self.dataset, indices, others, ELEMENTS[1:], self.rule)
        batch = join_image(self.dataset.fields, images, others)
        batch = [*batch] if isinstance(batch, tuple) else batch
        if not isinstance(images, torch.Tensor):
            batch = send_small_by_value(batch)
        serial = Work(read, 0.0, now() - began)
        return TimedBatch(batch, sum((work for _, work in parts), serial), len(indices), serial=serial.total)

    def _allocate(self, count: int) -> tuple[Any, np.ndarray[Any, Any]]:
        """Return the images of a batch, and their memory to decode into: uint8, shape (count, height, width, 3)."""
        decode: Any = self.dataset.decode
        shape = (count, *decode.size, 3)
        worker = get_worker_info()
        if worker is not None and self.shared_pool is not None:
            slot = self.shared_pool.take(worker.id, shape)
            if slot is not None:
                return slot, slot.pixels
            # The consumer keeps batches, perhaps all. Shared memory and open files are scarcer than private memory.
            private = torch.empty(shape, dtype=torch.uint8)
            return TensorByValue(private, (0, 3, 1, 2)), private.numpy()
        if self.pin_memory:
            tensor = torch.empty(shape, dtype=torch.uint8, pin_memory=True)  # torch reuses this memory itself
        else:
            tensor = self._memory.empty(shape)
        return tensor.permute(0, 3, 1, 2), tensor.numpy()


def _take_some(records: Iterator[Record]) -> tuple[list[Record], Exception | None]:
    """Return the next records, fewer if their files are large, and the error that came after them."""
    some: list[Record] = []
    nbytes = 0
    try:
        for record in records:
            some.append(record)
            if isinstance(record.image, (bytes, memoryview)):
                nbytes += len(record.image)
                if nbytes > PLANNED_NBYTES:
                    break
    except Exception as error:
        return some, error
    return some, None
