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
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name
from dbloader.sources.base import Entry, Problem, Source, Tally, full_path, readable
from dbloader.sources.folder import EXTENSIONS
from dbloader.sources.labels import number_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LABEL = "cls"
_MAX_FIELD = 2**20
"""Bytes of a file beside the image, which the list of files keeps."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
# What tarfile raises for headers that lie.
_WRONG = (tarfile.TarError, ValueError, EOFError, OverflowError, IndexError, KeyError)
_BLOCK = 512
_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


class _File(NamedTuple):
    """A file in a tar."""

    path: str  # with surrogates for bytes that are not UTF-8; begins with the name of the inner tar, if there is one
    start: int  # byte of the outer tar
    size: int


class _Sample(NamedTuple):
    """The files with the same path up to the first dot of their name, of which one is the image."""

    image: _File
    others: dict[str, _File]  # by extension


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
    """Return the source of the images in tar files, in that order; SourceError if there is none.

    Headers and labels are read here, for the classes, and again by each iteration. Memory holds the distinct labels and
    folders.
    """
    labels: dict[str, str] = {}  # for each text of a label, where it is first
    folders: set[str] = set()
    for path in paths:
        with _opened(path) as file:
            for sample in _samples(file, path, Tally()):
                if isinstance(sample, _Sample):
                    folders.add(posixpath.dirname(sample.image.path))
                    if LABEL in sample.others:
                        where = f"{readable(path)}, {readable(sample.image.path)}"
                        labels.setdefault(_text(file, sample.others[LABEL]), where)
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
        tally, unlabelled, samples = Tally(), 0, 0
        for path in self._paths:
            with _opened(path) as file:
                for sample in _samples(file, path, tally):
                    entry = sample if isinstance(sample, Problem) else self._entry(file, path, sample)
                    if isinstance(entry, Entry):
                        samples += 1
                        unlabelled += entry.label is None
                    yield entry
        self.skipped, self.hidden = tally.skipped, tally.hidden
        self.warnings = (f"{unlabelled:,} of {samples:,} images have no label",) if unlabelled else ()

    def _entry(self, file: IO[bytes], path: Path, sample: _Sample) -> Entry | Problem:
        name = readable(sample.image.path)
        text = ""
        if self._shared is None and LABEL in sample.others:
            text = _text(file, sample.others[LABEL])
        elif self._shared is not None:
            text = (sample.image.path.split("/")[self._shared : -1] or [""])[0]
        if text and text not in self._labels:
            raise SourceError(f"{readable(path)}: was changed since it was first read")
        try:
            fields = {
                checked_field_name(extension.replace(".", "_")): _field(file, extension, other)
                for extension, other in sample.others.items()
                if extension != LABEL
            }
        except (FieldError, ValueError) as error:
            return Problem(name, f"a file beside it cannot be a field: {error}")
        span = sample.image.start, sample.image.size
        return Entry(name, os.fsencode(path.absolute()), self._labels.get(text), fields, span)


def _field(file: IO[bytes], extension: str, found: _File) -> Any:
    """Return the value of a field, from a file beside the image; ValueError if it has none."""
    if found.size > _MAX_FIELD:
        raise ValueError(f"{readable(found.path)} has {found.size:,} bytes, more than {_MAX_FIELD:,}")
    if extension == "json":
        return json.loads(_read(file, found))
    return _text(file, found) if extension == "txt" else _read(file, found)


def _text(file: IO[bytes], found: _File) -> str:
    return readable(_read(file, found)).strip()


def _read(file: IO[bytes], found: _File) -> bytes:
    return os.pread(file.fileno(), min(found.size, _MAX_FIELD), found.start)


def _is_image(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a tar; SourceError if it cannot be read or is compressed."""
    try:
        with path.open("rb") as file:
            magic = file.read(8)
            for start, kind in _COMPRESSED.items():
                if magic.startswith(start):
                    what = f"is compressed with {kind}, so that a file in it has no position: decompress it first"
                    raise SourceError(f"{readable(path)}: {what}")
            file.seek(0)
            yield file
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{readable(path)}: cannot be read: {error.strerror or error}") from error


def _samples(file: IO[bytes], path: Path, tally: Tally) -> Iterator[_Sample | Problem]:
    """Yield the samples of a tar, and a problem for each that cannot be one."""
    group: dict[str, _File] = {}
    key = ("", "")
    for found in _files(file, readable(path), tally):
        if isinstance(found, Problem):
            yield found
            continue
        folder, name = posixpath.split(found.path)
        stem, _, extension = name.partition(".")
        if (folder, stem) != key or extension in group:
            yield from _split(group, tally)
            group, key = {}, (folder, stem)
        group[extension] = found
    yield from _split(group, tally)


def _split(group: dict[str, _File], tally: Tally) -> Iterator[_Sample | Problem]:
    """Yield what the files with one stem are: one sample, several images, or nothing."""
    images = {extension: file for extension, file in group.items() if _is_image(file.path)}
    others = {extension: file for extension, file in group.items() if extension not in images}
    plain = [extension for extension in images if "." not in extension]
    if others and len(images) > 1 and len(plain) == 1:  # such as jpg, seg.png, cls
        image = images.pop(plain[0])
        yield _Sample(image, {**others, **images})
    elif others and len(images) > 1:
        first = next(iter(images.values()))
        yield Problem(readable(first.path), f"cannot be told from other images of its sample ({', '.join(images)})")
    elif images:
        for image in images.values():  # several: images whose names differ after the first dot
            yield _Sample(image, others)
    else:
        for file in others.values():
            tally.skip(os.fsencode(posixpath.basename(file.path)))


def _files(file: IO[bytes], where: str, tally: Tally, prefix: str = "", start: int = 0) -> Iterator[_File | Problem]:
    """Yield the files of a tar, and those of the tars in it. ``start`` is where it begins in the outer tar."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all headers
                path = posixpath.normpath(prefix + member.name).lstrip("/")
                name = posixpath.basename(path)
                if member.isdir():
                    continue
                if name.startswith("."):
                    tally.hidden += 1
                elif not member.isreg() or member.issparse():
                    kind = "a sparse file" if member.isreg() else "a link or device"
                    if _is_image(path):
                        yield Problem(readable(path), f"is {kind} in {where}, not a plain file")
                    else:
                        tally.skip(os.fsencode(name))
                elif name.lower().endswith(".tar") and not prefix:
                    inner = tar.extractfile(member)
                    assert inner is not None  # it is a plain file
                    yield from _files(inner, f"{where}, {readable(path)}", tally, f"{path[:-4]}/", member.offset_data)
                else:
                    yield _File(path, start + member.offset_data, member.size)
            yield from _check_end(file, tar.offset, where)
    except _WRONG as error:
        yield Problem(where, f"is damaged, and files after that are missing: {error}")


def _check_end(file: IO[bytes], offset: int, where: str) -> Iterator[Problem]:
    """Yield a problem unless a tar ends as it should: tarfile takes a damaged header for the end."""
    file.seek(offset)
    if file.read(_BLOCK) != bytes(_BLOCK):
        yield Problem(
            where, f"has no end mark at byte {offset:,}: it is cut short or damaged, and files may be missing"
        )
