"""Convert image files from any source into a store, in this process or in parts."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dbloader._machine import cpu_count
from dbloader._options import checked_flag, whole_number
from dbloader.conversion.convert_files import FileWriter
from dbloader.conversion.file_list import FileList
from dbloader.conversion.parallel import return_large_blocks
from dbloader.conversion.parts.append import adding_to
from dbloader.conversion.parts.make_plan import make_plan
from dbloader.conversion.parts.part import list_parts
from dbloader.conversion.parts.plan import target_of
from dbloader.conversion.parts.publish import publish
from dbloader.conversion.parts.run import check_executor, local_processes, run_parts
from dbloader.conversion.report import (
    FILE_COUNTS,
    Progress,
    Report,
    image_warnings,
    left_out,
    nothing_stored,
    repeat_warning,
    write_report,
)
from dbloader.conversion.settings import Settings
from dbloader.errors import ConversionError, OptionError, StoreExistsError
from dbloader.stores.lmdb.publish_shards import check_target
from dbloader.stores.open import check_destination, create_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.conversion.parts.plan import Plan
    from dbloader.conversion.transcode import ImageFormat


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    name_field: str | None = None,
    image_field: str | None = None,
    file_fields: Sequence[str] = (),
    images: ImageFormat | None = None,
    workers: int | None = None,
    check: str = "decode",
    on_bad: str = "reject",
    on_damaged: str = "reject",
    shuffle_seed: int | None = None,
    shards: int | None = None,
    executor: Any = None,
    append: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[Progress], object] = lambda _: None,
) -> Report:
    """Make a store of an image folder, tar, zip or Parquet files, an LMDB file, a store, or the files of a listing.

    Without ``shards``, threads of this process read, check and encode files ahead of the calling thread, which writes
    them to ``<destination>.partial``. When all are written, that is renamed (docs/design.md has a picture).

    The records are the same for any number of workers, and after an interrupted and resumed conversion. An interruption
    leaves the destination as it was, and ``resume`` continues after the last commit. With ``shards``, the same call
    again makes the missing parts; with ``overwrite``, only if ``resume`` is given too.

    Args:
        source: A folder with a folder of images for each class, or with a ``metadata.csv`` or ``metadata.jsonl`` that
            names its images; tar, zip or Parquet files (``"shard-{000..127}.tar"``, one file, or a folder of only
            such files); the place of a store of image files, whose records keep all their fields; a folder that
            Hugging Face's ``save_to_disk`` wrote; an LMDB file of another program, or the folder with its
            ``data.mdb``. With a listing: the folder that its paths start from, or the ``mongodb://`` place of a
            collection with the bytes of each file in a document. A folder of images may be in object storage
            (``s3://``, ``gs://``, ``az://``), and with a listing also on a web server (``https://``).
        destination: Place of the store.
        listing: JSON, CSV, TSV or JSON lines file that names the files, their labels and further fields; or
            annotations of COCO, VOC or YOLO (docs/annotations.md).
        name_field: Field of a MongoDB collection with a file's name; default ``"img_name"``.
        image_field: Field of a MongoDB collection with a file's bytes; default ``"bson_img"``.
        file_fields: Columns of the listing with the paths of further files, such as ``("mask", "depth")``. Their bytes
            become the fields of these names. They are read, checked and repaired like images, and a bad or damaged
            file counts like a bad or damaged image. In tar files, ``17.mask.png`` beside ``17.jpg`` is such a file.
            The metadata of a folder (``mask_file_name``), Hugging Face's Parquet and stores need no names here
            (docs/masks.md).
        images: How images are stored, such as ``ImageFormat(short_side=256)``; None for the files as they are.
        workers: Threads that read and check; None for one per CPU. With ``shards``, processes that make parts. With
            an executor, threads of each part; None for one.
        check: ``"decode"`` decodes every image, ``"structure"`` checks segments and headers only. An image that fails
            is not stored. ``"none"`` checks nothing.
        on_bad: What to do with a file that cannot be read or is no image: ``"reject"`` (and report) it or ``"fail"``.
        on_damaged: What to do with a truncated image: ``"reject"``, ``"fail"``, or ``"keep"``: store it with a field
            ``damaged``. Records of a store that have this field keep it.
        shuffle_seed: Seed of a random order of the records; None for the source's order.
        shards: Make a folder of so many LMDB files; None for one file, or for MongoDB. The records and the digest are
            the same as with one file.
        executor: With ``shards``: what makes the parts, instead of processes of this machine. ``"ray"`` for tasks of
            Ray (docs/ray.md), or anything with ``submit(function, *args, **kwargs)`` whose results have ``done()``,
            ``result()`` and ``cancel()``, such as an executor of Dask, loky, mpi4py or submitit. It is not shut down.
            All its machines must see the source and the destination at the same paths.
        append: Add the images to the folder of shards at the destination, as ``shards`` more files, by default one.
            Old records keep their indices and labels, and new classes follow the old ones. Programs that have the
            store open continue to read its old state. Names are not compared: an image that is added twice is stored
            twice.
        overwrite: Replace the store at the destination, once the new one is finished.
        resume: Continue an interrupted conversion. If there is none, begin, with a warning. An error if the files or
            an option that decides the records have changed.
        progress: Called from the calling thread as the conversion advances.

    Raises:
        TypeError: An option has the wrong type.
        OptionError: An option is out of its range, or two exclude each other; or the destination is the source or a
            part of it; or the environment variable DBLOADER_MAX_PIXELS is not a number.
        SourceError: The source cannot be converted.
        StoreError: The destination cannot be written, or is taken.
        ConversionError: A file is bad or damaged, and ``on_bad`` or ``on_damaged`` is ``"fail"``; or no file could be
            stored.
    """
    settings = Settings.checked(
        source,
        listing,
        name_field,
        image_field,
        file_fields,
        images=images,
        check=check,
        on_bad=on_bad,
        on_damaged=on_damaged,
        shuffle_seed=shuffle_seed,
    )
    checked_flag("overwrite", overwrite)
    checked_flag("resume", resume)
    workers = whole_number("workers", workers, 1, none=True) or (1 if executor is not None else cpu_count())
    if checked_flag("append", append) and overwrite:
        raise OptionError("append (--append) adds to a store and overwrite (--overwrite) replaces it: give one of them")
    if shards is None and not append:
        if executor is not None:
            raise OptionError(
                "executor (--executor) makes the parts of shards: also give their number, such as shards=64 "
                "(--shards 64)"
            )
        return _convert(settings, destination, workers, progress, overwrite=overwrite, resume=resume)
    if executor is not None:
        check_executor(executor)
    if not append:
        check_target(target_of(destination), overwrite=overwrite)
    shards = 1 if shards is None else shards
    return _convert_in_parts(
        settings, destination, shards, workers, executor, progress, append=append, overwrite=overwrite, resume=resume
    )


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
    # The errors of the source come before a partial store is replaced.
    found = settings.open()
    with closing(found), ExitStack() as stack:
        check_destination(destination, found.stores)
        writer = stack.enter_context(create_store(destination, overwrite=overwrite, resume=resume, resumable=True))
        data = stack.enter_context(tempfile.TemporaryFile(dir=writer.scratch))
        files = FileList.of_source(found, data, lambda count: progress(Progress(count, None, 0)))
        writer.check_settings({**settings.named(), "list of files": f"{len(files):,} files, SHA-256 {files.digest}"})
        writer.commit()  # from here on a killed conversion can be resumed
        resumed_at = writer.position
        into = FileWriter(writer, settings, found)

        def show() -> None:
            progress(Progress(len(files), writer.position, into.bytes_read))

        show()
        into.write(files, settings.order(len(files))[resumed_at:], workers, show)
        if not writer.length:
            writer.discard()
            raise ConversionError(nothing_stored(len(files), into.first_rejected))
        manifest = writer.finish(classes=found.classes, source=settings.describe(found))
    facts = {**left_out(found, files.tally), **{name: manifest.outcome.get(name, 0) for name in FILE_COUNTS}}
    warnings = [*facts.pop("warnings"), *repeat_warning(found.place, found.repeats)]
    if resume and not writer.resumed:
        warnings.append("there was nothing to resume: the conversion began from the start")
    warnings += image_warnings(manifest, raw=settings.converter.images.raw)
    report_file, problem = write_report(destination, writer.report_path, manifest.events, replaces=writer.replaces)
    return Report(
        place=writer.place,
        digest=manifest.digest,
        records=manifest.length,
        files=len(files),
        resumed_at=resumed_at,
        bytes_read=into.bytes_read,
        image_bytes=manifest.image_bytes,
        seconds=time.monotonic() - started,
        warnings=(*warnings, *problem),
        report_file=report_file,
        **facts,
    )


def _convert_in_parts(
    settings: Settings,
    destination: str | os.PathLike[str],
    shards: int,
    workers: int,
    executor: Any,
    progress: Callable[[Progress], object],
    *,
    append: bool,
    overwrite: bool,
    resume: bool,
) -> Report:
    """Plan, make all missing parts by the executor or by processes of this machine, and publish."""
    started = time.monotonic()
    place = os.path.abspath(destination)  # noqa: PTH100 - tasks may run in another working directory
    with adding_to(destination) if append else nullcontext():
        plan = make_plan(
            settings,
            destination,
            shards,
            append=append,
            overwrite=overwrite and not resume,
            progress=lambda count: progress(Progress(count, None, 0)),
        )
        parts = list_parts(destination)
        _check_same(plan, parts.plan.id)
        done = [plan.part_length(receipt.part) for receipt in parts.receipts]
        resumed_at, nbytes = sum(done), 0
        progress(Progress(plan.files, resumed_at, 0))
        running: Any = nullcontext(executor)
        if executor is None:
            running = local_processes(min(workers, plan.parts))
            workers = max(1, workers // plan.parts)
        with running as executor, closing(run_parts(place, parts.missing, executor, workers)) as made:
            for receipt in made:
                _check_same(plan, receipt.plan)
                done.append(plan.part_length(receipt.part))
                nbytes += receipt.bytes_read
                progress(Progress(plan.files, sum(done), nbytes))
        report = publish(destination, overwrite=overwrite)
    return replace(report, resumed_at=resumed_at, bytes_read=nbytes, seconds=time.monotonic() - started)


def _check_same(plan: Plan, plan_id: str) -> None:
    """Raise StoreExistsError if a plan has another id than the plan of this conversion."""
    if plan_id != plan.id:
        raise StoreExistsError(
            f"{plan.folder} has another plan than before: another conversion to the same place has replaced it"
        )
