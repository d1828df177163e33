"""The base class of datasets that read a store. It has the attributes of torchvision's ImageFolder.

Making a dataset reads only the store's manifest. Labels and names are read when they are first used.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from inspect import signature
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from torch.utils.data import Dataset, Subset
from typing_extensions import override

from dbloader._describe import add_note, size, stop_iteration_error
from dbloader._extensions import extension, html
from dbloader._machine import available_memory
from dbloader.datasets.targets import checked_classes, class_names
from dbloader.errors import DamagedImageError, NotAStoreError, OptionError, RecordIndexError, RecordNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dbloader.records.manifest import Manifest
    from dbloader.records.names import Names
    from dbloader.records.record import Record
    from dbloader.sampling.base import ResumableSampler
    from dbloader.stores.base import Store


_READ_AT_ONCE = 256  # number of records whose classes are read at a time; LMDB does not copy their images
# Attributes that are computed once and kept in __dict__. The public ones are properties, because a user could assign to
# a cached_property by mistake.
_CACHED = ("targets", "names", "_indices_digest")

_SELECT = "torch.utils.data.Subset(dataset, indices) or where= selects records"
_LABELS = "target_transform= changes labels, and copy_store(labels=) makes a store with other labels"
# Remedies in error messages: ImageFolder has these attributes and options, but here they are missing or read-only.
_INSTEAD = {
    "samples": _SELECT, "imgs": _SELECT, "names": _SELECT, "extensions": _SELECT, "is_valid_file": _SELECT,
    "targets": _LABELS, "classes": _LABELS, "class_to_idx": _LABELS, "make_dataset": "convert() finds the files",
    "loader": "decode= takes the bytes of each file", "allow_empty": "classes= of write_store may have unused names",
}  # fmt: skip


class RecordDataset(Dataset[Any]):
    """The records of a store, their labels and their names."""

    target = "label"  # the field that is the target of a sample

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Raise TypeError for an option of ImageFolder that a store cannot have."""
        known = signature(cls.__init__).parameters
        accepts_all = any(option.kind is option.VAR_KEYWORD for option in known.values())  # of a subclass
        for name in () if accepts_all else options.keys() & _INSTEAD.keys() - known.keys():
            raise TypeError(f"{cls.__name__} has no option {name}: {_INSTEAD[name]}")
        return super().__new__(cls)

    def __init__(self, store: Store, where: str | None = None) -> None:
        self.store = store
        self.manifest: Manifest = store.manifest
        # The store's indices of the records that the query selects, in ascending order. None without a query.
        self._indices = None if where is None else find_selected(store, where)

    @property
    def root(self) -> str:
        """The path or URI of the store."""
        return self.store.place

    @property
    def shard_lengths(self) -> Sequence[int] | None:
        """The number of records in each shard of a sharded store; None for other stores, and with a query."""
        return self._same_store().shard_lengths if self._indices is None else None

    @property
    def classes(self) -> list[str]:
        """The class names in the order of their labels. Empty if the target has no class names."""
        return [*class_names(self.manifest, self.target)]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    def find_classes(self, _directory: object = None) -> tuple[list[str], dict[str, int]]:
        """Return ``classes`` and ``class_to_idx``, like ImageFolder."""
        return self.classes, self.class_to_idx

    @property
    def targets(self) -> Targets:
        """The targets of all records, read-only. Labels are int64, shape (len,); ``tolist()`` is ImageFolder's list.

        A missing label (None in a sample) is the least int64 in this array, -9223372036854775808. ``targets >= 0``
        selects records with labels, if no label is negative. Use ``torch.tensor(targets)``: torch.as_tensor and
        from_numpy warn about read-only arrays.

        For targets in another field with numbers, booleans or texts, see ``column``. If each target is a list of
        classes, the array is uint8, shape (len, classes), with 0 and 1. To fill this array, dbloader reads all records.

        Raises:
            OptionError: The target has no column, or the array for several classes does not fit into memory.
        """
        targets: Targets | None = self.__dict__.get("targets")
        if targets is None:
            is_list = self.target != "label" and self.classes and self.target not in self.manifest.columns
            targets = (self._read_classes() if is_list else self.column(self.target)).view(Targets)
            targets.flags.writeable = False
            self.__dict__["targets"] = targets
        return targets

    def _read_classes(self) -> np.ndarray[Any, Any]:
        length, count = len(self), len(self.classes)
        if length * count > (available_memory() or length * count):
            raise OptionError(
                f"targets of {length:,} records and {count:,} classes need {size(length * count)} of memory: make a "
                f"dataset with fewer records (where=), or read the field {self.target!r} with records()"
            )
        result = np.zeros((length, count), np.uint8)
        for start in range(0, length, _READ_AT_ONCE):
            store, positions = self.locate(range(start, min(start + _READ_AT_ONCE, length)))
            with store.borrow(positions) as records:
                for row, record in zip(result[start:], records, strict=False):
                    with NotedErrors(self, record):
                        row[checked_classes(self.target, record.fields.get(self.target), count)] = 1
        return result

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return one value of every record as an array of shape (len,). This does not read the records.

        Args:
            name: ``"label"``, ``"width"``, ``"height"``, ``"nbytes"``, ``"crc32"``, or an extra field with numbers,
                booleans or short texts. An extra field is float64, int64, bool or object (str). A missing value is NaN
                in float64, the least int64 in int64, and "" in object. If a bool is missing, the dtype is int8, and -1
                means missing.

        Raises:
            OptionError: There is no such column. The message lists the columns.
            TypeError: The name is not a str.
        """
        values = self._same_store().column(name)
        return values if self._indices is None else values[self._indices]

    @property
    def names(self) -> Names:
        """The names of all records, packed into one block of memory; ``names[index]`` is a str."""
        names: Names | None = self.__dict__.get("names")
        if names is None:
            names = self._same_store().names()
            if self._indices is not None:
                names = names.take(self._indices)
            self.__dict__["names"] = names
        return names

    @property
    def samples(self) -> Samples:
        """The pairs (name, label) of all records. Not a list as in ImageFolder: a pair is made when indexed."""
        return Samples(self.names, self.targets)

    @property
    def imgs(self) -> Samples:
        """The same as ``samples``. ImageFolder has both names."""
        return self.samples

    @property
    def content_digest(self) -> str:
        """A digest of the records and their order, equal for datasets with the same records.

        For a whole store, it is the store's digest. If a query selects some records, a slash and the SHA-256 (hex) of
        their indices (int64, little-endian) follow.
        """
        if self._indices is None or len(self._indices) == self.manifest.length:
            return self.manifest.digest
        return f"{self.manifest.digest}/{self._indices_digest}"

    @cached_property
    def _indices_digest(self) -> str:
        return hashlib.sha256(np.asarray(self._indices, "<i8").tobytes()).hexdigest()

    def record(self, index: int) -> Record:
        """Return a record with all its stored fields. Raise the same errors as ``records``."""
        return self.records([index])[0]

    def records(self, indices: Sequence[int]) -> list[Record]:
        """Return the records at some indices, in this order. Read them in one transaction or round trip.

        Raises:
            RecordIndexError: An index is not from -len to len - 1.
            DamagedRecordError: The checksum of a record is wrong.
        """
        store, positions = self.locate(indices)
        return store.read(positions)

    def labels_at(self, indices: Sequence[int]) -> list[int]:
        """Return the labels of a few records, with one lookup each. For all labels, ``targets`` is faster."""
        store, positions = self.locate(indices)
        return [store.label(position) for position in positions]

    def expect_order(self, sampler: ResumableSampler, since: Mapping[str, Any], *, margin: int, check: bool) -> None:
        """Pass the order of a new iteration to the store. ``Store.expect_order`` describes the arguments."""
        self._same_store().expect_order(sampler, since, self._indices, margin=margin, check=check)

    def find(self, name: str) -> int:
        """Return the index of the record with this name: a path below the converted folder.

        Each call searches the store. LMDB scans 4 bytes for each record, in 3 ms for a million. MongoDB uses an index.

        Raises:
            RecordNotFoundError: No record has this name, or the dataset's query does not select the first such record.
            TypeError: The name is not a str.
        """
        index = self._same_store().find(name)
        if self._indices is None:
            return index
        position = int(np.searchsorted(self._indices, index))
        if position < len(self._indices) and self._indices[position] == index:
            return position
        raise RecordNotFoundError(f"the query does not select the record {name!r} of {self.root}")

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Return the name of a sample. timm calls this for results and for ImageNet's "real" labels.

        Args:
            index: Index of the sample, from -len to len - 1.
            basename: Whether to return only the part after the last ``/``.
            absolute: Must be False. The images are in the store, so they have no absolute paths.

        Raises:
            OptionError: ``absolute`` is true.
        """
        if absolute:
            raise OptionError(f"absolute=True asks for paths of files, but the images are in the store {self.root}")
        name = self.names[index]
        return name.rpartition("/")[2] if basename else name

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return the names of all samples; see ``filename``."""
        return [self.filename(index, basename, absolute) for index in range(len(self))]

    def close(self) -> None:
        """Close the store, which the next read opens again."""
        self.store.close()

    def locate(self, indices: Sequence[int]) -> tuple[Store, list[int]]:
        """Convert indices of this dataset to indices of the store. Return the store and the converted indices.

        Raises:
            RecordIndexError: An index is not from -len to len - 1.
            TypeError: An index is not an int.
            NotAStoreError: The store has been replaced since this dataset was made.
        """
        length = len(self)
        try:
            positions = [as_index(index) for index in indices]  # accepts NumPy's and torch's integers, but not 1.5
        except TypeError as error:
            raise TypeError(f"an index of {self.root} must be an int: {error}") from error
        for at, index in enumerate(positions):
            if not -length <= index < length:
                raise RecordIndexError(f"no record {index} in {self.root}, which has {length} records, numbered from 0")
            if index < 0:
                positions[at] = index + length
        return self._same_store(), positions if self._indices is None else self._indices[positions].tolist()

    if not TYPE_CHECKING:  # with this method, type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            if name in _INSTEAD and not hasattr(type(self), name):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: {_INSTEAD[name]}")
            return super().__getattribute__(name)  # raises the original error

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError as error:
            if name not in _INSTEAD:
                raise
            raise AttributeError(f"{name} of a store's dataset cannot be changed: {_INSTEAD[name]}") from error

    def __len__(self) -> int:
        return self.manifest.length if self._indices is None else len(self._indices)

    def _repr_html_(self) -> str | None:
        """Return HTML with some images of the dataset, for notebooks."""
        return html("store_html", self, self.locate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Workers seldom need the labels and names, so leave them out.
        return {key: value for key, value in self.__dict__.items() if key not in _CACHED}

    def _same_store(self) -> Store:
        """Check that the store has not been replaced since this dataset was made, and return the store."""
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


class CompositeDataset(Dataset[Any], ABC):
    """A dataset that takes samples from several datasets of stores, such as the result of `mix`.

    Attributes:
        datasets: The datasets that make the samples.
        fields: The fields of a sample (see LMDBDataset).
        target: The field that is the target, in all datasets.
    """

    datasets: list[Any]
    fields: Any
    target: str = "label"

    @abstractmethod
    def origin(self, index: int) -> tuple[Any, int, str]:
        """Return, for a sample: the dataset that makes it, its index in this dataset, and the name of its source."""

    @abstractmethod
    def sampler(self, num_replicas: int | None = None, rank: int | None = None, *, seed: int = 0) -> ResumableSampler:
        """Return the sampler for training. ShuffleSampler describes the arguments and errors."""

    @abstractmethod
    def fetcher(self, parts: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None) -> Any:
        """Return the BatchFetcher of this dataset, given the fetchers of ``datasets``."""

    @abstractmethod
    def replaced(self, datasets: list[Any]) -> Self:
        """Return a copy with these datasets of the same records. Raise OptionError if shapes of images differ."""


def find_origin(dataset: Any, index: int) -> tuple[Any, int]:
    """Return the inner dataset that makes a sample, and the sample's index in the inner dataset."""
    while type(dataset) is Subset:
        dataset, index = dataset.dataset, dataset.indices[index]
    return dataset.origin(index)[:2] if isinstance(dataset, CompositeDataset) else (dataset, index)


