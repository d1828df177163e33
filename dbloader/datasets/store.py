"""What all datasets do: give the records of a store as samples."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._describe import shown
from dbloader.datasets.base import RecordDataset
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.pillow import decode_pil
from dbloader.decoding.uncropped import check_none_fits, crops
from dbloader.errors import DamagedImageError, LoaderError, OptionError
from dbloader.records.record import STANDARD_FIELDS
from dbloader.sampling.rng import SampleRNG, SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from dbloader.decoding.decoder import Plan
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_OWN_FIELDS = (*STANDARD_FIELDS, "index")
# Where a record of a tiled JPEG has the lengths of its tiles.
_TILES = "tiles"


class StoreDataset(RecordDataset):
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
        for name, function in (("transform", transform), ("target_transform", target_transform), ("decode", decode)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a callable or None, got {shown(function)}")
        if isinstance(fields, str):
            raise OptionError(f"fields must be several names, such as ({fields!r},), got the one str {fields!r}")
        if fields is not None and not isinstance(fields, Iterable):
            raise TypeError(f"fields must be names, such as ('image', 'label'), or None, got {shown(fields)}")
        super().__init__(store)
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode
        self.fields = None if fields is None else tuple(fields)
        self._check_fields(self.manifest)

    def _numbers(self, indices: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """Return what is random in the decoding of samples: float64, shape (len(indices), decode.draws).

        Args:
            indices: If they are SeededIndices, as a SeededBatchSampler gives them, the numbers are made of their keys,
                so they are the same in any process. Else they are drawn with torch's global generator.

        Returns:
            Numbers in [0, 1); None if the decoding takes none.
        """
        if not isinstance(self.decode, Decoder) or not self.decode.draws:
            return None
        keys = indices.keys if isinstance(indices, SeededIndices) else SampleRNG.drawn(len(indices))
        return keys.uniform(self.decode.draws, "decode")

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._batch(range(*index.indices(len(self))))
        return self._batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of samples, read in one transaction; torch's DataLoader calls this.

        Args:
            indices: From -len to len - 1.
        """
        if type(self).__getitem__ is not StoreDataset.__getitem__:
            return [self._made_by_subclass(index) for index in indices]
        return self._batch(indices)

    def _made_by_subclass(self, index: int) -> Any:
        try:
            return self[index]
        except StopIteration as stop:
            raise _no_end(f"sample {index} of {self.root}") from stop

    @property
    def _makes_its_own_samples(self) -> bool:
        """Whether this is of a subclass that makes its samples in another way."""
        names = ("__getitem__", "__getitems__", "_sample", "_joined", "_image")
        return any(getattr(type(self), name) is not getattr(StoreDataset, name) for name in names)

    @property
    def gives_records(self) -> bool:
        """Whether samples are the records, at most decoded: ``write_store`` then copies these."""
        return (
            self.transform is None
            and self.target_transform is None
            and (self.decode is None or self.decode is decode_pil)
            and "index" not in (self.fields or ())
            and not self._makes_its_own_samples
            and not hasattr(self, "__iter__")
        )

    def _batch(self, indices: Sequence[int]) -> list[Any]:
        numbers = self._numbers(indices)
        records = self.records(indices)
        return [self._sample(record, None if numbers is None else numbers[at]) for at, record in enumerate(records)]

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

    def _sample(self, record: Record, numbers: np.ndarray[Any, Any] | None = None) -> Any:
        """Return the sample of a record, as indexing gives it.

        Args:
            record: One of this dataset's.
            numbers: A row of ``numbers``.
        """
        if self.fields is not None and "image" not in self.fields:
            return self._others(record)
        return self._joined(self._image(record, numbers), self._others(record))

    def _joined(self, image: Any, others: Any) -> Any:
        """Put an image, or a batch of images, into the place where samples have it.

        Args:
            image: What ``image`` gave, or many of them in one tensor.
            others: What ``others`` gave, or what many of them became when they were collated.
        """
        if self.fields is None:
            return (image, *others)
        return {name: image if name == "image" else others[name] for name in self.fields}

    def _image(self, record: Record, numbers: np.ndarray[Any, Any] | None = None) -> Any:
        """Return the image of a record, decoded and transformed, as it stands in the sample."""
        with self._named(record):
            image = self._decoded(record, numbers)
            return image if self.transform is None or image is None else self.transform(image)

    def _others(self, record: Record) -> Any:
        """Return the rest of a record's sample: a tuple of its label, or a dict of all fields but the image."""
        with self._named(record):
            if self.fields is None:
                return (self._label(record),)
            others = {name: self._field(record, name) for name in self.fields if name != "image"}
            if "image" in self.fields and (crops(self.decode) or crops(self.transform)):
                further = {name: value for name, value in others.items() if name not in _OWN_FIELDS}
                check_none_fits(record.image, further, self._describe(record))
            return others

    def _check_whole(self, record: Record) -> None:
        """Refuse the image of a record of which data is missing.

        Raises:
            DamagedImageError: It was stored nevertheless.
        """
        if record.damaged is not None:
            raise DamagedImageError(
                f"{self._describe(record)} was stored damaged: {record.damaged}; "
                "convert without on_damaged='keep', or pass decode=None to get its bytes",
            )

    def _named(self, record: Record) -> AbstractContextManager[None]:
        """Says of errors, whatever is wrong with a record, which one it was."""
        return _Named(self, record)

    def _plan(self, record: Record, numbers: np.ndarray[Any, Any] | None = None) -> Plan | None:
        """Return what is left to do for the image of a record, where ``decode`` is a Decoder; see ``Decoder.plan``.

        Args:
            record: One of this dataset's; as long as it is lent, the plan is good for.
            numbers: A row of ``numbers``.

        Returns:
            None if the record has no image.
        """
        decode: Any = self.decode
        plan: Plan | None = None
        if record.image is not None:
            plan = decode.plan(record.image, numbers, **self._known(record))
        return plan

    def _field(self, record: Record, name: str) -> Any:
        if name == "label":
            return self._label(record)
        return getattr(record, name) if name in _OWN_FIELDS else record.fields.get(name)

    def _decoded(self, record: Record, numbers: np.ndarray[Any, Any] | None) -> Any:
        image: Any = record.image
        decode = self.decode
        if image is not None and isinstance(decode, Decoder):
            return decode(image, numbers, **self._known(record))
        if image is None or decode is None or isinstance(image, np.ndarray):
            return image
        self._check_whole(record)
        return decode(image)

    def _known(self, record: Record) -> dict[str, Any]:
        """Return what a Decoder may know of an image beside its bytes or pixels, after checking that it is whole."""
        if isinstance(record.image, np.ndarray):
            return {}
        self._check_whole(record)
        source = self.manifest.source
        tiles = record.fields.get(_TILES) if source.get("tile") else None  # else a field of the listing's own
        # What conversion has decoded, and of which the CRC is right, has no damage that decoding could find.
        return {"tiles": tiles, "checked": source.get("check") == "decode"}

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


def checked_place(place: Any, wanted: str) -> Any:
    """Return the place of a store, which is checked further by the store.

    Raises:
        TypeError: It can be none; it is not repeated in the message, since it may hold a password.
    """
    if not isinstance(place, (str, bytes, os.PathLike)):
        raise TypeError(f"place must be {wanted}, got {type(place).__name__}")
    return place


class _Named:
    """Adds to errors the record that they are of; a class, as it is entered for each sample, and is a third as dear."""

    __slots__ = ("dataset", "record")

    def __init__(self, dataset: StoreDataset, record: Record) -> None:
        self.dataset = dataset
        self.record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StopIteration):
            raise _no_end(self.dataset._describe(self.record)) from error
        if isinstance(error, Exception) and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"in {self.dataset._describe(self.record)}")


def _no_end(what: str) -> LoaderError:
    """Return the error for a StopIteration of a user's function, which torch takes for the end of the epoch."""
    return LoaderError(
        f"StopIteration was raised in the making of {what}, which would end the epoch early: "
        "catch it there, or give next() a default"
    )
