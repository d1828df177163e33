"""The records of a store and what is known of all of them, under the names that ImageFolder uses.

Making a dataset reads the store's manifest. Labels and names are read from the store when they are first used, and
kept. ``find`` goes to the store each time (``Store.find``): LMDB scans 4 bytes for each record, 3 ms a million, and
MongoDB answers one query from an index.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch.utils.data import Dataset

from dbloader.caching.policy import needs_of
from dbloader.caching.store import CachedStore
from dbloader.datasets.samples import Samples
from dbloader.errors import NotAStoreError, OptionError, RecordIndexError, RecordNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dbloader.records.columns import Names
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.sampling.base import ResumableSampler
    from dbloader.stores.base import Store


# What is read once and kept in __dict__. Not a cached_property, to which a user could assign.
_CACHED = ("targets", "names", "_indices_digest")


class RecordDataset(Dataset[Any]):
    """The records of a store, their labels and their names."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.manifest: Manifest = store.manifest
        self._indices: np.ndarray[Any, Any] | None = None  # those of a query in the store, ascending; None for all

    @property
    def root(self) -> str:
        """The place of the store."""
        return self.store.place

    @property
    def shard_lengths(self) -> Sequence[int] | None:
        """The number of records in each shard of a sharded store, in their order; None for any other dataset."""
        return self._same_store().shard_lengths if self._indices is None else None

    @property
    def classes(self) -> list[str]:
        """The class names in the order of their labels; empty if the labels have no names."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.manifest.classes)}

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """The labels of all records: int64, shape (len,), read-only.

        A record without a label, whose sample has None, has the least int64 here, -9223372036854775808, which is
        outside every array that it might index. ``targets >= 0`` finds the others, if no label is negative.
        ``torch.tensor(targets)`` copies the labels; torch.as_tensor and from_numpy warn that they are read-only.
        """
        labels: np.ndarray[Any, Any] | None = self.__dict__.get("targets")
        if labels is None:
            labels = self._same_store().column("label")
            if self._indices is not None:
                labels = labels[self._indices]
            labels.flags.writeable = False
            self.__dict__["targets"] = labels
        return labels

    @property
    def names(self) -> Names:
        """The names of all records, packed; indexing makes a str of one."""
        names: Names | None = self.__dict__.get("names")
        if names is None:
            names = self._same_store().names()
            if self._indices is not None:
                names = names.take(self._indices)
            self.__dict__["names"] = names
        return names

    @property
    def samples(self) -> Samples:
        """The (name, label) of all records as in ImageFolder, packed; a missing label is that of ``targets``."""
        return Samples(self.names, self.targets)

    @property
    def imgs(self) -> Samples:
        """The same as ``samples``, as in ImageFolder."""
        return self.samples

    @property
    def content_digest(self) -> str:
        """A digest of the records and their order, equal for datasets of the same samples.

        It is the digest in the store's manifest. If a query chose records, the SHA-256 (hex) of their indices (int64,
        little-endian) follows.
        """
        if self._indices is None or len(self._indices) == self.manifest.length:
            return self.manifest.digest
        return f"{self.manifest.digest}/{self._indices_digest}"

    @cached_property
    def _indices_digest(self) -> str:
        indices = np.arange(len(self)) if self._indices is None else self._indices
        return hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()

    def record(self, index: int) -> Record:
        """Return a record with all its fields, as it is stored; see ``records``."""
        return self.records([index])[0]

    def records(self, indices: Sequence[int]) -> list[Record]:
        """Return records in the order of the indices, repeats included, in one transaction or round trip.

        Raises:
            RecordIndexError: An index is not from -len to len - 1.
            DamagedRecordError: A record is not what was written.
        """
        store, positions = self.locate(indices)
        return store.read(positions)

    def labels_at(self, indices: Sequence[int]) -> list[int]:
        """Return the labels of a few records by one lookup each; ``targets`` reads all labels."""
        store, positions = self.locate(indices)
        return [store.label(position) for position in positions]

    def expect_order(self, sampler: ResumableSampler, since: Mapping[str, Any], *, margin: int, check: bool) -> None:
        """Have the cache, if there is one, fetch shards in the order of an iteration that begins.

        Args:
            sampler: One of dbloader's.
            since: The state where the iteration begins.
            margin: Most samples that one worker is behind another.
            check: Whether to refuse a cache that is too small for the order, with an OptionError.
        """
        store = self._same_store()
        if isinstance(store, CachedStore):
            needs = needs_of(sampler, since, store.shard_lengths or [], self._indices, margin=margin)
            store.expect(needs, check=check)

    def find(self, name: str) -> int:
        """Return the index of the record with a name (the path below the root of the converted folder).

        Raises:
            RecordNotFoundError: No record has this name.
            TypeError: The name is not a str.
        """
        index = self._same_store().find(name)
        if self._indices is None:
            return index
        position = int(np.searchsorted(self._indices, index))
        if position == len(self._indices) or self._indices[position] != index:
            raise RecordNotFoundError(f"the record of {self.root} that is named {name!r} is not one of the query's")
        return position

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Return the name of a sample, as timm's datasets do, for results and for ImageNet's "real" labels.

        Args:
            index: Of the sample, from -len to len - 1.
            basename: Only what follows the last ``/``.
            absolute: There is no such path, since the files are in the store: True is an OptionError.
        """
        if absolute:
            raise OptionError(f"absolute=True asks for paths of files, but the images are in the store {self.root}")
        name = self.names[index]
        return name.rpartition("/")[2] if basename else name

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return the names of all samples; see ``filename``."""
        return [self.filename(index, basename, absolute) for index in range(len(self))]

    def close(self) -> None:
        """Close the store; it is opened again when it is needed."""
        self.store.close()

    def _forget(self) -> None:
        for name in _CACHED:
            self.__dict__.pop(name, None)

    def locate(self, indices: Sequence[int]) -> tuple[Store, list[int]]:
        """Return the store, which is still the one of this dataset, and where in it some samples are.

        Raises:
            RecordIndexError: An index is not from -len to len - 1.
            TypeError: An index is not an int.
        """
        length = len(self)
        try:
            positions = [as_index(index) for index in indices]  # also NumPy's and torch's integers, but not 1.5
        except TypeError as error:
            raise TypeError(f"an index of {self.root} must be an int: {error}") from error
        for at, index in enumerate(positions):
            if not -length <= index < length:
                raise RecordIndexError(f"no record {index} in {self.root}, which has {length}")
            if index < 0:
                positions[at] = index + length
        return self._same_store(), positions if self._indices is None else self._indices[positions].tolist()

    def __len__(self) -> int:
        return self.manifest.length if self._indices is None else len(self._indices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # The columns are not sent to workers, which seldom need them.
        return {key: value for key, value in self.__dict__.items() if key not in _CACHED}

    def _same_store(self) -> Store:
        """Return the store, after checking that it is still the one that the dataset was made of."""
        manifest = self.store.manifest
        if manifest is not self.manifest:
            if manifest.digest != self.manifest.digest:
                self.store.open_older(self.manifest.digest)
                manifest = self.store.manifest
            if (manifest.digest, manifest.classes) != (self.manifest.digest, self.manifest.classes):
                what = "has been replaced since this dataset was made: make the dataset again"
                raise NotAStoreError(f"the store at {self.root} {what}")
            self.manifest = manifest
        return self.store
