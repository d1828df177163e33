"""Convert image files from any source into a store."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal

from dbloader._describe import short_repr
from dbloader._extensions import extension
from dbloader._machine import cpu_count
from dbloader._options import checked_flag, whole_number
from dbloader._parallel import return_large_blocks
from dbloader.conversion.convert_files import FileWriter
from dbloader.conversion.file_list import FileList
from dbloader.conversion.meter import Meter
from dbloader.conversion.report import Progress, finish_report, left_out, nothing_stored
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, OptionError, StoreExistsError
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.open import check_destination, create_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.conversion.report import Report
    from dbloader.sources.base import Listing


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | Listing | None = None,
    name_field: str | None = None,
    image_field: str | None = None,
    file_fields: Sequence[str] = (),
    where: str | None = None,
    class_folder: str | None = None,
    boxes: str | None = None,
    encoding: str | None = None,
    classes: str | os.PathLike[str] | Sequence[str] | None = None,
    images: ImageFormat | None = None,
    workers: int | None = None,
    check: str = "decode",
    on_bad: str = "reject",
    on_damaged: str = "reject",
    shuffle_seed: int | None = None,
    shards: int | None = None,
    executor: Any = None,
    append: bool = False,
    new_only: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[Progress], object] | Literal["bar"] | None = "bar",
) -> Report:
    """Make a store of images from a folder, tar, zip or Parquet files, an LMDB file, a store, or a listing of files.

    Threads read, check and encode files. The calling thread writes their records to ``<destination>.partial``, and
    renames this file at the end (docs/design.md has a picture). With ``shards``, several processes make shards in this
    way.

    Neither the number of workers nor an interruption changes the records. An interruption leaves the destination
    unchanged, and ``resume`` continues after the last commit. With ``shards``, a repeated call makes only missing
    shards. With ``overwrite`` and without ``resume``, a repeated call makes all shards.

    Args:
        source: A folder with a folder of images for each class. Or a folder with a ``metadata.csv`` or
            ``metadata.jsonl`` that names its images. Or tar, zip or Parquet files: one file, a folder of only such
            files, or ``"shard-{000..127}.tar"``. Or a store with image files; the new records have the same fields. Or
            a folder that Hugging Face's ``save_to_disk`` wrote. Or an LMDB file of another program, or the folder of
            its ``data.mdb``. With a listing: the folder where the listing's paths start, or the ``mongodb://`` place
            of a collection with a document for each file. A folder of images may be in object storage (``s3://``,
            ``gs://``, ``az://``). With a listing, it may be on a web server too (``https://``).
        destination: Place of the new store.
        listing: JSON, CSV, TSV, JSON lines or text file that names the files, their labels and extra fields; or
            annotations of COCO, VOC or YOLO (docs/annotations.md). Pass a `Listing` to name the columns yourself.
        name_field: Field with a file's name in a MongoDB collection; default ``"img_name"``.
        image_field: Field with a file's bytes in a MongoDB collection; default ``"bson_img"``.
        file_fields: Columns of the listing with the paths of further files, such as ``("mask", "depth")``. The bytes of
            these files are stored in fields of the same names. The files are read, checked and repaired like images,
            and a bad or damaged file counts like a bad or damaged image. In tar files, ``17.mask.png`` beside
            ``17.jpg`` is the file of the field ``mask``. Leave ``file_fields`` out for stores, Hugging Face's Parquet
            and folders with metadata: these sources name such files themselves (docs/masks.md).
        where: With a store as the source: convert only the records that this query finds (docs/queries.md).
        class_folder: Which folder of an image's path is its class: ``"first"`` (as in torchvision) or ``"last"``.
            ``"path"`` makes a class of the names of all folders, joined by ``/``.
        boxes: Whether boxes were drawn on the image as EXIF turns it (``"upright"``) or on the image before turning
            (``"stored"``). Or their unit: ``"pixels"`` or ``"fractions"``. Give both as ``"upright,pixels"``.
        encoding: Encoding of names in zip files, or of the text of a listing, such as ``"gbk"``; default UTF-8.
        classes: Names of the classes in the order of their labels. Pass a list of names, a store's place, a ``.txt``
            with a name on each line, or a ``.json`` list. Any other class is an error. ``"numbers"`` means that the
            class names, such as ``"7"``, are the labels. By default, a folder ``val`` gets the classes of the folder
            ``train`` beside it, if ``train`` has all classes of ``val``.
        images: Stored form of images, such as ``ImageFormat(short_side=256)``; None for unchanged files.
        workers: Number of threads; None means one per CPU. With ``shards``, the number of processes. With an executor,
            the number of threads that make one shard; None means one thread.
        check: ``"decode"`` decodes every image, ``"structure"`` checks segments and headers only, and ``"none"`` checks
            nothing. ``on_bad`` and ``on_damaged`` decide what happens to a file that fails the check.
        on_bad: What to do with a file that cannot be read or is not an image: ``"reject"`` (and report), or ``"fail"``.
        on_damaged: What to do with a truncated image: ``"reject"``, ``"fail"``, or ``"keep"`` (store it with a field
            ``damaged``). Without ``raw``, records of a source store that have this field are always kept.
        shuffle_seed: Store the records in a random order with this seed. None means the order of the source.
        shards: Make a folder with this number of LMDB files. None makes one file, or a MongoDB collection. The number
            does not change the records or the digest.
        executor: With ``shards``: an executor that makes the shards, in place of processes on this machine. ``"ray"``
            uses tasks of Ray (docs/ray.md). Executors of Dask, loky, mpi4py and submitit work too: their
            ``submit(function, *args)`` returns an object with ``done()``, ``result()`` and ``cancel()``. ``convert``
            does not shut down the executor. On all machines, source and destination must have the same paths.
        append: Add the images to the folder of shards at the destination, in ``shards`` new files (default 1). Old
            records keep their indices and labels, and new classes follow the old classes. Programs that have the store
            open continue to read its old state. If it is on a disk, a warning says how many images it now has twice.
        new_only: With ``append``: leave out each file if the store has a record with the same name, label, fields and
            image. The old record of a changed file stays in the store.
        overwrite: Replace the store at the destination when the new store is finished.
        resume: Continue an interrupted conversion. If no conversion was interrupted, warn, and begin a new conversion.
            If the files or an option that affects records have changed, raise an error.
        progress: ``"bar"`` shows a bar on a terminal or in a notebook, and elsewhere prints a line every 30 s to
            stderr. None shows nothing. A function is called in the calling thread, whenever the conversion advances.

    Raises:
        TypeError: An option has the wrong type.
        OptionError: An option is out of its range, or two options exclude each other. Or the destination is the source
            or a part of it. Or the environment variable DBLOADER_MAX_PIXELS is not a number.
        SourceError: The source cannot be converted.
        StoreError: The destination cannot be written, or already has a store.
        ConversionError: A file is bad or damaged, and ``on_bad`` or ``on_damaged`` is ``"fail"``; or no file could be
            stored.
    """
    settings = Settings(
        source=source,
        listing=listing,
        name_field=name_field,
        image_field=image_field,
        file_fields=file_fields,
        where=where,
        class_folder=class_folder,
        boxes=boxes,
        encoding=encoding,
        classes=classes,
        images=ImageFormat() if images is None else images,
        check=check,
        on_bad=on_bad,
        on_damaged=on_damaged,
        shuffle_seed=shuffle_seed,
        new_only=new_only,
    )
    is_place = is_sharded(destination) or "://" in str(source)  # a URI may have a password: do not repeat it
    if not is_place and os.path.isdir(destination) and not os.path.isdir(source):  # noqa: PTH112 - any str
        example = os.path.join(destination, "train.lmdb")  # noqa: PTH118 - any str
        swapped = f"if source and destination are swapped, write dbloader convert {destination} {source}"
        raise StoreExistsError(f"{destination} is a folder, but no store: name a file, such as {example}; {swapped}")
    checked_flag("overwrite", overwrite)
    checked_flag("resume", resume)
    workers = whole_number("workers", workers, 1, none=True) or (1 if executor is not None else cpu_count())
    if checked_flag("append", append) and overwrite:
        raise OptionError("append (--append) adds to a store, and overwrite (--overwrite) replaces it: choose one")
    if executor is not None and shards is None and not append:
        raise OptionError("executor (--executor) makes shards: also give their number, such as shards=64 (--shards 64)")
    if progress not in (None, "bar") and not callable(progress):
        raise TypeError(f"progress must be 'bar', a function or None, got {short_repr(progress)}")
    with Meter("Looking for images", "images", quiet=progress != "bar") as meter:
        show = progress if callable(progress) else lambda progress: progress.show(meter)
        if shards is None and not append and not new_only:
            return _convert(settings, destination, workers, show, overwrite=overwrite, resume=resume)
        report: Report = extension("convert_in_parts")(
            settings,
            destination,
            1 if shards is None else shards,
            workers,
            executor,
            show,
            append=append,
            overwrite=overwrite,
            resume=resume,
        )
        return report


def _convert(
    settings: Settings,
    destination: str | os.PathLike[str],
    workers: int,
    progress: Callable[[Progress], object],
    *,
    overwrite: bool,
    resume: bool,
) -> Report:
    """Convert in this process, into one file or MongoDB."""
    started = time.monotonic()
    return_large_blocks()
    settings = settings.decided()
    # Open the source first, because its errors must not discard an unfinished store.
    with closing(settings.open()) as found, ExitStack() as stack:
        check_destination(destination, found.stores)
        writer = stack.enter_context(create_store(destination, overwrite=overwrite, resume=resume, resumable=True))
        data = stack.enter_context(tempfile.TemporaryFile(dir=writer.scratch))
        files = FileList.of_source(found, data, lambda count: progress(Progress(count, None, 0)))
        listed = f"{len(files):,} files, SHA-256 {files.digest}"
        writer.check_settings({**settings.named(found), "list of files": listed})
        writer.commit()  # after this commit, a killed conversion can be resumed
        resumed_at = writer.position
        into, facts = FileWriter(writer, settings, found), left_out(found, files.tally)

        def show() -> None:
            progress(Progress(len(files), writer.position, into.bytes_read))

        progress(Progress(len(files), writer.position, 0, facts["understood"]))
        into.write(files, files.order(settings.shuffle_seed)[resumed_at:], workers, show)
        late = [*found.late(files)]
        writer.write([], events=late, outcome={"rejected": len(late)} if late else {})
        if not writer.length:
            writer.discard()
            raise ConversionError(nothing_stored(len(files), into.first_rejected))
        manifest = writer.finish(classes=found.stored_classes, source=settings.describe(found, files.tally))
    if resume and not writer.resumed:
        facts["warnings"] += ("there was nothing to resume, so this conversion began from the start",)
    return finish_report(
        manifest,
        destination,
        writer.report_path,
        place=writer.place,
        started=started,
        raw=settings.images.raw,
        files=len(files) + len(late),
        resumed_at=resumed_at,
        bytes_read=into.bytes_read,
        **facts,
    )
