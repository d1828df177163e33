"""Images in tar files: WebDataset's shards, an image folder in a tar, or a tar of one tar for each class.

A tar is not extracted. Its headers tell where each file begins, so any thread can read any file. A compressed tar is
decompressed into a temporary file first::

    shard-000.tar: 000017.jpg 000017.cls 000017.json      one sample: image, label, field "json"
    train.tar: train/cat/001.jpg                          the class is the folder below the one that all images share
    ILSVRC2012_img_train.tar: n01440764.tar: n01440764_18.JPEG      the class is the name of the inner tar

The files of a sample follow each other and have the same path up to the first dot of their name, as in WebDataset
(https://github.com/webdataset/webdataset). The one with the extension of an image is the image. ``.cls`` has the label:
an integer or the name of a class, as in the column of a CSV, or as the ``classes.json`` beside the tar files says.
``.fields.json`` has fields that export has written, ``.json`` and ``.txt`` become fields of these names, any other file
a field of bytes.
"""

from __future__ import annotations

import json
import os
import posixpath
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from bson import json_util
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name
from dbloader.records.values import checked_str, unpack
from dbloader.sources.archive import ArchiveSource, number_folders
from dbloader.sources.base import KEPT_FIELDS, Entry, FieldFile, Problem, Tally, read_file, readable
from dbloader.sources.compressed import DecompressedFiles
from dbloader.sources.folder import LOOKED_FOR
from dbloader.sources.labels import FILE_FIELDS, look_up_labels, number_labels, read_classes
from dbloader.sources.tar_files import Sample, field_of, opened, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dbloader.sources.base import Loaded
    from dbloader.sources.tar_files import TarredFile

LABEL = "cls"
FIELDS = "fields.json"
"""Extension of the fields as export writes them; see `dbloader.exports.webdataset`."""

_MAX_FIELD, MAX_FIELDS = 2**20, 2**24
"""Bytes of a file beside the image, and of one with ``FIELDS``, which the list of files keeps."""


def read_tars(place: str | os.PathLike[str], paths: Sequence[Path], file_fields: Sequence[str] = ()) -> TarSource:
    """Return the source of the images in tar files, in that order; SourceError if they hold no image.

    Headers and labels are read here, for the classes, and again by each iteration. Memory holds the distinct labels and
    folders. The images ``17.mask.png`` become the field ``mask`` if that is one of ``file_fields``, or of the file
    ``FILE_FIELDS`` beside the first tar.
    """
    wanted = {*file_fields, *(read_classes(paths[0].parent, FILE_FIELDS) or ())} - {""}
    found: dict[str, None] = {}
    labels: dict[str, str] = {}  # for each text of a label, where it is first
    folders: set[str] = set()
    decompressed = DecompressedFiles()
    with ExitStack() as undo:
        undo.callback(decompressed.close)
        for path in paths:
            with opened(path, decompressed) as file:
                for sample in samples(file, path, Tally(), wanted):
                    if isinstance(sample, Sample):
                        found.update(dict.fromkeys(field for field in map(field_of, sample.others) if field in wanted))
                        folders.add(posixpath.dirname(sample.image.path))
                        if LABEL in sample.others:
                            where = f"{readable(path)}, {readable(sample.image.path)}"
                            with suppress(ValueError):  # the sample becomes a problem
                                labels.setdefault(_label(file, sample.others[LABEL]), where)
        if not folders:
            raise SourceError(f"{readable(place)}: there is not one image in it: {LOOKED_FOR}")
        labels.pop("", None)
        named = read_classes(paths[0].parent)
        make = partial(TarSource, decompressed, place, paths)
        if named is not None:
            source = make(named, look_up_labels(labels, named))
        elif labels:
            source = make(*number_labels(labels, readable(place)))
        else:
            source = make(*number_folders(folders, readable(place)))
        source.file_fields = (*found,)
        undo.pop_all()
    return source


