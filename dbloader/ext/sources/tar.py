"""Read images from tar files: WebDataset's shards, a packed image folder, or a tar that contains a tar for each class.

A tar is not extracted. Its headers give the position of each file, and threads read the bytes there. A compressed tar
is decompressed into a temporary file first. As in WebDataset (https://github.com/webdataset/webdataset), a sample
consists of consecutive files. Their paths are equal up to the first dot of the name. See docs/tars.md.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bson import json_util
from bson.errors import BSONError
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._machine import NO_ROOM
from dbloader.errors import DamagedRecordError, FieldError, SourceError
from dbloader.ext.sources.archive import (
    TARS,
    ArchiveSource,
    ArchiveTally,
    encoding_warning,
    is_left_out,
    number_folders,
)
from dbloader.ext.sources.labels import FIELDS_FILE, number_labels, read_classes, read_target
from dbloader.ext.sources.options import UNDECIDED
from dbloader.records.record import checked_field_name
from dbloader.records.values import checked_str, unpack
from dbloader.sources.base import KEPT_FIELDS, Entry, FieldFile, Problem, field_value, read_file, readable
from dbloader.sources.folder import EXTENSIONS, LOOKED_FOR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Loaded


LABEL = "cls"
FIELDS = "fields.json"  # extension of files with fields, which `dbloader.ext.exports.webdataset` writes
# Size limits in bytes: for a file that becomes one field, and for a FIELDS file.
_MAX_FIELD, MAX_FIELDS = 2**20, 2**24

# Exceptions of tarfile for wrong headers.
_WRONG = (tarfile.TarError, ValueError, EOFError, OverflowError, IndexError, KeyError)
# bson raises these errors for objects that are not Extended JSON. `unpack` raises them for wrong arrays.
_NOT_EXTENDED_JSON = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, AssertionError),
    *(BSONError, DamagedRecordError),
)
_BLOCK = 512
_NOT_PLAIN = "is a link, device or sparse file"
_MOST_UNKNOWN = 1000  # at most this many names in an unknown encoding are counted


class _TarredFile(NamedTuple):
    """A file in a tar."""

    path: str  # bytes that are not UTF-8 are surrogates; in an inner tar cat.tar, the path begins with cat/
    start: int  # position in the outer tar
    size: int  # number of bytes


class _Sample(NamedTuple):
    """An image, and the files whose paths equal its path up to the first dot of the name."""

    image: _TarredFile
    others: dict[str, _TarredFile]  # other files by their extensions


class TarSource(ArchiveSource):
    """Reads the images in tar files, in the order of ``paths``. Raises SourceError if there is no image.

    The constructor reads headers and labels to find the classes. Each iteration reads them again. Only the distinct
    labels and folders stay in memory. If ``file_fields`` contains "mask", images such as ``17.mask.png`` become the
    field ``mask``. A ``FIELDS_FILE`` beside the first tar adds names to ``file_fields``.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        file_fields: Sequence[str] = (),
        reading: Reading = UNDECIDED,
    ) -> None:
        self._decompressed: dict[bytes, IO[bytes]] = {}
        self._encoding, self._unknown = reading.encoding or "utf-8", dict[str, None]()
        with ExitStack() as after_error:
            after_error.callback(self.close)
            folders, labels, fields = self._read_all(
                paths, {*file_fields, *(read_classes(paths[0].parent, FIELDS_FILE) or ())} - {""}
            )
            if not folders:
                raise SourceError(f"{readable(place)}: there is not one image in it: {LOOKED_FOR}")
            classes = read_classes(paths[0].parent)
            if classes is not None or labels:
                super().__init__(place, paths, *number_labels(labels, readable(place), classes))
            else:
                super().__init__(place, paths, *number_folders(folders, readable(place), reading))
            self.numbers_classes = classes is not None
            self.follows += ("encoding",)
            if self._unknown:
                self.warnings += (encoding_warning(readable(place), [*self._unknown]),)
            self.file_fields, self.target = fields, read_target(paths[0].parent)
            self.compressed = next(map(readable, self._decompressed), "")
            after_error.pop_all()

    def _read_all(
        self, paths: Sequence[Path], wanted: Collection[str]
    ) -> tuple[set[str], dict[str, str], tuple[str, ...]]:
        """Return (folders of images, {label text: where it occurs first}, fields with image files)."""
        folders: set[str] = set()
        labels: dict[str, str] = {}
        fields: dict[str, None] = {}
        for path in paths:
            with _source_errors(path):
                if (content := _decompressed(path)) is not None:
                    self._decompressed[_key(path)] = content
            with _opened(path, self._decompressed) as file:
                for sample in _samples(file, path, ArchiveTally(), wanted, self._encoding):
                    if isinstance(sample, Problem):
                        continue
                    if readable(sample.image.path) != sample.image.path and len(self._unknown) < _MOST_UNKNOWN:
                        self._unknown[readable(sample.image.path)] = None
                    fields.update(dict.fromkeys(field for field in map(_field_of, sample.others) if field in wanted))
                    folders.add(posixpath.dirname(sample.image.path))
                    if LABEL in sample.others:
                        where = f"{readable(path)}, {readable(sample.image.path)}"
                        with suppress(ValueError):  # an iteration yields a Problem for this sample
                            labels.setdefault(_label(file, sample.others[LABEL]), where)
        labels.pop("", None)
        return folders, labels, (*fields,)

    @override
    def _found(self, path: Path, tally: ArchiveTally) -> Iterator[Entry | Problem]:
        with _opened(path, self._decompressed) as file:
            for sample in _samples(file, path, tally, self.file_fields, self._encoding):
                yield sample if isinstance(sample, Problem) else self._entry(file, _key(path), sample)

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Loaded | Problem]:
        for entry in entries:
            path, start, size = entry.location
            found = self._decompressed.get(path)
            opened = None if found is None else found.fileno()
            yield read_file(entry.name, path, hold, start, size, opened=opened)

    @override
    def close(self) -> None:
        for file in self._decompressed.values():
            file.close()

    def _entry(self, file: IO[bytes], archive: bytes, sample: _Sample) -> Entry | Problem:
        name = readable(sample.image.path)
        text = ""
        fields: dict[str, Any] = {}
        files: dict[str, FieldFile] = {}
        try:
            # Read the FIELDS file first: it gives the order of the fields, and has null for a field with its own file.
            for extension, other in sorted(sample.others.items(), key=lambda item: item[0] != FIELDS):
                field = _field_of(extension)
                if field in self.file_fields and fields.get(field) is None and field not in files:
                    fields[checked_field_name(field)] = None
                    files[field] = FieldFile(readable(other.path), (archive, other.start, other.size))
                    continue
                if extension == LABEL:
                    text = _label(file, other)
                    continue
                if extension == FIELDS:
                    more = _stored_fields(file, other)
                else:
                    more = {checked_field_name(extension.replace(".", "_")): field_value(extension, _read(file, other))}
                for field in fields.keys() & more.keys():
                    raise FieldError(f"two files would be the field {field!r}")  # noqa: TRY301
                fields |= more
        except (FieldError, ValueError, RecursionError) as error:
            return Problem(name, f"a file beside it cannot be a field or label: {error}")
        location = archive, sample.image.start, sample.image.size
        if fields.get("name") is not None:
            name = fields.pop("name")
        return Entry(name, location, self._label(sample.image.path, text), fields, files=files)


