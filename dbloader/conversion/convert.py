"""The conversion of a source into a store: reading and checking in parallel, writing in order."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._machine import processors
from dbloader._options import checked_flag, whole_number
from dbloader.conversion.file_list import FileList, permutation
from dbloader.conversion.machine import keep_freed_memory
from dbloader.conversion.parallel import prepare_in_order
from dbloader.conversion.prepare import FilePreparer
from dbloader.conversion.report import Progress, Report, image_warnings, write_report
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, OptionError
from dbloader.images.pillow import max_pixels
from dbloader.sources.base import Problem, full_path
from dbloader.sources.folder import scan
from dbloader.sources.listing import read_listing
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import create_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.conversion.parallel import Done
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Source
    from dbloader.stores.writer import Writer


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    key: str | None = None,
    image: str | None = None,
    workers: int | None = None,
    check: str = "decode",
    on_bad: str = "reject",
    on_damaged: str = "reject",
    max_side: int | None = None,
    short_side: int | None = None,
    quality: int | None = None,
    tile: bool = False,
    tile_width: int | None = None,
    raw: bool = False,
    shuffle: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[Progress], object] = lambda _: None,
) -> Report:
    """Make a store of an image folder, or of the files that a listing names.

    The records are the same, byte for byte, for any number of workers and for an interrupted and resumed run. If it
    is interrupted, the destination is as it was before, and ``resume`` goes on after the last commit.

    Args:
        source: Folder with a folder for each class; with a listing, the folder that its paths start from, or the
            ``mongodb://`` place of a collection that has a document with the bytes of each file.
        destination: Place of the store.
        listing: JSON, CSV, TSV or JSON lines file that names the files, their labels and further fields.
        key: Of a collection in MongoDB, the field with a file's name; default ``"img_name"``.
        image: The field with its bytes; default ``"bson_img"``.
        workers: Threads that read and check; None for as many as there are processors. Files that take little time
            are prepared by the calling thread instead, which is quicker.
        check: ``"decode"``: every image is decoded, and what does not decode is not stored; ``"structure"``: segments
            and headers are checked; ``"none"``: files are stored as they are.
        on_bad: What to do with a file that cannot be read or is no image: ``"reject"`` (and report) it or ``"fail"``.
        on_damaged: The same for an image of which data is missing, or ``"keep"``: store it with a field ``damaged``.
        max_side: Make images smaller whose longer side has more pixels than this.
        short_side: Make images smaller whose shorter side has more pixels than this.
        quality: JPEG and WebP quality, 1 to 100, of images made smaller; default 95. With ``tile``, of all JPEGs.
        tile: Store JPEGs tiled, so that crops of them are decoded without the rest (`dbloader.images.tiled`), with the
            lengths of their tiles in the field ``tiles``. Those made smaller are encoded so; the others are tiled
            without loss, for which the program ``jpegtran`` is needed, or, if a ``quality`` is given, encoded again.
            Bytes after the end of a JPEG, such as a second picture, are left out. What cannot be tiled is stored
            as it would be without, and reported.
        tile_width: Pixels that tiles are wide, as near as can be; default 32.
        raw: Store pixels instead of files: uint8 arrays of shape (height, width, 3), RGB, as ``decode_pil`` gives them;
            some six times as large as photographs in JPEG. Values of no known range, such as floats, are rejected.
        shuffle: Seed of an order to store the records in; None for the source's order.
        overwrite: Replace the store at the destination, once the new one is finished.
        resume: Go on with an interrupted conversion; where there is none, begin, and say so in the report's warnings.
        progress: Called from this thread as the conversion advances.

    Raises:
        TypeError: An option is of another type: text where True, False or a number is wanted.
        OptionError: An option is out of its range, or two exclude each other; or ``jpegtran`` is missing, or the
            environment variable DBLOADER_MAX_PIXELS is not a number.
        SourceError: The source cannot be converted.
        StoreError: The destination cannot be written, or is taken.
        ConversionError: A file is bad and ``"fail"`` was asked for; or no file could be stored.
    """
    for name, value, allowed in (
        ("on_bad", on_bad, ("reject", "fail")),
        ("on_damaged", on_damaged, ("reject", "keep", "fail")),
    ):
        if value not in allowed:
            raise OptionError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    for name, flag in (("tile", tile), ("raw", raw), ("overwrite", overwrite), ("resume", resume)):
        checked_flag(name, flag)
    workers, shuffle = whole_number("workers", workers, none=True), whole_number("shuffle", shuffle, none=True)
    if workers is not None and workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    max_pixels()  # which raises if the environment variable is wrong
    if shuffle is not None and not -(2**63) <= shuffle < 2**63:
        raise OptionError(f"shuffle must be a seed of 64 bits, got {shuffle}")
    preparation = FilePreparer(
        check=check,
        keep_damaged=on_damaged == "keep",
        form=ImageFormat(
            max_side=whole_number("max_side", max_side, none=True),
            short_side=whole_number("short_side", short_side, none=True),
            quality=whole_number("quality", quality, none=True),
            tile=tile,
            tile_width=whole_number("tile_width", tile_width, none=True),
            raw=raw,
        ),
        root=b"" if is_mongo(source) else os.fsencode(source),
    )
    fail_on = {name for name, value in (("bad", on_bad), ("damaged", on_damaged)) if value == "fail"}
    started = time.monotonic()
    keep_freed_memory()
    files = _source(source, listing, key=key, image=image)  # before anything is begun anew
    with (
        closing(files),
        create_store(destination, overwrite=overwrite, resume=resume, resumable=True) as writer,
    ):
        with FileList(files, writer.scratch, lambda found: progress(Progress(found, None, 0))) as spool:
            files_found = f"{len(spool):,} files, SHA-256 {spool.digest}"
            writer.check_settings({**_agreed(preparation, shuffle), "list of files": files_found})
            writer.commit()  # killed from here on, it can be resumed, which says so if anything is not the same
            resumed_at = writer.position
            order = np.arange(len(spool)) if shuffle is None else permutation(len(spool), shuffle)
            bytes_read, first_rejected = 0, ""
            progress(Progress(len(spool), resumed_at, 0))
            for batch in prepare_in_order(preparation, files, spool, order[resumed_at:], workers or processors()):
                _write(writer, batch, fail_on)
                bytes_read += sum(item.prepared.nbytes for item in batch)
                first_rejected = first_rejected or _first_rejected(batch)
                progress(Progress(len(spool), writer.position, bytes_read))
        if not writer.length:
            writer.resumable = False
            first = f"; the first is {first_rejected}" if first_rejected else ""
            raise ConversionError(f"none of the {len(spool):,} files could be stored{first}")
        manifest = writer.finish(
            classes=files.classes,
            source={
                "path": files.place,
                "listing": None if listing is None else full_path(listing),
                "shuffle": shuffle,
                **preparation.settings(),
            },
        )
    warnings = [*files.warnings]
    if resume and not writer.resumed:
        warnings.append("there was nothing to resume: the conversion began from the start")
    outcome = Counter(manifest.outcome)
    warnings += image_warnings(manifest, raw=raw)
    report_file, problem = write_report(destination, writer.report_path)
    return Report(
        place=writer.place,
        digest=manifest.digest,
        records=manifest.length,
        files=len(spool),
        repaired=outcome["repaired"],
        rejected=outcome["rejected"],
        damaged=outcome["damaged"],
        resized=outcome["resized"],
        reencoded=outcome["reencoded"],
        untiled=outcome["untiled"],
        deep=outcome["deep"],
        frames=outcome["frames"],
        resumed_at=resumed_at,
        bytes_read=bytes_read,
        image_bytes=manifest.image_bytes,
        seconds=time.monotonic() - started,
        warnings=(*warnings, *problem),
        skipped=dict(sorted(files.skipped.items(), key=lambda item: (-item[1], item[0]))),
        hidden=files.hidden,
        report_file=report_file,
    )


def _agreed(preparation: FilePreparer, shuffle: int | None) -> dict[str, Any]:
    """Return what must be the same for a conversion to go on, by the names that options have in both places."""
    settings = {**preparation.settings(), "shuffle": shuffle}
    settings["on_damaged"] = "keep" if settings.pop("keep_damaged") else "not keep"
    return {f"{name} (--{name.replace('_', '-')})": value for name, value in settings.items()}


def _source(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    *,
    key: str | None,
    image: str | None,
) -> Source:
    if is_mongo(source):
        if listing is None:
            raise OptionError(
                "of a collection in MongoDB a listing says which files to take, and their labels: give one (--list); "
                "a store is copied by dbloader copy",
            )
        from dbloader.sources.collection import read_collection  # pymongo takes longer to import than all the rest

        return read_collection(source, listing, key=key or "img_name", image=image or "bson_img")
    if key is not None or image is not None:
        raise OptionError(
            "key (--key) and image (--image) name fields of a collection in MongoDB: give a mongodb:// place as the "
            "source, or leave them out"
        )
    return scan(source) if listing is None else read_listing(listing, source)


def _write(writer: Writer, batch: list[Done], fail_on: set[str]) -> None:
    """Write what became of some files."""
    outcome: Counter[str] = Counter()
    depths: Counter[str] = Counter()
    events: list[dict[str, str]] = []
    records: deque[EncodedRecord] = deque()
    for item, prepared in batch:
        if prepared.record is not None:
            records.append(prepared.record)
            prepared.record = None  # so that each is let go of once its document is made
        if prepared.depth:
            depths[prepared.depth] += 1
        if prepared.outcome:
            outcome[prepared.outcome] += 1
            events.append({"name": item.name, "event": prepared.outcome, "reason": prepared.reason})
        remarks = {"untiled": prepared.untiled, "deep": prepared.deep, "frames": prepared.frames}
        for event, reason in remarks.items():
            if reason:
                outcome[event] += 1
                events.append({"name": item.name, "event": event, "reason": reason})
        if prepared.resized:
            outcome["resized"] += 1
        if prepared.reencoded:
            outcome["reencoded"] += 1
        if prepared.outcome == "rejected" and ("bad" if prepared.bad else "damaged") in fail_on:
            option = "on-bad" if prepared.bad else "on-damaged"
            # What is no file is a part of the list that a resumed conversion compares.
            mend = "mend that and begin again" if isinstance(item, Problem) else "mend the file and resume (--resume)"
            raise ConversionError(f"{item.name}: {prepared.reason}; {mend}, or resume with --{option} reject")
    each = (records.popleft() for _ in range(len(records)))
    writer.write(each, events=events, outcome=outcome, position=writer.position + len(batch), depths=depths)


def _first_rejected(batch: list[Done]) -> str:
    return next((f"{item.name}: {done.reason}" for item, done in batch if done.outcome == "rejected"), "")
