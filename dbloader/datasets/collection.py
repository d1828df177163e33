"""Image files in a MongoDB collection that another program made, read where they are."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._options import checked_flag
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.open import decode_pil
from dbloader.errors import (
    DamagedRecordError,
    ImageError,
    NotAnImageError,
    OptionError,
    RecordNotFoundError,
    SourceError,
    StoreError,
)
from dbloader.images.info import read_facts
from dbloader.images.jpeg import State, examine, repair
from dbloader.records.columns import NO_LABEL
from dbloader.records.manifest import Manifest
from dbloader.records.names import join_names, pack_names
from dbloader.records.record import Record, encode
from dbloader.sources.base import Problem, readable
from dbloader.sources.collection import read_collection
from dbloader.stores.base import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dbloader.decoding.decoder import Plan
    from dbloader.records.names import Names
    from dbloader.stores.handle import Handle


class CollectionDataset(StoreDataset):
    """The image files in a collection that another program made, one file in each document.

    ``MongoDataset.from_listing`` is this class. Nothing is copied: a batch is one query by names. ``dbloader convert``
    makes a store of such a collection, which is checked and faster.

    Args:
        place: ``mongodb://host/database.collection``.
        listing: File that names the images and their labels, in the order of the dataset: ``{"path_list": [...],
            "label_list": [...]}`` in a .json, or any other listing that ``dbloader convert --listing`` takes.
        transform, target_transform, decode, transforms, fields, drop_empty_boxes: As in LMDBDataset.
        name_field: Field of a document with the file's name as in the listing.
        image_field: Field with its bytes. A missing end marker of a JPEG is added.
        with_index: Give ``(image, label, index)``.

    Raises:
        NotAStoreError: There is no such collection, or its documents have no such fields.
        SourceError: The listing has a mistake; the message names the row.
        OptionError: Both ``fields`` and ``with_index`` are given, or no row has a label and neither is.
        TypeError: ``with_index`` is not a bool; or as in LMDBDataset.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        listing: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        name_field: str = "img_name",
        image_field: str = "bson_img",
        decode: Callable[[bytes], Any] | None = decode_pil,
        transforms: Callable[..., Any] | None = None,
        fields: Iterable[str] | Mapping[str, str] | None = None,
        drop_empty_boxes: bool = True,
        with_index: bool = False,
    ) -> None:
        self.with_index = checked_flag("with_index", with_index)
        if self.with_index and fields is not None:
            raise OptionError("fields gives dicts, which with_index does not: name 'index' among the fields")
        store = CollectionStore(place, listing, name_field=name_field, image_field=image_field)
        for warning in store.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        super().__init__(
            store,
            transform,
            target_transform,
            decode=decode,
            transforms=transforms,
            fields=fields,
            drop_empty_boxes=drop_empty_boxes,
        )

    @override
    def rest(self, record: Record, plan: Plan | None = None) -> Any:
        others = super().rest(record, plan)
        return (*others, record.index) if self.with_index else others


class CollectionStore(Store):
    """The files in a collection as the records of a store, for reading only.

    The listing is read into packed names and labels when this is made; files are read when they are needed. It has no
    columns but ``label``, no report, and no checksums to verify.
    """

    def __init__(
        self, place: str | os.PathLike[str], listing: str | os.PathLike[str], *, name_field: str, image_field: str
    ) -> None:
        self._source = read_collection(place, listing, name_field=name_field, image_field=image_field)
        self.place = self._source.place
        paths, labels = [], []
        for entry in self._source.entries():
            if isinstance(entry, Problem):
                raise SourceError(f"{readable(listing)}, {entry.name}: {entry.reason}")
            if entry.fields:
                raise SourceError(
                    f"{readable(listing)} has further fields ({', '.join(entry.fields)}), which a collection that is "
                    "read in place does not give: drop them, or convert (dbloader convert with --listing)",
                )
            paths.append(entry.location[0])
            labels.append(NO_LABEL if entry.label is None else entry.label)
        self._names = join_names(iter([pack_names(paths)]), len(paths))
        self._labels = np.array(labels, np.int64)
        self._manifest = self._describe_records()
        self.warnings: tuple[str, ...] = self._source.warnings

    @property
    @override
    def manifest(self) -> Manifest:
        return self._manifest

    @override
    def read(self, indices: Sequence[int]) -> list[Record]:
        for index in indices:
            self._check_index(index)
        names = [self._names[index] for index in indices]
        found = self._source.by_name(names)
        return [self._record(int(index), name, found.get(name)) for index, name in zip(indices, names, strict=True)]

    @override
    def documents(self, indices: Sequence[int]) -> list[bytes]:
        return [
            encode(record).document(int(index), 0) for index, record in zip(indices, self.read(indices), strict=True)
        ]

    @override
    def column(self, name: str) -> np.ndarray[Any, Any]:
        if name != "label":
            raise ValueError(f"the one column of a collection that is read in place is label, got {name!r}")
        return self._labels.copy()

    @override
    def label(self, index: int) -> int:
        return int(self._labels[index])

    @override
    def names(self) -> Names:
        return self._names

    @override
    def name(self, index: int) -> str | None:
        self._check_index(index)
        return self._names[index]

    @override
    def find(self, name: str) -> int:
        for index, other in enumerate(self._names):
            if other == name:
                return index
        raise RecordNotFoundError(f"no file that the listing of {self.place} names is {name!r}")

    @override
    def events(self) -> Iterator[dict[str, Any]]:
        return iter(())

    @override
    def close(self) -> None:
        self._source.close()

    @override
    def open_handle(self) -> Handle:
        raise StoreError(f"{self.place} was not made by dbloader, so that there is nothing to verify it by")

    def _record(self, index: int, name: str, data: bytes | None) -> Record:
        if data is None:
            raise DamagedRecordError(f"record {index} ({name}) is not in {self.place}")
        label = int(self._labels[index])
        record = Record(name, None if label == NO_LABEL else label, index=index)
        structure = examine(data)
        try:
            if structure.state is State.NO_END:
                data = repair(data, structure)
            elif structure.state is State.DAMAGED:
                record.damaged = f"is damaged: {structure.reason}"
        except ImageError as error:
            record.damaged = str(error)
        record.image = data
        with suppress(NotAnImageError):  # the dataset's ``decode`` may know the format; the default one raises
            record.format, record.width, record.height = read_facts(data)[:3]
        return record

    def _describe_records(self) -> Manifest:
        """Return the manifest that a store of these records would have, with a digest of names and labels only."""
        known = self._labels[self._labels != NO_LABEL]
        digest = hashlib.sha256(self._names.data.tobytes() + self._labels.astype("<i8").tobytes())
        return Manifest(
            length=len(self._names),
            digest=digest.hexdigest(),
            classes=self._source.classes,
            label_counts=dict(sorted(Counter(known.tolist()).items())),
            labelled=len(known),
            named=len(self._names),
            source={"path": self.place, "listing": readable(self._source.listing)},
        )