@contextmanager
def _opened(path: Path, decompressed: Mapping[bytes, IO[bytes]]) -> Iterator[IO[bytes]]:
    """Open a tar; SourceError if it cannot be read."""
    found = decompressed.get(_key(path))
    with _source_errors(path), path.open("rb") if found is None else nullcontext(found) as file:
        file.seek(0)
        yield file


@contextmanager
def _source_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{readable(path)}: cannot be read: {error.strerror or error}") from error


def _decompressed(path: Path) -> IO[bytes] | None:
    """Decompress a tar into a temporary file, which the caller closes. Return None for an uncompressed tar."""
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        read = next((read for magic, read in _READERS.items() if start.startswith(magic)), None)
        if read is None:
            return None
        with read(file) as content:
            into = tempfile.TemporaryFile()  # noqa: SIM115 - the source closes it
            try:
                shutil.copyfileobj(content, into)
                into.flush()
            except BaseException as error:
                with suppress(OSError):  # if the disk is full, closing fails too
                    into.close()
                if isinstance(error, OSError) and error.errno in NO_ROOM:
                    what = f"decompressed, it does not fit into {tempfile.gettempdir()}; set TMPDIR to another folder"
                    raise SourceError(f"{readable(path)}: {what}") from error
                if isinstance(error, _DAMAGED) or (isinstance(error, OSError) and error.errno is None):
                    raise SourceError(f"{readable(path)}: is damaged: {error}; copy it again") from error
                raise
        return into


