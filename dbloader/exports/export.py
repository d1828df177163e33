"""Export a store to files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._options import check_choice
from dbloader.errors import DBLoaderError, ExportError
from dbloader.exports.base import check_files
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Each class is in the module of its format, imported when used: Parquet needs pyarrow.
FORMATS = {
    "folder": "FolderExporter",
    "webdataset": "WebDatasetExporter",
    "parquet": "ParquetExporter",
    "coco": "COCOExporter",
    "yolo": "YOLOExporter",
}
_MARKER = ".dbloader-export"  # in an unfinished folder; its writer holds a lock on it
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ExportReport(NamedTuple):
    """The result of `export_store`.

    Attributes:
        destination: The folder.
        records: Records of the store, all of which are in the folder.
        image_bytes: Bytes of all images in the store.
        warnings: Differences from the store, and the options of ``convert`` that undo them.
    """

    destination: str
    records: int
    image_bytes: int
    warnings: tuple[str, ...]


def export_store(
    place: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str = "folder",  # noqa: A002 - the word that everybody uses
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ExportReport:
    """Write all records of a store as files, from which ``convert`` makes the same store again.

    Files are written to ``<destination>.partial``, which is renamed when it is complete and on the disk. An error
    leaves nothing. A killed process leaves the partial folder, which the next export to this destination replaces.

    Args:
        place: Place of the store.
        destination: Folder to make. It may exist if it is empty.
        format: ``"folder"``, ``"webdataset"`` or ``"parquet"``. For a store with boxes also ``"coco"`` or ``"yolo"``,
            which ``convert`` reads with a listing, and which hold no other labels and fields.
        progress: Called with the number of records written, and the total.

    Raises:
        OptionError: ``format`` is unknown.
        ExportError: Something is at the destination, or it cannot be written, or the format cannot hold a record.
        StoreError: The store cannot be read.
        DamagedRecordError: A record is damaged.
    """
    check_choice("format", format, [*FORMATS])
    if is_mongo(destination):
        raise ExportError("export makes a folder, not a store: give a path, or copy the store (dbloader copy)")
    target = Path(destination)
    with open_store(place) as store:
        total, nbytes = len(store), store.manifest.image_bytes
        try:
            with _partial_folder(target) as partial:
                kind: Any = getattr(import_module(f"dbloader.exports.{format}"), FORMATS[format])
                with closing(kind(store, partial)) as exporter:
                    for done, record in enumerate(store):
                        progress(done, total)
                        check_files(record, store.manifest.file_fields)
                        exporter.write(record)
                    exporter.finish()
                progress(total, total)
        except DBLoaderError:
            raise
        except OSError as error:
            remedy = "free some space, or choose" if error.errno in _NO_ROOM else "choose"
            what = f"{target} cannot be written: {error.strerror or error}; {remedy} another destination"
            raise ExportError(what) from error
    warnings = [*exporter.warnings]
    if format != "parquet" and (named := store.manifest.field_classes):
        warnings.append(
            f"the names of the classes in {', '.join(map(repr, named))} are not written: Parquet keeps them"
        )
    return ExportReport(str(target), total, nbytes, (*warnings,))


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    """Make the partial folder; after the block, write it to the disk and rename it, or remove it after an error."""
    partial, marker = _begin(target)
    with ExitStack() as after_error:
        after_error.callback(os.close, marker)
        after_error.callback(shutil.rmtree, partial, ignore_errors=True)
        yield partial
        _sync(marker)
        os.replace(partial, target)  # noqa: PTH105
        after_error.pop_all()
    os.close(marker)
    (target / _MARKER).unlink()


def _begin(target: Path) -> tuple[Path, int]:
    """Make the partial folder; return it and the descriptor of its locked marker."""
    if not target.name or target.name == ".." or target.is_symlink() or (target.exists() and not _is_empty(target)):
        raise ExportError(f"{target} exists already: move it away, or choose another destination")
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.mkdir(parents=True)
    except FileExistsError:
        _remove_interrupted(partial)
        partial.mkdir()
    marker = os.open(partial / _MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    fcntl.flock(marker, fcntl.LOCK_EX)
    return partial, marker


def _sync(descriptor: int) -> None:
    """Write a whole file system to the disk, which is faster than an fsync of each file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # on macOS
        os.sync()
    elif libc.syncfs(descriptor):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _remove_interrupted(partial: Path) -> None:
    """Remove the folder of an interrupted export; ExportError if it is anything else, or an export is running."""
    if partial.is_symlink() or not (_is_empty(partial) or (partial / _MARKER).is_file()):
        raise ExportError(f"{partial} is in the way, and not of an interrupted export: move it away")
    with suppress(FileNotFoundError):
        marker = os.open(partial / _MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportError(f"another process is writing {partial} now: wait for it or end it") from error
        finally:
            os.close(marker)
    shutil.rmtree(partial)
