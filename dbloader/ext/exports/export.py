"""Export a store to files."""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import print_pretty, report_in_lines
from dbloader._machine import NO_ROOM
from dbloader._options import check_choice
from dbloader._places import is_mongo, is_remote
from dbloader.errors import DBLoaderError, ExportError, OptionError
from dbloader.ext.exports.base import check_files
from dbloader.ext.queries.select import find_matching
from dbloader.stores.lmdb.growing_file import sync_folder
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Format -> class in the module of the same name. Only one module is imported, because parquet needs pyarrow.
FORMATS = {
    "folder": "FolderExporter",
    "webdataset": "WebDatasetExporter",
    "parquet": "ParquetExporter",
    "coco": "COCOExporter",
    "yolo": "YOLOExporter",
}


class ExportReport(NamedTuple):
    """The result of `export_store`.

    Attributes:
        destination: The folder.
        records: Number of exported records.
        image_bytes: Bytes that the images of these records have in the store.
        warnings: Differences between the files and the store, and ``convert``'s options that undo the differences.
    """

    destination: str
    records: int
    image_bytes: int
    warnings: tuple[str, ...]

    __str__, _repr_pretty_ = report_in_lines, print_pretty  # type: ignore[misc] # mypy knows only fields and methods


def export_store(
    place: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str = "folder",  # noqa: A002 - the word that everybody uses
    where: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ExportReport:
    """Write the records of a store as files. From these files, ``convert`` can make a store with the same records.

    Files are written to the folder ``<destination>.partial``. The folder is renamed when all files are on the disk. An
    error removes the folder. A killed process leaves the folder: remove it before the next export.

    Args:
        place: Place of the store.
        destination: Folder to make, which may exist if it is empty.
        format: ``"folder"``, ``"webdataset"`` or ``"parquet"``; for a store with boxes also ``"coco"`` or ``"yolo"``.
            COCO and YOLO keep only images, boxes and their classes. ``convert`` reads both with ``listing=``.
        where: Write only the records that this query finds (docs/queries.md); None for all.
        progress: Called with the number of records written, and the total.

    Raises:
        OptionError: ``format`` is unknown, or ``where`` is wrong or finds no record.
        ExportError: The destination or its partial folder exists or cannot be written, or the format cannot store a
            record.
        StoreError: The store cannot be read.
        DamagedRecordError: A record is damaged.
    """
    check_choice("format", format, [*FORMATS])
    if is_mongo(destination) or is_remote(destination):
        raise ExportError("export makes a folder on this machine: give its path, or copy the store (dbloader copy)")
    target = Path(destination)
    if not str(target).strip() or str(target).startswith("-"):
        raise ExportError(f"the destination must be the path of a folder, such as ./images, got {str(target)!r}")
    with open_store(place) as store:
        indices = find_matching(store, where or "")
        if where and not len(indices):
            raise OptionError(f"there is nothing to export: {where!r} finds no record of {store.place}")
        total, nbytes = len(indices), int(store.column("nbytes")[indices].sum())
        try:
            with _partial_folder(target) as partial:
                kind: Any = getattr(import_module(f"dbloader.ext.exports.{format}"), FORMATS[format])
                with closing(kind(store, indices, partial)) as exporter:
                    for done, record in enumerate(exporter.records()):
                        progress(done, total)
                        check_files(record, store.manifest.file_fields)
                        exporter.write(record)
                    exporter.finish()
                progress(total, total)
        except DBLoaderError:
            raise
        except OSError as error:
            remedy = "free some space, or choose" if error.errno in NO_ROOM else "choose"
            what = f"{target} cannot be written: {error.strerror or error}"
            raise ExportError(f"{what}; {remedy} another destination") from error
    warnings = [*exporter.warnings]
    named = store.manifest.field_classes.keys() - {store.manifest.target}
    if format != "parquet" and named:
        warnings.append(
            f"the names of the classes in {', '.join(map(repr, sorted(named)))} are not written: Parquet keeps them"
        )
    return ExportReport(str(target), total, nbytes, (*warnings,))


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    """Make the partial folder. After the block, sync the folder and rename it. After an error, remove it."""
    if not target.name or target.name == ".." or target.is_symlink() or (target.exists() and not _is_empty(target)):
        raise ExportError(f"{target} exists already: move it away, or choose another destination")
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.mkdir(parents=True)
    except FileExistsError as error:
        what = f"{partial} exists already: another export writes it, or was killed"
        raise ExportError(f"{what}; remove it if no export to {target} is running") from error
    with ExitStack() as after_error:
        after_error.callback(shutil.rmtree, partial, ignore_errors=True)
        yield partial
        _sync(partial)
        partial.replace(target)
        after_error.pop_all()
        with suppress(OSError):  # the files are in place, and some folders cannot be synced
            sync_folder(target.parent)


def _sync(folder: Path) -> None:
    """Sync the whole file system that contains a folder. This is faster than an fsync of each file."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
