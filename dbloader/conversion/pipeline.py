"""The conversion of a source into a store: reading and checking in parallel, writing in order."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.conversion.budget import Budget
from dbloader.conversion.machine import keep_freed_memory, processors, strict_pillow
from dbloader.conversion.prepare import Preparation, Prepared
from dbloader.conversion.report import Progress, Report, write_report
from dbloader.conversion.spool import Spool, permutation
from dbloader.errors import ConversionError, OptionError
from dbloader.sources import Entry, Problem, read_listing, scan
from dbloader.sources.base import readable
from dbloader.stores import create_store, is_mongo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from dbloader.sources import Source
    from dbloader.stores import Writer

# Files of one task: enough that handing it to a thread costs nothing, few enough that all threads have work.
_TASK_FILES = 16
# Of these, files that a source is asked for at once: up to 16 MiB each are held before the budget can know.
_READ_FILES = 4
# Bytes of files, and of pixels where those are held, that all tasks together may hold ahead of the writer.
_HELD_BYTES = 96 * 2**20
# Tasks that may be ahead of the writer, so that the threads have work while it is busy.
_TASKS_AHEAD = 8


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
    shuffle: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[Progress], object] = lambda _: None,
) -> Report:
    """Makes a store of an image folder, or of the files that a listing names.

    The records are the same, byte for byte, for any number of workers and for an interrupted and resumed run. If it
    is interrupted, the destination is as it was before, and ``resume`` goes on after the last commit.

    Args:
        source: Folder with a folder for each class; with a listing, the folder that its paths start from, or the
            ``mongodb://`` place of a collection that has a document with the bytes of each file.
        destination: Place of the store.
        listing: JSON, CSV, TSV or JSON lines file that names the files, their labels and further fields.
        key: Of a collection in MongoDB, the field with a file's name; default ``"img_name"``.
        image: The field with its bytes; default ``"bson_img"``.
        workers: Threads that read and check; None for as many as there are processors.
        check: ``"decode"``: every image is decoded, and what does not decode is not stored; ``"structure"``: segments
            and headers are checked; ``"none"``: files are stored as they are.
        on_bad: What to do with a file that cannot be read or is no image: ``"reject"`` (and report) it or ``"fail"``.
        on_damaged: The same for an image of which data is missing, or ``"keep"``: store it with a field ``damaged``.
        max_side: Make images smaller whose longer side has more pixels than this.
        short_side: Make images smaller whose shorter side has more pixels than this.
        quality: JPEG and WebP quality, 1 to 100, of images made smaller; default 95.
        shuffle: Seed of an order to store the records in; None for the source's order.
        overwrite: Replace the store at the destination, once the new one is finished.
        resume: Go on with an interrupted conversion.
        progress: Called from this thread as the conversion advances.

    Raises:
        OptionError: An option is out of its range, or two exclude each other.
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
    if workers is not None and workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    if shuffle is not None and not -(2**63) <= shuffle < 2**63:
        raise OptionError(f"shuffle must be a seed of 64 bits, got {shuffle}")
    preparation = Preparation(
        check=check,
        keep_damaged=on_damaged == "keep",
        max_side=max_side,
        short_side=short_side,
        quality=quality,
        root=b"" if is_mongo(source) else os.fsencode(source),
    )
    fail_on = {name for name, value in (("bad", on_bad), ("damaged", on_damaged)) if value == "fail"}
    started = time.monotonic()
    keep_freed_memory()
    files = _source(source, listing, key=key, image=image)  # before anything is begun anew
    with (
        closing(files),
        # Only where nothing is checked would it be waiting for the disk that takes the time.
        create_store(
            destination, overwrite=overwrite, resume=resume, resumable=True, durable=check != "none"
        ) as writer,
    ):
        with Spool(files, writer.scratch, lambda found: progress(Progress(found, None, 0))) as spool:
            files_found = f"{len(spool):,} files, SHA-256 {spool.digest}"
            writer.agree({**preparation.settings(), "shuffle": shuffle, "list of files": files_found})
            writer.commit()  # killed from here on, it can be resumed, which says so if anything is not the same
            resumed_at = writer.position
            order = np.arange(len(spool)) if shuffle is None else permutation(len(spool), shuffle)
            bytes_read, first_rejected = 0, ""
            progress(Progress(len(spool), resumed_at, 0))
            for batch in _prepared(preparation, files, spool, order[resumed_at:], workers or processors()):
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
                "listing": None if listing is None else readable(os.path.abspath(listing)),  # noqa: PTH100
                "shuffle": shuffle,
                **preparation.settings(),
            },
        )
    outcome = Counter(manifest.outcome)
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
        resumed_at=resumed_at,
        bytes_read=bytes_read,
        image_bytes=manifest.image_bytes,
        seconds=time.monotonic() - started,
        warnings=(*files.warnings, *problem),
        skipped=dict(sorted(files.skipped.items(), key=lambda item: (-item[1], item[0]))),
        hidden=files.hidden,
        report_file=report_file,
    )


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
                "a store is copied by dbloader mirror",
            )
        from dbloader.sources.collection import read_collection  # pymongo takes longer to import than all the rest

        return read_collection(source, listing, key=key or "img_name", image=image or "bson_img")
    if key is not None or image is not None:
        raise OptionError("key and image name fields of a collection: they need a mongodb:// place to read from")
    return scan(source) if listing is None else read_listing(listing, source)