class TarSource(ArchiveSource):
    """The images in tar files; made by ``read_tars``."""

    reads = "tar files"

    def __init__(self, decompressed: DecompressedFiles, place: str | os.PathLike[str], *described: Any) -> None:
        super().__init__(place, *described)
        self._decompressed = decompressed
        self.compressed = next((readable(path) for path in self._paths if decompressed.open(path)), "")

    @override
    def _found(self, path: Path, tally: Tally) -> Iterator[Entry | Problem]:
        with opened(path, self._decompressed) as file:
            for sample in samples(file, path, tally, self.file_fields):
                yield sample if isinstance(sample, Problem) else self._entry(file, path, sample)
        found = self._decompressed.open(path)
        if found is not None and found.problem:
            yield Problem(readable(path), f"cannot be decompressed to its end, files may be missing: {found.problem}")

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Loaded | Problem]:
        by_path = {os.fsencode(path.absolute()): path for path in self._paths}
        for entry in entries:
            path, start, size = entry.location
            found = self._decompressed.open(by_path[path]) if self.compressed else None
            opened = None if found is None else found.file.fileno()
            yield read_file(entry.name, path, hold, start, size, opened=opened)

    @override
    def close(self) -> None:
        self._decompressed.close()

    def _entry(self, file: IO[bytes], path: Path, sample: Sample) -> Entry | Problem:
        name = readable(sample.image.path)
        text = ""
        fields: dict[str, Any] = {}
        files: dict[str, FieldFile] = {}
        archive = os.fsencode(path.absolute())
        try:
            for extension, other in sample.others.items():
                field = field_of(extension)
                if field in self.file_fields and fields.get(field) is None and field not in files:
                    fields[checked_field_name(field)] = None  # where fields.json has it, if that does
                    files[field] = FieldFile(readable(other.path), (archive, other.start, other.size))
                    continue
                if extension == LABEL:
                    text = _label(file, other)
                    continue
                if extension == FIELDS:
                    more = _stored_fields(file, other)
                else:
                    more = {checked_field_name(extension.replace(".", "_")): _field(file, extension, other)}
                for field in fields.keys() & more.keys():
                    raise FieldError(f"two files would be the field {field!r}")  # noqa: TRY301
                fields |= more
        except (FieldError, ValueError, RecursionError) as error:
            return Problem(name, f"a file beside it cannot be a field or label: {error}")
        location = archive, sample.image.start, sample.image.size
        if fields.get("name") is not None:
            name = fields.pop("name")
        return Entry(name, location, self._label(path, sample.image.path, text), fields, files=files)


def _field(file: IO[bytes], extension: str, found: TarredFile) -> Any:
    """Return the value of a field, from a file beside the image; ValueError if it cannot be read."""
    data = _read(file, found)
    if extension == "json":
        return json.loads(data)
    return data.decode() if extension == "txt" else data


def _stored_fields(file: IO[bytes], found: TarredFile) -> dict[str, Any]:
    """Return the fields that a record had in a store, arrays as in BSON; ValueError or FieldError for any others."""
    data = _read(file, found, MAX_FIELDS)
    try:
        fields = json_util.loads(data)
        unpack(fields)  # decodes all arrays
    except Exception as error:  # bson raises whatever it meets, for each of its types another error
        raise ValueError(f"{readable(found.path)} is not Extended JSON: {error!r}") from error
    if not isinstance(fields, dict):
        raise FieldError(f"{readable(found.path)} must be an object, got {short_repr(fields, 50)}")
    for name in fields.keys() - {*KEPT_FIELDS}:
        checked_field_name(name)
    if fields.get("name") is not None and not checked_str("name", fields["name"]):
        raise ValueError(f"{readable(found.path)} has an empty name")
    return fields


def _label(file: IO[bytes], found: TarredFile) -> str:
    """Return the text of a label, without the spaces and the line end around it; ValueError if it cannot be read."""
    return _read(file, found).decode().strip()


def _read(file: IO[bytes], found: TarredFile, most: int = _MAX_FIELD) -> bytes:
    if found.size > most:
        raise ValueError(
            f"{readable(found.path)} has {found.size:,} bytes, more than {most:,}: extract the tar and "
            "convert the folder, or hand its samples to dbloader.write_store"
        )
    data = os.pread(file.fileno(), found.size, found.start)
    if len(data) < found.size:
        raise ValueError(f"{readable(found.path)} is cut short")
    return data
