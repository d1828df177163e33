"""Decode the images of a store straight into the tensor of their batch."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from typing_extensions import override

from dbloader.batches.base import DatasetBatchFetcher, row_for_each
from dbloader.batches.collate import ELEMENTS, collate
from dbloader.batches.timed import Work, now
from dbloader.datasets.base import NotedErrors, describe_record
from dbloader.datasets.fields import has_image, join_image
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.decoder import Decoder
from dbloader.device.memory import BatchMemory
from dbloader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.batches.base import Slot
    from dbloader.batches.collate import Collate
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# A thread plans some images before it decodes them. (A plan chooses the crop.) It stops planning when their files
# together exceed this number of bytes. The limit saves memory, because a plan may copy nearly a whole file.
PLANNED_NBYTES = 2**21


class TensorBatchFetcher(DatasetBatchFetcher):
    """Decodes the images of a dataset straight into the tensor of their batch. ``suits`` checks the dataset."""

    releases_gil = True

    def __init__(self, dataset: StoreDataset, rule: Collate, *, pin_memory: bool = False) -> None:
        self.dataset: StoreDataset = dataset
        self.rule = rule
        self.pin_memory = pin_memory
        decode: Any = dataset.decode
        self.image_nbytes = 3 * math.prod(decode.size)
        self._memory = BatchMemory()

    @staticmethod
    def suits(dataset: Any) -> bool:
        """Return whether a dataset reads a store, and makes its images only by a Decoder with a fixed output size."""
        return (
            isinstance(dataset, StoreDataset)
            and not dataset.makes_own_samples
            and isinstance(dataset.decode, Decoder)
            and dataset.decode.can_plan
            and dataset.decode.size is not None
            and dataset.transform is dataset.transforms is None
            and has_image(dataset.fields)
        )

    @override
    def read(self, indices: Sequence[int], rows: Sequence[Any] | None = None) -> tuple[Store, Any, Sequence[Any]]:
        store, places = self.dataset.locate(indices)
        records: Sequence[Any] = places
        if store.has_views:  # each thread reads the records that it decodes
            store.prefetch(places)
        else:  # read all records at once, in one round trip
            records = store.read(places)
        if rows is None:
            rows = row_for_each(self.dataset.random_numbers(indices), len(indices))
        return store, records, rows

    @override
    def make(self, given: Any, part: slice, pixels: Sequence[Any] = ()) -> tuple[list[Any], Work]:
        [made] = decode_together([(self, given, part)], pixels)
        return made

    @override
    def collate(self, indices: Sequence[int], images: Any, samples: list[Any]) -> Any:
        return join_batch(self.dataset, indices, images, samples, self.rule)

    @override
    def allocate(self, count: int, slot: Slot) -> tuple[Any, Any]:
        decode: Any = self.dataset.decode
        shape = (count, *decode.size, 3)
        if slot is not None:
            return slot(shape)
        if self.pin_memory and get_worker_info() is None:  # a forked process cannot use CUDA
            tensor = torch.empty(shape, dtype=torch.uint8, pin_memory=True)  # torch reuses this memory itself
        else:
            tensor = self._memory.empty(shape)
        return tensor.permute(0, 3, 1, 2), tensor.numpy()


def join_batch(
    dataset: Any, indices: Sequence[int], images: Any, others: list[Any], collate_fn: Callable[[list[Any]], Any] | None
) -> Any:
    """Return a batch of decoded images and the other parts of the samples."""
    collated = collate(dataset, indices, others, collate_fn, ELEMENTS[1:])
    batch = join_image(dataset.fields, images, collated)
    return [*batch] if isinstance(batch, tuple) else batch


def decode_together(
    parts: Sequence[tuple[TensorBatchFetcher, Any, slice]], pixels: Sequence[Any]
) -> list[tuple[list[Any], Work]]:
    """Decode images of several datasets into ``pixels``.

    Planning several images before decoding them takes less time than planning and decoding each in turn: see
    ``Decoder.plan``.

    Args:
        parts: For each dataset: its fetcher, what ``read`` returned, and which of these samples to make.
        pixels: The memory for each image, in the order of the parts.

    Returns:
        For each part: its samples without their images, and the time spent on it. The first part's time contains the
        decoding of all parts.
    """
    made: list[list[Any]] = [[] for _ in parts]
    read = [0.0] * len(parts)
    decode, done = 0.0, 0
    with ExitStack() as stack:
        records = _borrow(parts, read, stack)
        while some := _take_some(records):
            began = now()
            plans = []
            for at, record, row in some:
                dataset = parts[at][0].dataset
                if record.image is None:
                    shown = describe_record(record, dataset.root)
                    raise LoaderError(f"{shown} has no image for the batch: leave the record out with a Subset")
                plan = dataset.plan(record, row)
                plans.append(plan)
                made[at].append(dataset.rest(record, plan))
            for out, (at, record, _), plan in zip(pixels[done : done + len(some)], some, plans, strict=True):
                with NotedErrors(parts[at][0].dataset, record):
                    plan.decode(out)
            done += len(some)
            decode += now() - began
    return [(rest, Work(read[at], 0.0 if at else decode)) for at, rest in enumerate(made)]


def _borrow(
    parts: Sequence[tuple[TensorBatchFetcher, Any, slice]], seconds: list[float], stack: ExitStack
) -> Iterator[tuple[int, Record, Any]]:
    """Yield (number of the part, record, random numbers) for each record. Records are valid until ``stack`` is closed.

    Add the time for reading a part to its entry in ``seconds``.
    """
    for at, (_, (store, records, rows), part) in enumerate(parts):
        began = now()
        wanted = records[part]  # if the store can lend records (LMDB), `read` returned their indices
        borrowed = stack.enter_context(store.borrow(wanted)) if store.has_views else iter(wanted)
        for record, row in zip(borrowed, rows[part], strict=True):
            seconds[at] += now() - began
            yield at, record, row
            began = now()


def _take_some(records: Iterator[tuple[int, Record, Any]]) -> list[tuple[int, Record, Any]]:
    """Return the next records, until their image files together exceed ``PLANNED_NBYTES``."""
    some = []
    nbytes = 0
    for entry in records:
        some.append(entry)
        image = entry[1].image
        if isinstance(image, (bytes, memoryview)):
            nbytes += len(image)
            if nbytes > PLANNED_NBYTES:
                break
    return some
