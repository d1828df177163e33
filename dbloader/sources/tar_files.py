"""Find the files in a tar and the samples that they make, without extracting anything."""

from __future__ import annotations

import os
import posixpath
import tarfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from dbloader.errors import SourceError
from dbloader.sources.base import Problem, readable
from dbloader.sources.folder import EXTENSIONS, TARS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from dbloader.sources.base import Tally
    from dbloader.sources.compressed import DecompressedFiles

# What tarfile raises for headers that lie.
_WRONG = (tarfile.TarError, ValueError, EOFError, OverflowError, IndexError, KeyError)
_BLOCK = 512


class TarredFile(NamedTuple):
    """A file in a tar."""

    path: str  # with surrogates for bytes that are not UTF-8; begins with the name of the inner tar, if there is one
    start: int  # byte of the outer tar
    size: int


class Sample(NamedTuple):
    """The files with the same path up to the first dot of their name, of which one is the image."""

    image: TarredFile
    others: dict[str, TarredFile]  # by extension


@contextmanager
def opened(path: Path, decompressed: DecompressedFiles) -> Iterator[IO[bytes]]:
    """Open a tar; SourceError if it cannot be read."""
    try:
        if (found := decompressed.open(path)) is not None:
            found.file.seek(0)
            yield found.file
        else:
            with path.open("rb") as file:
                yield file
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{readable(path)}: cannot be read: {error.strerror or error}") from error


def samples(file: IO[bytes], path: Path, tally: Tally, file_fields: Collection[str] = ()) -> Iterator[Sample | Problem]:
    """Yield the samples of a tar, and a problem for each that cannot be one.

    Files such as ``17.mask.png`` are not the image of a sample if ``mask`` is one of ``file_fields``.
    """
    group: dict[str, TarredFile] = {}
    key = ("", "")
    for found in _files(file, readable(path), tally):
        if isinstance(found, Problem):
            yield found
            continue
        folder, name = posixpath.split(found.path)
        stem, _, extension = name.partition(".")
        if (folder, stem) != key or extension in group:
            yield from _split(group, tally, file_fields)
            group, key = {}, (folder, stem)
        group[extension] = found
    yield from _split(group, tally, file_fields)


def field_of(extension: str) -> str:
    """Return the name of the field that the file with an extension such as ``mask.png`` may be; "" of no image."""
    return extension.rpartition(".")[0] if _is_image(extension) else ""


def _split(group: dict[str, TarredFile], tally: Tally, file_fields: Collection[str]) -> Iterator[Sample | Problem]:
    """Yield what the files with one stem are: one sample, several images, or nothing."""
    images = {
        extension: file
        for extension, file in group.items()
        if _is_image(file.path) and field_of(extension) not in file_fields
    }
    others = {extension: file for extension, file in group.items() if extension not in images}
    plain = [extension for extension in images if "." not in extension]
    if others and len(images) > 1 and len(plain) == 1:  # such as jpg, seg.png, cls
        image = images.pop(plain[0])
        yield Sample(image, {**others, **images})
    elif others and len(images) > 1:
        first = next(iter(images.values()))
        yield Problem(readable(first.path), f"cannot be told from other images of its sample ({', '.join(images)})")
    elif images:
        for image in images.values():  # several: images whose names differ after the first dot
            yield Sample(image, others)
    else:
        for file in others.values():
            tally.skip(os.fsencode(posixpath.basename(file.path)))


def _files(
    file: IO[bytes], where: str, tally: Tally, prefix: str = "", start: int = 0
) -> Iterator[TarredFile | Problem]:
    """Yield the files of a tar, and those of the tars in it. ``start`` is where it begins in the outer tar."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            end = 0
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all headers
                if member.size < 0 or tar.offset <= end:  # newer versions of tarfile end at a negative size
                    break
                end = tar.offset
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
                elif name.lower().endswith(TARS):
                    yield Problem(readable(path), f"is a tar in {where} that is not read: extract {where}")
                else:
                    yield TarredFile(path, start + member.offset_data, member.size)
            yield from _check_end(file, end, where)
    except _WRONG as error:
        yield Problem(where, f"is damaged, and files after that are missing: {error}")


def _check_end(file: IO[bytes], offset: int, where: str) -> Iterator[Problem]:
    """Yield a problem unless a tar ends as it should: tarfile takes a damaged header for the end."""
    file.seek(offset)
    if file.read(_BLOCK) != bytes(_BLOCK):
        yield Problem(
            where, f"has no end mark at byte {offset:,}: it is cut short or damaged, and files may be missing"
        )


def _is_image(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)