def find_selected(store: Store, query: str) -> np.ndarray[Any, Any]:
    """Return the indices of the records that a query finds, ascending. Warn if no record is found.

    The dtype is uint32, or int64 for a store of at least 2**32 records.

    Raises:
        OptionError: The query is wrong.
        TypeError: The query is not a str.
    """
    indices = np.asarray(extension("find_matching")(store, query))
    if not len(indices):
        warnings.warn(f"the query {query!r} finds no record of {store.place}", UserWarning, stacklevel=5)
    return indices.astype(np.uint32 if len(store) < 2**32 else np.int64, copy=False)


class Targets(np.ndarray[Any, Any]):
    """An array of labels, with the method ``count`` of a list. Results of arithmetic are plain arrays."""

    def count(self, label: int) -> int:
        """Return the number of records with a label."""
        return int(np.count_nonzero(self == label))

    @override
    def __add__(self, other: Any) -> Any:
        if isinstance(other, (Targets, list)):  # ImageFolder's targets are lists, which + concatenates
            raise TypeError("targets are arrays, which + would add up: np.concatenate([a, b]) joins them")
        return super().__add__(other)

    __radd__ = __add__

    @override
    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)


class Samples(Sequence[tuple[str, Any]]):
    """The pairs (name, target) of all records. A pair becomes a Python object when it is indexed."""

    def __init__(self, names: Names, targets: np.ndarray[Any, Any]) -> None:
        self._names = names
        self._targets = targets

    @overload
    def __getitem__(self, index: int) -> tuple[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, Any]]: ...
    @override
    def __getitem__(self, index: int | slice) -> tuple[str, Any] | list[tuple[str, Any]]:
        if isinstance(index, slice):
            return list(zip(self._names[index], self._targets[index].tolist(), strict=True))
        return self._names[index], np.asarray(self._targets)[[index]].tolist()[0]

    @override
    def __len__(self) -> int:
        return len(self._names)

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} samples (name, label), packed>"


def describe_record(record: Record, root: str) -> str:
    """Return text for messages: the index and name of a record, and the place of its store."""
    return f"record {record.index} ({record.name or 'without a name'}) of {root}"


def check_whole(record: Record, root: str) -> None:
    """Raise DamagedImageError if the image of a record was damaged when it was stored."""
    if record.damaged is not None:
        raise DamagedImageError(
            f"{describe_record(record, root)} was stored damaged: {record.damaged}; "
            "convert without on_damaged='keep', or pass decode=None to get its bytes",
        )


class NotedErrors:  # a @contextmanager takes three times as long, which matters for each sample
    """Adds a note with the record to each error in the ``with`` block."""

    __slots__ = ("dataset", "record")

    def __init__(self, dataset: RecordDataset, record: Record) -> None:
        self.dataset = dataset
        self.record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StopIteration):
            raise stop_iteration_error(describe_record(self.record, self.dataset.root)) from error
        if isinstance(error, Exception):
            add_note(error, f"in {describe_record(self.record, self.dataset.root)}")
