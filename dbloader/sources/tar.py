"""Images in tar files: WebDataset's shards, an image folder in a tar, or a tar of one tar for each class.

A tar is not extracted. Its headers tell where each file begins, so any thread can read any file::

    shard-000.tar: 000017.jpg 000017.cls 000017.json      one sample: image, label, field "json"
    train.tar: train/cat/001.jpg                          the class is the folder below the one that all images share
    ILSVRC2012_img_train.tar: n01440764.tar: n01440764_18.JPEG      the class is the name of the inner tar

The files of a sample follow each other and have the same path up to the first dot of their name, as in WebDataset
(https://github.com/webdataset/webdataset). The one with the extension of an image is the image. ``.cls`` has the label:
an integer or the name of a class, as in the column of a CSV. ``.json`` and ``.txt`` become fields of these names, any
other file a field of bytes.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from typing_extensions import override

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name
from dbloader.sources.base import Entry, Problem, Source, Tally, full_path, readable
from dbloader.sources.folder import EXTENSIONS
from dbloader.sources.labels import number_labels
from dbloader.sources.tar_files import Sample, opened, samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.sources.tar_files import TarredFile

LABEL = "cls"
_MAX_FIELD = 2**20
"""Bytes of a file beside the image, which the list of files keeps."""

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


def find_tars(place: str | os.PathLike[str]) -> list[Path]:
    """Return the tar files that a place names, in order; an empty list if it is not a place of tar files.

    It is one file, ``shards/{000..127}.tar``, or a folder that holds tar files and no folders.
    """
    text = os.fspath(place)
    if text.lower().endswith(".tar") and not os.path.isdir(text):  # noqa: PTH112 - the path may be any str
        found = _RANGE.search(text)
        if found is None or os.path.exists(text):  # noqa: PTH110
            return [Path(text)]
        first, last = found.groups()
        numbers = range(int(first), int(last) + 1)
        return [Path(_RANGE.sub(str(number).zfill(len(first)), text, count=1)) for number in numbers]
    try:
        with os.scandir(text) as entries:
            inside = list(entries)
        tars = sorted(entry.name for entry in inside if entry.name.lower().endswith(".tar") and entry.is_file())
        return [] if any(entry.is_dir() for entry in inside) else [Path(text, name) for name in tars]
    except OSError:
        return []  # scan says what is wrong with it


def read_tars(place: str | os.PathLike[str], paths: Sequence[Path]) -> TarSource:
    """Return the source of the images in tar files, in that order; SourceError if they hold no image.

    Headers and labels are read here, for the classes, and again by each iteration. Memory holds the distinct labels and
    folders.
    """
    labels: dict[str, str] = {}  # for each text of a label, where it is first
    folders: set[str] = set()
    for path in paths:
        with opened(path) as file:
            for sample in samples(file, path, Tally()):
                if isinstance(sample, Sample):
                    folders.add(posixpath.dirname(sample.image.path))
                    if LABEL in sample.others:
                        where = f"{readable(path)}, {readable(sample.image.path)}"
                        with suppress(ValueError):  # the sample becomes a problem
                            labels.setdefault(_label(file, sample.others[LABEL]), where)
    if not folders:
        raise SourceError(f"{readable(place)}: there is not one image in it: looked for {', '.join(EXTENSIONS)}")
    labels.pop("", None)
    if labels:
        return TarSource(place, paths, *number_labels(labels, readable(place)))
    parts = [folder.split("/") if folder else [] for folder in folders]
    shared = 0
    while all(len(names) > shared for names in parts) and len({names[shared] for names in parts}) == 1:
        shared += 1
    classes = sorted({names[shared] for names in parts if len(names) > shared})
    if len({*map(readable, classes)}) < len(classes):
        raise SourceError(f"{readable(place)}: two of its folders have the same name, written as UTF-8; rename one")
    numbers = {name: label for label, name in enumerate(classes)}
    return TarSource(place, paths, tuple(map(readable, classes)), numbers, shared)


class TarSource(Source):
    """The images in tar files; made by ``read_tars``.

    ``labels`` has the label of each text in a ``.cls``, or, if that is not None, of each folder below the ``shared``
    first ones.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        classes: tuple[str, ...],
        labels: dict[str, int],
        shared: int | None = None,
    ) -> None:
        super().__init__(Path(os.sep), classes)
        self._place, self._paths, self._labels, self._shared = place, paths, labels, shared

    @property
    @override
    def place(self) -> str:
        return full_path(self._place)

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        tally, unlabelled, total = Tally(), 0, 0
        for path in self._paths:
            with opened(path) as file:
                for sample in samples(file, path, tally):
                    entry = sample if isinstance(sample, Problem) else self._entry(file, path, sample)
                    if isinstance(entry, Entry):
                        total += 1
                        unlabelled += entry.label is None
                    yield entry
        self.skipped, self.hidden = tally.skipped, tally.hidden
        self.warnings = (f"{unlabelled:,} of {total:,} images have no label",) if unlabelled else ()

    def _entry(self, file: IO[bytes], path: Path, sample: Sample) -> Entry | Problem:
        name = readable(sample.image.path)
        text = ""
        fields: dict[str, Any] = {}
        try:
            for extension, other in sample.others.items():
                if extension == LABEL:
                    text = _label(file, other)
                    continue
                field = checked_field_name(extension.replace(".", "_"))
                if field in fields:
                    raise FieldError(f"two files would be the field {field!r}")  # noqa: TRY301
                fields[field] = _field(file, extension, other)
        except (FieldError, ValueError, RecursionError) as error:
            return Problem(name, f"a file beside it cannot be a field or label: {error}")
        if self._shared is not None:
            text = (sample.image.path.split("/")[self._shared : -1] or [""])[0]
        if text and text not in self._labels:
            raise SourceError(f"{readable(path)}: was changed since it was first read")
        span = sample.image.start, sample.image.size
        return Entry(name, os.fsencode(path.absolute()), self._labels.get(text), fields, span)


def _field(file: IO[bytes], extension: str, found: TarredFile) -> Any:
    """Return the value of a field, from a file beside the image; ValueError if it cannot be read."""
    data = _read(file, found)
    if extension == "json":
        return json.loads(data)
    return data.decode() if extension == "txt" else data


def _label(file: IO[bytes], found: TarredFile) -> str:
    """Return the text of a label, without the spaces and the line end around it; ValueError if it cannot be read."""
    return _read(file, found).decode().strip()


def _read(file: IO[bytes], found: TarredFile) -> bytes:
    if found.size > _MAX_FIELD:
        raise ValueError(
            f"{readable(found.path)} has {found.size:,} bytes, more than {_MAX_FIELD:,}: extract the tar and "
            "convert the folder, or hand its samples to dbloader.write_store"
        )
    data = os.pread(file.fileno(), found.size, found.start)
    if len(data) < found.size:
        raise ValueError(f"{readable(found.path)} is cut short")
    return data