def _zstd(file: IO[bytes]) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
    except ImportError:
        try:
            from pyarrow import CompressedInputStream
        except ImportError:
            raise SourceError(
                f"{readable(file.name)}: reading zstd needs Python 3.14 or pyarrow: decompress the tar (unzstd), or "
                "pip install 'dbloader[parquet]'"
            ) from None
        return CompressedInputStream(file, "zstd")
    return zstd.open(file)


_READERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"(\xb5/\xfd": _zstd,
}
# Exceptions for damaged data. bz2, gzip and pyarrow also raise an OSError without an errno.
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, ValueError)


def _key(path: Path) -> bytes:
    """Return the absolute path of a tar as bytes."""
    return os.fsencode(path.absolute())


def _samples(
    file: IO[bytes], path: Path, tally: ArchiveTally, file_fields: Collection[str], encoding: str
) -> Iterator[_Sample | Problem]:
    """Yield the samples of a tar, and a Problem for each group of files with several possible images.

    If ``file_fields`` contains "mask", a file such as ``17.mask.png`` is a mask, not the image of a sample.
    """
    group: dict[str, _TarredFile] = {}
    key = ("", "")
    for found in _files(file, readable(path), tally, encoding):
        if isinstance(found, Problem):
            yield found
            continue
        folder, name = posixpath.split(found.path)
        stem, _, extension = name.partition(".")
        extension = extension if "." in extension else extension.lower()  # CLS is cls, but Mask.png is the field Mask
        if (folder, stem) != key or extension in group:
            yield from _split(group, tally, file_fields)
            group, key = {}, (folder, stem)
        group[extension] = found
    yield from _split(group, tally, file_fields)


def _field_of(extension: str) -> str:
    """Return "mask" for the extension ``mask.png`` of an image; "" for ``png``, or for another type of file."""
    return extension.rpartition(".")[0] if _is_image(extension) else ""


def _split(
    group: dict[str, _TarredFile], tally: ArchiveTally, file_fields: Collection[str]
) -> Iterator[_Sample | Problem]:
    """Yield the samples in a group of files, or a Problem. Count a group without an image as left out."""
    images = {
        extension: file
        for extension, file in group.items()
        if _is_image(file.path) and _field_of(extension) not in file_fields
    }
    others = {extension: file for extension, file in group.items() if extension not in images}
    plain = [extension for extension in images if "." not in extension]
    if others and len(images) > 1 and len(plain) == 1:  # for example jpg, seg.png, cls: the jpg is the image
        image = images.pop(plain[0])
        yield _Sample(image, {**others, **images})
    elif others and len(images) > 1:
        first = next(iter(images.values()))
        yield Problem(readable(first.path), f"is one of several images in its sample ({', '.join(images)})")
    elif images:
        for image in images.values():  # several images without other files are several samples
            yield _Sample(image, others)
    else:
        for file in others.values():
            tally.skip_path(file.path)


