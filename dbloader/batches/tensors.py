"""The images of a store, decoded straight into the tensor of their batch."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from typing_extensions import override

from dbloader.batches.base import BatchMaker, parts, put_together
from dbloader.batches.memory import BatchMemory
from dbloader.datasets.base import StoreDataset
from dbloader.decoding.base import Decoder
from dbloader.errors import LoaderError
from dbloader.timing import TimedBatch, Work, now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import numpy as np

    from dbloader.batches.base import Finish, Submit
    from dbloader.records import Record


class _Part(NamedTuple):
    """What else is in some samples, and what it took to make them."""

    others: list[Any]
    work: Work


class TensorBatchMaker(BatchMaker):
    """Decodes the images of a store's dataset straight into the tensor of their batch.

    Args:
        dataset: Its ``decode`` must be a Decoder whose outputs are of one size, and it must have no ``transform``.
    """

    frees_lock = True

    def __init__(self, dataset: StoreDataset) -> None:
        self.dataset: StoreDataset = dataset
        self._memory = BatchMemory()

    @staticmethod
    def suits(dataset: Any) -> bool:
        """Says whether a dataset is of this kind."""
        return (
            isinstance(dataset, StoreDataset)
            and isinstance(dataset.decode, Decoder)
            and dataset.decode.size is not None
            and dataset.transform is None
            and (dataset.fields is None or "image" in dataset.fields)
            and not dataset.makes_its_own_samples
        )

    @override
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        began = now()
        numbers = self.dataset.numbers(indices)
        room = self._empty(len(indices))
        slots = room.numpy()
        if self.dataset.store.lends:
            self.dataset.will_read(indices)
        # A store that lends its records is read by whoever decodes; of others all are read at once, in one round trip.
        records = indices if self.dataset.store.lends else self.dataset.records(indices)
        read = now() - began
        futures = [
            submit(self._decode, slots[some], records[some], None if numbers is None else numbers[some])
            for some in parts(len(indices), part)
        ]
        return functools.partial(self._finish, room.permute(0, 3, 1, 2), futures, read)

    def _decode(
        self, slots: np.ndarray[Any, Any], records: Sequence[Any], numbers: np.ndarray[Any, Any] | None
    ) -> _Part:
        """Decodes some images to where they belong."""
        began, others, decode, at = now(), [], 0.0, 0

        def decode_one(record: Record) -> None:
            nonlocal decode, at
            begun = now()
            image = self.dataset.image(record, None if numbers is None else numbers[at])
            if image is None:
                raise LoaderError(f"a batch of images needs one in each record, got none in record {record.index}")
            # By NumPy, as torch would divide so small a copy among threads of its own.
            slots[at] = image.numpy().transpose(1, 2, 0)
            at += 1
            decode += now() - begun
            others.append(self.dataset.others(record))

        if self.dataset.store.lends:
            self.dataset.lend(records, decode_one)
        else:
            for record in records:
                decode_one(record)
        return _Part(others, Work(now() - began - decode, decode))

    def _finish(self, images: torch.Tensor, futures: list[Future[_Part]], read: float) -> TimedBatch:
        done = [future.result() for future in futures]
        began = now()
        batch = put_together(self.dataset, images, [others for part in done for others in part.others])
        serial = Work(read, 0.0, now() - began)
        return TimedBatch(batch, sum((part.work for part in done), serial), len(images), serial=serial.total)

    def _empty(self, count: int) -> torch.Tensor:
        """Gives room for images: uint8, shape (count, height, width, 3)."""
        decode: Any = self.dataset.decode
        shape = (count, *decode.size, 3)
        if get_worker_info() is not None:
            # In the memory that the worker shares with the training; else they would be copied there.
            storage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
            return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
        if self.pin_memory:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)  # of memory that torch uses again
        return self._memory.empty(shape)