class _Done(NamedTuple):
    """An item of the source and what became of it."""

    item: Entry | Problem
    prepared: Prepared


def _prepared(
    preparation: Preparation,
    files: Source,
    spool: Spool,
    order: np.ndarray[Any, Any],
    workers: int,
) -> Iterator[list[_Done]]:
    """Yields what became of the items at the positions in ``order``, in that order, some at a time."""
    budget = Budget(_HELD_BYTES)

    def run(task: int) -> list[_Done]:
        items = [spool[position] for position in order[task * _TASK_FILES : (task + 1) * _TASK_FILES].tolist()]
        entries = [item for item in items if isinstance(item, Entry)]
        done, contents = [], _contents(files, entries)
        for item in items:
            if budget.closed:
                break  # nobody will write it
            if isinstance(item, Problem):
                prepared = Prepared(outcome="rejected", reason=item.reason, bad=True)
            elif contents is None:
                prepared = preparation.prepare(item, lambda nbytes: budget.take(task, nbytes))
            elif (data := next(contents)) is None:
                prepared = Prepared(outcome="rejected", reason="is not in the collection", bad=True)
            else:
                prepared = preparation.prepare(item, lambda nbytes: budget.take(task, nbytes), data)
            done.append(_Done(item, prepared))
        return done

    executor = ThreadPoolExecutor(workers, thread_name_prefix="dbloader-convert")
    running: deque[tuple[int, Future[list[_Done]]]] = deque()
    try:
        with strict_pillow():
            for task in range(-(-len(order) // _TASK_FILES)):
                running.append((task, executor.submit(run, task)))
                if len(running) > max(_TASKS_AHEAD, 2 * workers):
                    yield from _oldest(running, budget)
            while running:
                yield from _oldest(running, budget)
    finally:
        budget.close()
        executor.shutdown(cancel_futures=True)


def _contents(files: Source, entries: list[Entry]) -> Iterator[bytes | None] | None:
    """Yields the bytes of files that the source reads itself, some at a time."""
    if not files.reads:
        return None
    blocks = (entries[start : start + _READ_FILES] for start in range(0, len(entries), _READ_FILES))
    return chain.from_iterable(map(files.read, blocks))


def _oldest(running: deque[tuple[int, Future[list[_Done]]]], budget: Budget) -> Iterator[list[_Done]]:
    task, future = running.popleft()
    yield future.result()
    budget.give_back(task)


def _write(writer: Writer, batch: list[_Done], fail_on: set[str]) -> None:
    """Writes what became of some files."""
    outcome: Counter[str] = Counter()
    events, records = [], []
    for item, prepared in batch:
        if prepared.record is not None:
            records.append(prepared.record)
        if prepared.outcome:
            outcome[prepared.outcome] += 1
            events.append({"name": item.name, "event": prepared.outcome, "reason": prepared.reason})
        outcome["resized"] += prepared.resized
        if prepared.outcome == "rejected" and ("bad" if prepared.bad else "damaged") in fail_on:
            option = "on-bad" if prepared.bad else "on-damaged"
            # What is no file is a part of the list that a resumed conversion compares.
            mend = "mend that and begin anew" if isinstance(item, Problem) else "mend the file and resume (--resume)"
            raise ConversionError(f"{item.name}: {prepared.reason}; {mend}, or resume with --{option} reject")
    writer.write(records, events=events, outcome=outcome, position=writer.position + len(batch))


def _first_rejected(batch: list[_Done]) -> str:
    return next((f"{item.name}: {done.reason}" for item, done in batch if done.outcome == "rejected"), "")
