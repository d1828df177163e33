"""Read samples from a MongoDB collection of image files that another program made."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch.utils.data import Dataset

from dbloader._describe import add_note
from dbloader.decoding.open import decode_pil
from dbloader.errors import DamagedRecordError, DBLoaderError, SourceError
from dbloader.ext.sources.collection import read_collection
from dbloader.images.jpeg import State, examine, repair
from dbloader.records.columns import NO_LABEL
from dbloader.records.names import join_names, pack_names
from dbloader.sources.base import Problem, readable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence


class CollectionDataset(Dataset[tuple[Any, Any]]):
    """Samples (image, label) of a MongoDB collection that another program made. Each document has one image file.

    ``MongoDataset.from_listing`` makes this dataset. One query reads a batch. ``dbloader convert`` can make a store of
    the collection: the store is faster, and has checksums, columns and queries.

    Args:
        place: ``mongodb://host/database.collection``.
        listing: File with the names of the images and their labels, in the order of the dataset. It may be a .json with
            ``{"path_list": [...], "label_list": [...]}``, or any listing that ``dbloader convert --listing`` reads.
        transform: Applied to each decoded image.
        target_transform: Applied to each label; the label is None if the listing has none.
        decode: Decodes the bytes of a file; None returns the bytes. If a JPEG lacks only its end marker, the marker is
            appended first.
        name_field: Field of a document that contains the file's name. The listing uses the same names.
        image_field: Field of a document with the file's bytes.

    Attributes:
        classes: Class names in the order of their labels; empty if the labels have no names.
        names: The names of all files, a sequence that takes little memory.
        targets: The labels of all files, as in MongoDataset.

    Raises:
        NotAStoreError: There is no such collection, or its documents have no such fields.
        SourceError: The listing has a mistake; the message names the row.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        listing: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        name_field: str = "img_name",
        image_field: str = "bson_img",
    ) -> None:
        self._source = read_collection(place, listing, name_field=name_field, image_field=image_field)
        for warning in self._source.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        paths, labels = [], []
        for entry in self._source.entries():
            if isinstance(entry, Problem):
                raise SourceError(f"{readable(listing)}, {entry.name}: {entry.reason}")
            paths.append(entry.location[0])
            labels.append(NO_LABEL if entry.label is None else entry.label)
        self.classes = list(self._source.classes)
        self.names = join_names([pack_names(paths)], len(paths))
        self.targets = np.array(labels, np.int64)
        self.transform = transform
        self.target_transform = target_transform
        self.decode = decode

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return the samples at these indices, in this order. One query reads all of them."""
        names = [self.names[index] for index in indices]
        files = self._source.by_name(names)
        return [self._sample(index, name, files.get(name)) for index, name in zip(indices, names, strict=True)]

    def _sample(self, index: int, name: str, data: bytes | None) -> tuple[Any, Any]:
        if data is None:
            raise DamagedRecordError(f"record {index} ({name}) is not in {self._source.place}")
        try:
            if (structure := examine(data)).state is State.NO_END:
                data = repair(data, structure)
            image = data if self.decode is None else self.decode(data)
        except DBLoaderError as error:
            add_note(error, f"in record {index} ({name}) of {self._source.place}")
            raise
        label = None if self.targets[index] == NO_LABEL else int(self.targets[index])
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def close(self) -> None:
        """Close the connection. The next read opens it again."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
