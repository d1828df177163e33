"""Export a store: write its records as files that other programs read."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._options import check_choice
from dbloader.errors import ExportError
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

# Each format's class is in the module of its name, which is imported when it is used: Parquet needs pyarrow.
FORMATS = {"folder": "FolderExporter", "webdataset": "WebDatasetExporter", "parquet": "ParquetExporter"}


class ExportReport(NamedTuple):
    """What an export has written."""

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
    """Write all records of a store as files, which ``convert`` turns into the same store again.

    The folder appears at the destination when it is complete. An error leaves nothing there.

    Args:
        place: Place of the store.
        destination: Folder to make. It may exist if it is empty.
        format: ``"folder"``, ``"webdataset"`` or ``"parquet"``.
        progress: Called with the number of records written, and of all records.

    Raises:
        OptionError: ``format`` is not one of these.
        ExportError: Something is at the destination, or it cannot be written, or the format cannot hold a record.
        StoreError: The store cannot be read.
        DamagedRecordError: A record is damaged.
    """
    check_choice("format", format, [*FORMATS])
    target = Path(destination)
    with open_store(place) as store:
        total, nbytes = len(store), store.manifest.image_bytes
        partial = _begin(target)
        try:
            kind: Any = getattr(import_module(f"dbloader.exports.{format}"), FORMATS[format])
            with closing(kind(store, partial)) as exporter:
                for done, record in enumerate(store):
                    progress(done, total)
                    exporter.write(record)
                exporter.finish()
                progress(total, total)
            os.replace(partial, target)  # noqa: PTH105
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return ExportReport(str(target), total, nbytes, (*exporter.warnings,))


def _begin(target: Path) -> Path:
    """Return a new folder next to the destination; ExportError if something is there."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} exists already: move it away, or choose another destination")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial
