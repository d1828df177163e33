"""Datasets: the records of a store as samples, in place of torchvision's ImageFolder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING, Any, overload

from torch.utils.data import Dataset
from typing_extensions import override

from dbloader.decoding import decode_pil
from dbloader.errors import DamagedImageError, NotAStoreError, OptionError, RecordIndexError
from dbloader.records import STANDARD_FIELDS
from dbloader.stores.lmdb import LMDBStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    import numpy as np
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
        self._check_fields()

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
        return self._same_store().column("label")

    @cached_property
    def names(self) -> Names:
        """The names of all records, packed; each is made a str when it is asked for."""
        return self._same_store().names()

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
        return self._same_store()[as_index(index)]

    def find(self, name: str) -> int:
        """Gives the index of the record with a name (the path below the root of the converted folder).

        Raises:
            RecordNotFoundError: There is none.
        """
        return self._same_store().find(name)

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
        length = len(self)
        positions = [as_index(index) for index in indices]  # also NumPy's and torch's integers, but no 1.5
        for at, index in enumerate(positions):
            if not -length <= index < length:
                raise RecordIndexError(f"no record {index} in {self.root}, which has {length}")
            if index < 0:
                positions[at] = index + length
        return [self._sample(record) for record in self._same_store().read(positions)]

    def __len__(self) -> int:
        return self.manifest.length

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

    def _check_fields(self) -> None:
        manifest = self.manifest
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


class Samples(Sequence[tuple[str, int]]):
    """The (name, label) of all records; no Python object exists for one until it is asked for."""

    def __init__(self, names: Names, targets: np.ndarray[Any, Any]) -> None:
        self._names = names
        self._targets = targets

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...
    @override
    def __getitem__(self, index: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        if isinstance(index, slice):
            return list(zip(self._names[index], self._targets[index].tolist(), strict=True))
        return self._names[index], int(self._targets[index])

    @override
    def __len__(self) -> int:
        return len(self._names)

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} samples (name, label), packed>"


class LMDBDataset(StoreDataset):
    """The images and labels of an LMDB store, in place of torchvision's ImageFolder.

    It opens the store when it is made, so that a wrong place is found at once; each process that it is sent to, by
    pickling or fork, opens the store for itself at its first read. Threads may share it. Memory does not grow with the
    number of records until ``targets``, ``names`` or ``samples`` are asked for, which take 8, about 30 and about 40
    bytes a record.

    A sample is ``(image, label)``: the image as ``decode`` and ``transform`` give it, the label an int (None for a
    record without one). With ``fields`` it is a dict of those fields.

    Args:
        place: Path of the store.
        transform: Called with each decoded image; not where there is none.
        target_transform: Called with each label; not where there is none.
        decode: Called with the bytes of each image file; None gives the bytes themselves. An image that was stored as
            an array is given as it is. The default gives an RGB PIL image, as ImageFolder does.
        fields: Names of fields to give in a dict: ``"image"``, ``"label"``, ``"name"``, ``"index"``, ``"width"``,
            ``"height"``, ``"format"``, ``"damaged"``, ``"resized_from"``, and those that the records have beside. A
            record without one gives None.

    Raises:
        StoreNotFoundError: Nothing is at the place.
        NotAStoreError: Something else is, or a store whose conversion is not finished.
        StoreVersionError: The store has a newer format.
        DamagedStoreError: The store is cut short or corrupted.
        OptionError: No record has one of the fields; or none has a label and no fields were chosen.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        fields: Iterable[str] | None = None,
    ) -> None:
        super().__init__(LMDBStore(place), transform, target_transform, decode=decode, fields=fields)
