"""Make samples of the records of a store: the base class of LMDBDataset and MongoDataset."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._describe import short_repr, stop_iteration_error
from dbloader._extensions import extension, has_extensions
from dbloader._options import check_choice
from dbloader.datasets.base import NotedErrors, RecordDataset, check_whole, describe_record
from dbloader.datasets.fields import (
    check_fields,
    checked_fields,
    checked_target,
    has_fields_to_crop,
    has_image,
    join_image,
    names_of,
    other_fields,
    target_names,
)
from dbloader.datasets.transforms import apply_to_pair, apply_transform, is_albumentations, random_numbers_for
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.lazy import RESIZES, open_lazy
from dbloader.decoding.open import decode_pil
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dbloader.decoding.decoder import Plan
    from dbloader.records.record import Record
    from dbloader.stores.base import Store


class StoreDataset(RecordDataset):
    """Makes samples from the records of a store. LMDBDataset documents the options."""

    def __init__(
        self,
        store: Store,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        transforms: Callable[..., Any] | None = None,
        target: str | None = None,
        fields: Iterable[str] | Mapping[str, str] | None = None,
        resize: str | None = None,
        where: str | None = None,
    ) -> None:
        functions = {"transform": transform, "target_transform": target_transform, "transforms": transforms}
        for name, function in {**functions, "decode": decode}.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a callable or None, got {short_repr(function)}")
        if transforms is not None and (transform is not None or target_transform is not None):
            raise OptionError("transforms takes whole samples: pass it alone, without transform and target_transform")
        check_choice("resize", "exact" if resize is None else resize, RESIZES)
        if resize not in (None, "exact") and decode is not decode_pil:
            raise OptionError(f"resize={resize!r} is for the default decode, decode_pil: leave out resize or decode")
        super().__init__(store, where)
        self.where = where
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms
        self.decode = decode
        self.resize = resize
        self.fields = checked_fields(fields)
        self.target = checked_target(target, self.fields, self.manifest)
        check_fields(self, self.manifest)

    def random_numbers(self, indices: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """Return random numbers for some samples: float64, shape (len(indices), n). None if no transform is random."""
        return random_numbers_for(self.decode, indices, self.transforms if self.transform is None else self.transform)

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._batch(range(*index.indices(len(self))))
        return self._batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of samples. Read them in one transaction. torch's DataLoader calls this method."""
        if type(self).__getitem__ is not StoreDataset.__getitem__:
            return [self._subclass_sample(index) for index in indices]
        return self._batch(indices)

    def _subclass_sample(self, index: int) -> Any:
        try:
            return self[index]
        except StopIteration as stop:
            raise stop_iteration_error(f"sample {index} of {self.root}") from stop

    @property
    def makes_own_samples(self) -> bool:
        """Whether the class is a subclass that overrides ``__getitem__``, ``__getitems__`` or ``sample``."""
        names = ("__getitem__", "__getitems__", "sample")
        return any(getattr(type(self), name) is not getattr(StoreDataset, name) for name in names)

    def _batch(self, indices: Sequence[int]) -> list[Any]:
        # With resize=None or "exact", fuse nothing: transforms are called in the same way as by ImageFolder.
        fuses = self.transform is not None and self.resize not in (None, "exact") and has_extensions()
        dataset = extension("with_head")(self) if fuses else self
        random_numbers, records = dataset.random_numbers(indices), dataset.records(indices)
        rows = [None] * len(records) if random_numbers is None else random_numbers
        return [dataset.sample(*each) for each in zip(records, rows, strict=True)]

    def __repr__(self) -> str:
        """Return a text in the form of torchvision's datasets."""
        lines = [f"Number of datapoints: {len(self)}", f"Root location: {self.root}", f"Classes: {len(self.classes)}"]
        if self.target != "label":
            lines.append(f"Target: {self.target}")
        if self.fields is not None:
            named = (name if name == field else f"{name} ({field})" for name, field in names_of(self.fields).items())
            lines.append(f"Fields: {', '.join(named)}")
        if self.resize is not None:
            lines.append(f"Resize: {self.resize}")
        for name in ("transform", "target_transform", "transforms"):
            transform = getattr(self, name)
            if transform is not None:
                title = f"{name.capitalize().replace('_', ' ')}: "
                lines.append(title + repr(transform).replace("\n", "\n" + " " * len(title)))
        if self.where is not None:
            lines.append(f"Where: {self.where} ({len(self):,} of {self.manifest.length:,} records)")
        return "\n    ".join([f"Dataset {type(self).__name__}", *(line.replace("\n", "\n    ") for line in lines)])

    def sample(self, record: Record, random_numbers: np.ndarray[Any, Any] | None = None) -> Any:
        """Return the sample of a record. ``random_numbers`` is a row of the result of the method ``random_numbers``."""
        if not has_image(self.fields):
            return self._transformed(record, self.rest(record), random_numbers)
        decode: Any = self.decode
        planned = (
            has_fields_to_crop(self) and isinstance(decode, Decoder) and decode.can_plan and record.image is not None
        )
        plan = self.plan(record, random_numbers) if planned else None
        sample = join_image(self.fields, self._image(record, random_numbers, plan), self.rest(record, plan))
        return self._transformed(record, sample, random_numbers)

    def _transformed(self, record: Record, sample: Any, random_numbers: np.ndarray[Any, Any] | None) -> Any:
        if self.transforms is None:
            return sample
        with NotedErrors(self, record):
            if isinstance(sample, dict):
                return apply_transform(self.transforms, sample, random_numbers)
            if is_albumentations(self.transforms):
                return (apply_transform(self.transforms, sample[0], random_numbers), *sample[1:])
            return (*apply_to_pair(self.transforms, *sample[:2]), *sample[2:])

    def plan(self, record: Record, random_numbers: np.ndarray[Any, Any] | None) -> Plan:
        """Return a Decoder's plan for the image of a record. The arguments are the same as in ``sample``."""
        decode: Any = self.decode
        with NotedErrors(self, record):
            plan: Plan = decode.plan(record.image, _drawn_for(decode, random_numbers), **self._decoder_options(record))
        return plan

    def _image(self, record: Record, random_numbers: np.ndarray[Any, Any] | None, plan: Plan | None) -> Any:
        with NotedErrors(self, record):
            image = self._decoded(record, random_numbers) if plan is None else plan.tensor()
            if is_albumentations(self.transform) and has_fields_to_crop(self):
                raise OptionError(
                    "transform= would change the image, but not its masks and boxes: pass this transform of "
                    "albumentations as transforms=, which gets the whole sample"
                )
            unchanged = self.transform is None or image is None
            return image if unchanged else apply_transform(self.transform, image, random_numbers)

    def rest(self, record: Record, plan: Plan | None = None) -> Any:
        """Return a sample without its image: the tuple ``(target,)``, or a dict of all other fields.

        If the ``plan`` of the image is given, files and boxes are cropped like the image.
        """
        with NotedErrors(self, record):
            only_label = self.fields is None and self.target == "label"
            rest = {"label": record.label} if only_label else other_fields(self, record, plan)
            if self.target_transform is not None or self.transform is not None:
                for name in target_names(self):  # raises an error if a transform would have no effect
                    rest[name] = None if rest[name] is None else self.target_transform(rest[name])  # type: ignore[misc]
            return (rest["label"],) if self.fields is None else rest

    def _decoded(self, record: Record, random_numbers: np.ndarray[Any, Any] | None) -> Any:
        image: Any = record.image
        decode = self.decode
        if image is not None and isinstance(decode, Decoder):
            return decode(image, _drawn_for(decode, random_numbers), **self._decoder_options(record))
        if image is None or decode is None or isinstance(image, np.ndarray):
            return image
        if decode is decode_pil:
            note = f"in {describe_record(record, self.root)}"
            return open_lazy(image, **self._decoder_options(record), resize=self.resize or "exact", note=note)
        check_whole(record, self.root)
        return decode(image)

    @property
    def loader(self) -> Callable[[str], Any]:
        """A function from the name of a record to its decoded image. Unlike in ImageFolder, it cannot be replaced."""
        return self._load

    def _load(self, name: str) -> Any:
        record = self.record(self.find(name))
        with NotedErrors(self, record):
            return self._decoded(record, None)

    def _decoder_options(self, record: Record) -> dict[str, Any]:
        """Return the options for decoding the image of a record. Raise an error if the image was stored damaged."""
        if isinstance(record.image, np.ndarray):
            return {}
        check_whole(record, self.root)
        # The option ``tile`` of a conversion stores the field ``tiles``. Without it, ``tiles`` is a field of the user.
        tiles = record.fields.get("tiles") if self.manifest.source.get("tile") else None
        return {"tiles": tiles, "known_intact": self.manifest.has_decoded_images}


def _drawn_for(decode: Decoder, random_numbers: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    return None if random_numbers is None else random_numbers[: decode.draws]


def checked_place(place: Any, root: Any, wanted: str) -> Any:
    """Return the place of a store. Replace ``~`` by the home folder. ``root`` is ImageFolder's name for ``place``.

    Raises:
        TypeError: The place is not a str or a path, or ``place`` and ``root`` are both given.
    """
    if place is not None and root is not None:
        raise TypeError("root is another name of place: give one of them")
    place = root if place is None else place
    if not isinstance(place, (str, bytes, os.PathLike)):
        raise TypeError(f"place must be {wanted}, got {type(place).__name__}")
    return os.path.expanduser(place) if os.fsdecode(place).startswith("~") else place  # noqa: PTH111 - it may be a URI
