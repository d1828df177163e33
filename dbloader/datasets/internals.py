"""The private methods of a dataset that the makers of batches use; they use no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np

    from dbloader.datasets.base import StoreDataset
    from dbloader.decoding.base import Plan
    from dbloader.records import Record


class Internals:
    """How a dataset makes its samples, step by step, for code that makes many at once.

    Args:
        dataset: A store's dataset, whose private methods of the same names say more.
    """

    __slots__ = ("_dataset",)

    def __init__(self, dataset: StoreDataset) -> None:
        self._dataset = dataset

    @property
    def makes_its_own_samples(self) -> bool:
        """Whether this is of a subclass that makes its samples in another way."""
        return self._dataset._makes_its_own_samples

    def numbers(self, indices: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """Return the random numbers for decoding samples: float64, shape (len(indices), decode.draws), or None."""
        return self._dataset._numbers(indices)

    def lend(self, indices: Sequence[int]) -> AbstractContextManager[Iterator[Record]]:
        """Return records while the store has hold of them; see ``Store.lend``."""
        return self._dataset._lend(indices)

    def will_read(self, indices: Sequence[int]) -> None:
        """Tell the store which records will be read next; see ``Store.will_read``."""
        self._dataset._will_read(indices)

    def told(self, record: Record) -> str:
        """Return what a record is called in a message."""
        return self._dataset._told(record)

    def named(self, record: Record) -> AbstractContextManager[None]:
        """Note the record on any error raised inside."""
        return self._dataset._named(record)

    def check_whole(self, record: Record) -> None:
        """Raise DamagedImageError if data of the record's image is missing."""
        self._dataset._check_whole(record)

    def plan(self, record: Record, numbers: np.ndarray[Any, Any] | None) -> Plan | None:
        """Return the plan for decoding the image of a record; see ``Decoder.plan``."""
        return self._dataset._plan(record, numbers)

    def sample(self, record: Record, numbers: np.ndarray[Any, Any] | None) -> Any:
        """Return the sample of a record."""
        return self._dataset._sample(record, numbers)

    def image(self, record: Record, numbers: np.ndarray[Any, Any] | None) -> Any:
        """Return the image of a record, decoded and transformed."""
        return self._dataset._image(record, numbers)

    def others(self, record: Record) -> Any:
        """Return all values in the sample of a record but the image."""
        return self._dataset._others(record)

    def joined(self, image: Any, others: Any) -> Any:
        """Return a sample or batch made of images and their other values."""
        return self._dataset._joined(image, others)
