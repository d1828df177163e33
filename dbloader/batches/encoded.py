"""Make batches of image files, to be decoded on the device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.batches.base import BatchFetcher, collate_with_images
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.device.encoded import EncodedImages
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.batches.base import Finish, Submit
    from dbloader.datasets.store import StoreDataset
    from dbloader.records.record import Record


class EncodedBatchFetcher(BatchFetcher):
    """Hands over the files of a batch, with the random numbers that the dataset's Decoder would use for each.

    The dataset's ``decode`` must be a Decoder, and it must have no ``transform``.
    """

    releases_gil = True

    def __init__(self, dataset: StoreDataset) -> None:
        self.dataset: StoreDataset = dataset

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int) -> Finish:
        began = now()
        records = self.dataset.records(indices)
        images = EncodedImages(
            [self._file(record) for record in records],
            self.dataset._random_numbers(indices),
            [self.dataset._describe(record) for record in records],
        )
        return functools.partial(self._finish, indices, records, images, now() - began)

    def _file(self, record: Record) -> bytes:
        self.dataset._check_whole(record)
        if not isinstance(record.image, bytes):
            raise OptionError(
                f"{self.dataset._describe(record)} has no image file that a device could decode, but "
                f"{'none' if record.image is None else 'pixels'}: leave decode_on='device' out"
            )
        return record.image

    def _finish(self, indices: Sequence[int], records: list[Record], images: EncodedImages, read: float) -> TimedBatch:
        began = now()
        rest = [self.dataset._others(record) for record in records]
        batch = collate_with_images(self.dataset, indices, images, rest)
        work = Work(read, 0.0, now() - began)
        return TimedBatch(batch, work, len(records), serial=work.total)
