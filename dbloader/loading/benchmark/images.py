"""The images of a store: read, and decoded, by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader.batches.timed import now
from dbloader.datasets.lmdb import LMDBDataset
from dbloader.errors import OptionError
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.permutation import Permutation
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dbloader.batches.timed import Work
    from dbloader.datasets.store import StoreDataset
    from dbloader.decoding.decoder import Decoder
    from dbloader.records.record import Record
    from dbloader.sampling.rng import Array

# Images in an endless order: at 10,000 a second, half an hour's.
LONG = 2**24
# Records held in memory, of which the decoding alone is measured: so many bytes, and no more than so many.
_HELD_BYTES = 64 * 2**20
_HELD = 512


class TimedRun(NamedTuple):
    """What came of one measurement.

    Attributes:
        images: How many came.
        seconds: In that time.
        nbytes: Of their files or stored pixels, where they were read; else 0.
        first_s: Seconds to the first batch; None without batches.
        work: What the workers did, where they tell.
    """

    images: int
    seconds: float
    nbytes: int = 0
    first_s: float | None = None
    work: Work | None = None


class EndlessShuffle(ResumableSampler):
    """Some indices in a random order, each equally often, for longer than anything is measured.

    Small stores too are then read without the pauses between epochs.

    Args:
        indices: int64, shape (N,), at least one.
    """

    def __init__(self, indices: Array) -> None:
        super().__init__(len(indices) * -(-LONG // len(indices)), num_replicas=1, rank=0, seed=0, drop_last=False)
        self.indices = indices

    @override
    def _order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        order = Permutation(self.length, seed, epoch)
        return lambda positions: self.indices[order[positions] % len(self.indices)]


class Images:
    """The records of a store that have an image, as they are measured.

    Args:
        place: The store.

    Raises:
        StoreError: There is no store, or it cannot be read.
        OptionError: No record has an image.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        with open_store(place) as store:
            self.nbytes = store.column("nbytes")
            self.manifest = store.manifest
            self.place = store.place
        self.indices = np.flatnonzero(self.nbytes).astype(np.int64)
        if not len(self.indices):
            raise OptionError(f"{self.place}: no record has an image, so there is nothing to measure")
        # A batch of labels needs one in each record.
        fields = None if self.manifest.labelled == self.manifest.length else ("image",)
        self.dataset: StoreDataset = _dataset(place, fields)

    @property
    def resized(self) -> int:
        """Images that were made smaller when the store was converted."""
        return self.manifest.outcome.get("resized", 0)

    @property
    def image_bytes(self) -> float:
        """Of one image, on average."""
        return float(self.nbytes[self.indices].mean())

    def decoded_by(self, decode: Decoder) -> StoreDataset:
        """Return the dataset with a decoder."""
        self.dataset.decode = decode
        return self.dataset

    def read(self, batch_size: int, seconds: float) -> TimedRun:
        """Read records in random order, a batch at a time, in this thread; each is verified."""
        order = iter(EndlessShuffle(self.indices))
        count = nbytes = 0
        begun = now()
        while (elapsed := now() - begun) < seconds or not count:
            indices = [next(order) for _ in range(batch_size)]
            self.dataset.records(indices)
            count += batch_size
            nbytes += int(self.nbytes[indices].sum())
        return TimedRun(count, elapsed, nbytes)

    def decode(self, decoder: Decoder, seconds: float) -> TimedRun:
        """Decode images that are in memory already, in this thread."""
        dataset, records = self.decoded_by(decoder), self._held()
        numbers = dataset._numbers(range(len(records)))
        count, begun = 0, now()
        while (elapsed := now() - begun) < seconds or not count:
            at = count % len(records)
            dataset._image(records[at], None if numbers is None else numbers[at])
            count += 1
        return TimedRun(count, elapsed)

    def _held(self) -> list[Record]:
        order = iter(EndlessShuffle(self.indices))
        taken, nbytes = [next(order)], 0
        while len(taken) < min(_HELD, len(self.indices)) and nbytes < _HELD_BYTES:
            taken.append(next(order))
            nbytes += int(self.nbytes[taken[-1]])
        return self.dataset.records(taken)


def _dataset(place: str | os.PathLike[str], fields: tuple[str, ...] | None) -> StoreDataset:
    if not is_mongo(place):
        return LMDBDataset(place, fields=fields)
    from dbloader.datasets.mongo import MongoDataset  # imports pymongo's client, which only it needs

    return MongoDataset(place, fields=fields)
