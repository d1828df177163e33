"""The records of a store as samples, which all datasets give."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._describe import add_note, short_repr, stop_iteration_error
from dbloader.datasets.base import RecordDataset
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.lazy import RESIZES, open_lazy
from dbloader.decoding.masks import changes_size, refuse_masks
from dbloader.decoding.open import decode_pil
from dbloader.errors import DamagedImageError, OptionError
from dbloader.records.record import STANDARD_FIELDS
from dbloader.sampling.rng import SampleRNG, SeededIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_OWN_FIELDS = (*STANDARD_FIELDS, "index")


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
        resize: str = "exact",
    ) -> None:
        for name, function in (("transform", transform), ("target_transform", target_transform), ("decode", decode)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a callable or None, got {short_repr(function)}")
        if isinstance(fields, str):
            raise OptionError(f"fields must be several names, such as ({fields!r},), got the one str {fields!r}")
        if fields is not None and not isinstance(fields, Iterable):
            raise TypeError(f"fields must be names, such as ('image', 'label'), or None, got {short_repr(fields)}")
        if resize not in RESIZES:
            raise OptionError(f"resize must be one of {', '.join(RESIZES)}, got {short_repr(resize)}")
        if resize != "exact" and decode is not decode_pil:
            raise OptionError(f"resize={resize!r} is for the default decode, decode_pil: leave out one of the two")
        super().__init__(store)
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode
        self.resize = resize
        self.fields = None if fields is None else tuple(fields)
        self._check_fields(self.manifest)

    def _random_numbers(self, indices: Sequence[int]) -> np.ndarray[Any, Any] | None:
        return random_numbers_for(self.decode, indices)

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._batch(range(*index.indices(len(self))))
        return self._batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of samples, read in one transaction; torch's DataLoader calls this."""
        if type(self).__getitem__ is not StoreDataset.__getitem__:
            return [self._subclass_sample(index) for index in indices]
        return self._batch(indices)

    def _subclass_sample(self, index: int) -> Any:
        try:
            return self[index]
        except StopIteration as stop:
            raise stop_iteration_error(f"sample {index} of {self.root}") from stop

    @property
    def _makes_its_own_samples(self) -> bool:
        names = ("__getitem__", "__getitems__", "_sample", "_joined", "_image")
        return any(getattr(type(self), name) is not getattr(StoreDataset, name) for name in names)

    @property
    def _gives_records(self) -> bool:
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
        random_numbers = self._random_numbers(indices)
        records = self.records(indices)
        return [
            self._sample(record, None if random_numbers is None else random_numbers[at])
            for at, record in enumerate(records)
        ]

    def __repr__(self) -> str:
        lines = [f"Number of datapoints: {len(self)}", f"Root location: {self.root}"]
        lines.append(f"Classes: {len(self.manifest.classes)}")
        if self.fields is not None:
            lines.append(f"Fields: {', '.join(self.fields)}")
        for title, transform in (("Transform", self.transform), ("Target transform", self.target_transform)):
            if transform is not None:
                lines.append(f"{title}: " + repr(transform).replace("\n", "\n" + " " * len(f"{title}: ")))
        return "\n    ".join([f"Dataset {type(self).__name__}", *(line.replace("\n", "\n    ") for line in lines)])

    def _sample(self, record: Record, random_numbers: np.ndarray[Any, Any] | None = None) -> Any:
        """Return the sample of a record, with its row of ``_random_numbers``."""
        if self.fields is not None and "image" not in self.fields:
            return self._others(record)
        return self._joined(self._image(record, random_numbers), self._others(record))

    def _joined(self, image: Any, others: Any) -> Any:
        """Return a sample of the results of ``_image`` and ``_others``, or a batch of those of many, collated."""
        if self.fields is None:
            return (image, *others)
        return {name: image if name == "image" else others[name] for name in self.fields}

    def _image(self, record: Record, random_numbers: np.ndarray[Any, Any] | None = None) -> Any:
        with NotedErrors(self, record):
            image = self._decoded(record, random_numbers)
            return image if self.transform is None or image is None else self.transform(image)

    def _others(self, record: Record) -> Any:
        """Return the rest of a sample: a tuple of the label, or a dict of all fields but the image."""
        with NotedErrors(self, record):
            if self.fields is None:
                return (self._label(record),)
            others = {name: self._field(record, name) for name in self.fields if name != "image"}
            if "image" in self.fields and (changes_size(self.decode) or changes_size(self.transform)):
                further = {name: value for name, value in others.items() if name not in _OWN_FIELDS}
                refuse_masks(record.image, further, self._describe(record))
            return others

    def _check_whole(self, record: Record) -> None:
        """Raise DamagedImageError if the image of a record was damaged when it was stored."""
        if record.damaged is not None:
            raise DamagedImageError(
                f"{self._describe(record)} was stored damaged: {record.damaged}; "
                "convert without on_damaged='keep', or pass decode=None to get its bytes",
            )

    def _field(self, record: Record, name: str) -> Any:
        if name == "label":
            return self._label(record)
        return getattr(record, name) if name in _OWN_FIELDS else record.fields.get(name)

    def _decoded(self, record: Record, random_numbers: np.ndarray[Any, Any] | None) -> Any:
        image: Any = record.image
        decode = self.decode
        if image is not None and isinstance(decode, Decoder):
            return decode(image, random_numbers, **self._known(record))
        if image is None or decode is None or isinstance(image, np.ndarray):
            return image
        if decode is decode_pil:
            return open_lazy(image, **self._known(record), resize=self.resize, note=f"in {self._describe(record)}")
        self._check_whole(record)
        return decode(image)

    def _known(self, record: Record) -> dict[str, Any]:
        """Return what conversion found out about an image, for a Decoder, after checking that it is not damaged."""
        if isinstance(record.image, np.ndarray):
            return {}
        self._check_whole(record)
        source = self.manifest.source
        tiles = record.fields.get("tiles") if source.get("tile") else None  # else it is a field of the listing
        # An image that conversion has decoded, and whose CRC is right, has no damage that decoding could find.
        return {"tiles": tiles, "known_intact": source.get("check") == "decode"}

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


def random_numbers_for(decode: Any, indices: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """Return random numbers in [0, 1) for a Decoder: float64, shape (N, decode.draws); None if it needs none."""
    if not isinstance(decode, Decoder) or not decode.draws:
        return None
    rng = indices.rng if isinstance(indices, SeededIndices) else SampleRNG.from_torch(len(indices))
    return rng.uniform(decode.draws, "decode")


def checked_place(place: Any, wanted: str) -> Any:
    """Return the place of a store; raise TypeError, without the place in it, unless it is a str or a path."""
    if not isinstance(place, (str, bytes, os.PathLike)):
        raise TypeError(f"place must be {wanted}, got {type(place).__name__}")
    return place


class NotedErrors:  # not a @contextmanager: it is entered once per sample, and costs a third as much
    """Notes the record on any error raised inside."""

    __slots__ = ("dataset", "record")

    def __init__(self, dataset: StoreDataset, record: Record) -> None:
        self.dataset = dataset
        self.record = record

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StopIteration):
            raise stop_iteration_error(self.dataset._describe(self.record)) from error
        if isinstance(error, Exception):
            add_note(error, f"in {self.dataset._describe(self.record)}")