def _files(
    file: IO[bytes], where: str, tally: ArchiveTally, encoding: str, prefix: str = "", start: int = 0
) -> Iterator[_TarredFile | Problem]:
    """Yield the files of a tar, and of its inner tars. ``start`` is the position of an inner tar in the outer tar."""
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding=encoding) as tar:
            end, plain = 0, None
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all headers
                if member.size < 0 or tar.offset <= end:  # a damaged header: reading on might not end
                    break
                end = tar.offset
                path = posixpath.normpath(prefix + member.name.replace("\\", "/")).lstrip("/")
                name = posixpath.basename(path)
                if member.isdir():
                    continue
                if member.islnk():
                    plain = _plain_files(file, start, encoding) if plain is None else plain
                    target = plain.get(posixpath.normpath(member.linkname))
                if is_left_out(path, tally):
                    continue
                tally.backslashes += "\\" in member.name
                if member.islnk() and target is not None:
                    yield _TarredFile(path, *target)
                elif not member.isreg() or member.issparse():
                    if _is_image(path):
                        yield Problem(readable(path), f"{_NOT_PLAIN} in {where}: extract it, and convert the folder")
                    else:
                        tally.skip_path(path, is_link=member.issym() or member.islnk())
                elif name.lower().endswith(".tar") and not prefix:
                    inner = tar.extractfile(member)
                    assert inner is not None  # a plain file can be opened
                    inner_where, prefix_of_it = f"{where}, {readable(path)}", f"{path[:-4]}/"
                    yield from _files(inner, inner_where, tally, encoding, prefix_of_it, member.offset_data)
                elif name.lower().endswith(TARS):
                    yield Problem(readable(path), f"is a tar in {where} that is not read: extract {where}")
                else:
                    yield _TarredFile(path, start + member.offset_data, member.size)
            yield from _check_end(file, end, where)
    except _WRONG as error:
        yield Problem(where, f"is damaged, and files after the damage are missing: {error}")


def _plain_files(file: IO[bytes], start: int, encoding: str) -> dict[str, tuple[int, int]]:
    """Return {name in the header: (position, size)} for the plain files in a tar. Hard links refer to these names."""
    file.seek(0)
    found = {}
    with tarfile.open(fileobj=file, mode="r:", encoding=encoding) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all headers
            if member.isreg() and not member.issparse():
                found[posixpath.normpath(member.name)] = start + member.offset_data, member.size
    return found


def _check_end(file: IO[bytes], offset: int, where: str) -> Iterator[Problem]:
    """Yield a Problem if a tar has no end mark. tarfile stops at a damaged header without an error."""
    file.seek(offset)
    if file.read(_BLOCK) != bytes(_BLOCK):
        yield Problem(where, f"has no end mark at byte {offset:,}: it is cut short or damaged, so files may be missing")


def _is_image(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)


def _stored_fields(file: IO[bytes], found: _TarredFile) -> dict[str, Any]:
    """Return the fields in a file that an export wrote. Raise ValueError or FieldError if the file is wrong."""
    data = _read(file, found, MAX_FIELDS)
    try:
        fields = json_util.loads(data)
        unpack(fields)  # raises an error if an array is wrong
    except _NOT_EXTENDED_JSON as error:
        raise ValueError(f"{readable(found.path)} is not Extended JSON: {error!r}") from error
    if not isinstance(fields, dict):
        raise FieldError(f"{readable(found.path)} must be an object, got {short_repr(fields, 50)}")
    for name in fields.keys() - {*KEPT_FIELDS}:
        checked_field_name(name)
    if fields.get("name") is not None and not checked_str("name", fields["name"]):
        raise ValueError(f"{readable(found.path)} has an empty name")
    return fields


def _label(file: IO[bytes], found: _TarredFile) -> str:
    """Return the stripped text of a label; ValueError if the file cannot be read."""
    return str(field_value("txt", _read(file, found))).strip()


def _read(file: IO[bytes], found: _TarredFile, most: int = _MAX_FIELD) -> bytes:
    if found.size > most:
        raise ValueError(
            f"{readable(found.path)} has {found.size:,} bytes, more than {most:,}: extract the tar and "
            "convert the folder, or hand the samples to dbloader.write_store"
        )
    data = os.pread(file.fileno(), found.size, found.start)
    if len(data) < found.size:
        raise ValueError(f"{readable(found.path)} is cut short")
    return data
