"""What all datasets do: give the records of a store as samples."""

from __future__ import annotations

from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset
from typing_extensions import override

from dbloader.datasets.samples import Samples
from dbloader.decoding import decode_pil
from dbloader.errors import DamagedImageError, NotAStoreError, OptionError, RecordIndexError, RecordNotFoundError
from dbloader.records import STANDARD_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from dbloader.columns import Names
    from dbloader.manifest import Manifest
    from dbloader.records import Record
    from dbloader.stores import Store

_OWN_FIELDS = (*STANDARD_FIELDS, "index")


class StoreDataset(Dataset[Any]):
    """The records of a store as samples; LMDBDataset says more."""

    def __init__(
        self,
        store: Store,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        fields: Iterable[str] | None = None,
    ) -> None:
        self.store = store
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode
        if isinstance(fields, str):
            raise OptionError(f"fields must be several names, such as ({fields!r},), got the one str {fields!r}")
        self.fields = None if fields is None else tuple(fields)
        self.manifest: Manifest = store.manifest
        self._indices: np.ndarray[Any, Any] | None = None  # ascending, in the store; None for all
        self._check_fields(self.manifest)

    @property
    def root(self) -> str:
        """The place of the store."""
        return self.store.place

    @property
    def classes(self) -> list[str]:
        """The class names in the order of their labels; empty if the labels have no names."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.manifest.classes)}

    @cached_property
    def targets(self) -> np.ndarray[Any, Any]:
        """The labels of all records: int64, shape (len,); the least int64 where a record has none."""
        labels = self._same_store().column("label")
        return labels if self._indices is None else labels[self._indices]

    @cached_property
    def names(self) -> Names:
        """The names of all records, packed; each is made a str when it is asked for."""
        names = self._same_store().names()
        return names if self._indices is None else names.take(self._indices)

    @property
    def samples(self) -> Samples:
        """The (name, label) of all records, as ImageFolder has them; packed."""
        return Samples(self.names, self.targets)

    @property
    def imgs(self) -> Samples:
        """The same as ``samples``, as in ImageFolder."""
        return self.samples

    def record(self, index: int) -> Record:
        """Gives the record itself, with all its fields, as it is stored.

        Raises:
            RecordIndexError: There is none at the index, which may be negative.
            DamagedRecordError: It is not what was written.
        """
        return self._same_store().read(self._positions([index]))[0]

    def find(self, name: str) -> int:
        """Gives the index of the record with a name (the path below the root of the converted folder).

        Raises:
            RecordNotFoundError: There is none.
        """
        index = self._same_store().find(name)
        if self._indices is None:
            return index
        position = int(np.searchsorted(self._indices, index))
        if position == len(self._indices) or self._indices[position] != index:
            raise RecordNotFoundError(f"the record of {self.root} that is named {name!r} is not one of the query's")
        return position

    def close(self) -> None:
        """Lets go of the store's handle; it is opened again when it is needed."""
        self.store.close()

    @override
    def __getitem__(self, index: int) -> Any:
        return self._batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Gives a batch of samples, read in one transaction; torch's DataLoader calls this.

        Args:
            indices: From -len to len - 1.
        """
        if type(self).__getitem__ is not StoreDataset.__getitem__:
            return [self[index] for index in indices]  # a subclass makes its own samples
        return self._batch(indices)

    def _batch(self, indices: Sequence[int]) -> list[Any]:
        return [self._sample(record) for record in self._same_store().read(self._positions(indices))]

    def _positions(self, indices: Sequence[int]) -> list[int]:
        """Gives where in the store the samples at some indices are, which may be negative."""
        length = len(self)
        positions = [as_index(index) for index in indices]  # also NumPy's and torch's integers, but no 1.5
        for at, index in enumerate(positions):
            if not -length <= index < length:
                raise RecordIndexError(f"no record {index} in {self.root}, which has {length}")
            if index < 0:
                positions[at] = index + length
        return positions if self._indices is None else self._indices[positions].tolist()

    def __len__(self) -> int:
        return self.manifest.length if self._indices is None else len(self._indices)

    def __repr__(self) -> str:
        lines = [f"Number of datapoints: {len(self)}", f"Root location: {self.root}"]
        lines.append(f"Classes: {len(self.manifest.classes)}")
        if self.fields is not None:
            lines.append(f"Fields: {', '.join(self.fields)}")
        for title, transform in (("Transform", self.transform), ("Target transform", self.target_transform)):
            if transform is not None:
                title_width = len(title) + 2
                lines.append(f"{title}: " + repr(transform).replace("\n", "\n" + " " * title_width))
        return "\n    ".join([f"Dataset {type(self).__name__}", *(line.replace("\n", "\n    ") for line in lines)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # The columns are read again where they are asked for, which in a worker they seldom are.
        return {key: value for key, value in self.__dict__.items() if key not in ("targets", "names")}

    def _sample(self, record: Record) -> Any:
        try:
            if self.fields is None:
                return self._image(record), self._label(record)
            return {name: self._field(record, name) for name in self.fields}
        except Exception as error:
            # Said once, whatever is wrong with it: which record it was.
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in {self._told(record)}")
            raise

    def _told(self, record: Record) -> str:
        return f"record {record.index} ({record.name or 'without a name'}) of {self.root}"

    def _field(self, record: Record, name: str) -> Any:
        if name == "image":
            return self._image(record)
        if name == "label":
            return self._label(record)
        if name in _OWN_FIELDS:
            return getattr(record, name)
        return record.fields.get(name)

    def _image(self, record: Record) -> Any:
        image: Any = record.image
        if isinstance(image, bytes) and self.decode is not None:
            if record.damaged is not None:
                raise DamagedImageError(
                    f"{self._told(record)} was stored damaged: {record.damaged}; "
                    "convert without on_damaged='keep', or pass decode=None to get its bytes",
                )
            image = self.decode(image)
        return image if self.transform is None or image is None else self.transform(image)

    def _label(self, record: Record) -> Any:
        label = record.label
        return label if self.target_transform is None or label is None else self.target_transform(label)

    def _check_fields(self, manifest: Manifest) -> None:
        known = (*_OWN_FIELDS, *manifest.fields)
        for name in self.fields or ():
            if name not in known:
                raise OptionError(f"no record of {self.root} has a field {name!r}; there are {', '.join(known)}")
        if self.fields is None and manifest.length and not manifest.labelled:
            raise OptionError(
                f"no record of {self.root} has a label, so a sample cannot be (image, label): "
                f"choose fields, such as fields=('image',); there are {', '.join(known)}",
            )

    def _same_store(self) -> Store:
        """Gives the store, which a worker that opens it anew must find to be the one that its indices were made for."""
        manifest = self.store.manifest
        if manifest is not self.manifest:
            if (manifest.digest, manifest.classes) != (self.manifest.digest, self.manifest.classes):
                raise NotAStoreError(
                    f"the store at {self.root} has been replaced since this dataset was made: make the dataset anew",
                )
            self.manifest = manifest
        return self.store
