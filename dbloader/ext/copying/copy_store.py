"""Copy stores record by record, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, overload

from dbloader._options import check_path, checked_flag, checked_names, whole_number
from dbloader._places import is_remote
from dbloader.errors import OptionError, StoreError
from dbloader.ext.copying.copy_records import RecordCopier, copy_intact
from dbloader.ext.copying.copy_remote import copy_remote
from dbloader.ext.copying.select_records import Choice, checked_fractions, listing_path
from dbloader.stores.open import check_destination, create_store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from dbloader.records.manifest import Manifest

    Place = str | os.PathLike[str]


class CopyOptions(TypedDict, total=False):
    """The options of ``copy_store``, with and without ``split``."""

    select: Place | None
    drop: Place | None
    classes: Sequence[str]
    where: str | None
    labels: Place | None
    marks: Place | Sequence[Place]
    rename_classes: Mapping[str, str] | None
    seed: int
    overwrite: bool
    resume: bool
    skip_damaged: Callable[[str], object] | None
    progress: Callable[[int, int], object]


@overload
def copy_store(
    source: Place | Sequence[Place], destination: Place, *, split: None = None, **options: Unpack[CopyOptions]
) -> Manifest: ...
@overload
def copy_store(
    source: Place | Sequence[Place],
    destination: Sequence[Place],
    *,
    split: Sequence[float],
    **options: Unpack[CopyOptions],
) -> list[Manifest]: ...
def copy_store(
    source: Place | Sequence[Place],
    destination: Place | Sequence[Place],
    *,
    select: Place | None = None,
    drop: Place | None = None,
    classes: Sequence[str] = (),
    where: str | None = None,
    labels: Place | None = None,
    marks: Place | Sequence[Place] = (),
    rename_classes: Mapping[str, str] | None = None,
    split: Sequence[float] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    resume: bool = False,
    skip_damaged: Callable[[str], object] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Manifest | list[Manifest]:
    """Copy a store, filter it, merge several stores, or split a store.

    The bytes of images do not change, and images are not decoded. Every record is checked before it is written. A copy
    of one source without options has the same records, report and manifest. Records keep the order of the sources.

    The copy writes all destinations, and then publishes them. During the writing, no destination changes, even if a
    record is damaged or the copy is interrupted. ``resume`` continues after the last stored record.

    Args:
        source: Place of the store, or several places. Classes with the same name become one class, for images and for
            boxes (the field ``box_labels``). All other fields are copied unchanged, including masks with class numbers.
            A single whole store may be copied to or from object storage (``s3://``, ``gs://``, ``az://``).
        destination: Place of the copy; with ``split``, one place for each fraction.
        select: Listing of the records to copy. A ``.txt`` has a name on each line. A ``.jsonl``, ``.json``, ``.csv`` or
            ``.tsv`` has a column ``name``, ``path`` or ``index`` (the position in the first source). A missing record
            is an error.
        drop: Listing of the records to leave out. If listed records are missing, a warning counts them.
        classes: Copy only the records of these classes. In the copy, the labels of the classes start from 0.
        where: Copy only the records that this query finds, such as ``"width<64 score>0.5"`` (docs/queries.md).
        labels: Listing with a column ``label``, ``class`` or ``target``: integers or class names. Records that are not
            listed keep their labels. If all records are listed, the copy has only the classes of the listing.
        marks: One or more files of marks from the viewer (docs/viewer.md). The copy leaves out records marked ``drop``,
            and sets marked labels. Unknown records are an error, and so are two files that disagree about a record.
        rename_classes: New names of classes. Two classes with the same new name become one class.
        split: Fractions with the sum 1. The records of each label are divided at random by these fractions.
        seed: Seed of ``split``.
        overwrite: Replace the store at a destination when the copy is finished.
        resume: Continue an interrupted copy, or begin a new copy. The sources, and the options that affect the records,
            must be as in the interrupted copy. A copy to or from object storage always continues.
        skip_damaged: Leave out the damaged records of a single source, and call this function, such as ``print``, with
            the reason for each. The report of the copy contains the reasons too. Images are not decoded. To find
            damaged images in a store made with ``check="none"``, use this store as the source of ``convert``.
        progress: Called with the number of records copied, and the total.

    Returns:
        The manifest of the copy; with ``split``, the manifest of each destination.

    Raises:
        TypeError: A place or a listing is not a path, ``overwrite`` or ``resume`` is not a bool, or ``seed`` is not an
            int.
        OptionError: An option is wrong; a destination is a source or a part of a source; no record matches; or the
            labels of two sources cannot be joined.
        SourceError: A listing cannot be read, or lists a missing record; or two files of marks disagree.
        StoreError: A source cannot be read; or a destination cannot be written, or already has a store.
        DamagedRecordError: A record of a source is damaged.
        ConversionError: ``skip_damaged`` is given, but no record is intact.
        DamagedStoreError: A record does not match the columns or the digest of its source.
    """
    sources, places, decided = _each("source", source), _each("destination", destination), _each("marks", marks)
    choice = Choice(
        select=listing_path("select", select),
        drop=listing_path("drop", drop),
        labels=listing_path("labels", labels),
        marks=tuple(map(_marks_path, decided)),
        split=None if split is None else checked_fractions(split),
        classes=checked_names("classes", classes, "('cat', 'dog')"),
        where=where,
        rename_classes=dict(rename_classes or {}),
        seed=whole_number("seed", seed),
    )
    if len(places) != (1 if choice.split is None else len(choice.split)):
        parts = f"one destination for each of {len(choice.split)} parts" if choice.split else ""
        raise OptionError(f"split (--split): give {parts or 'one destination without split'}, got {len(places)}")
    if len(set(map(str, places))) < len(places):
        raise OptionError("split (--split): each part needs its own destination, but two destinations are the same")
    remote = any(map(is_remote, (*sources, *places)))
    given = [*choice.given(), *(["several sources"] if len(sources) > 1 else [])]
    if skip_damaged is not None:
        wrong = [*given, *(["resume"] if resume else []), *(["object storage"] if remote else [])]
        if wrong:
            raise OptionError(
                f"skip_damaged (--skip-damaged) cannot be combined with {', '.join(wrong)}: copy each store with "
                "skip_damaged alone first, then copy the copies"
            )
        with open_store(sources[0]) as store:
            check_destination(places[0], [store])
            with create_store(places[0], overwrite=overwrite) as writer:
                return copy_intact(store, writer, skip_damaged, progress)
    if remote:
        checked_flag("resume", resume)  # no effect: a copy to or from object storage always continues
        if given:
            raise OptionError(
                f"a copy to or from object storage is always a whole store, without {', '.join(given)}: copy the store "
                "to a path on this machine first, and use these options on that copy"
            )
        overwrite = checked_flag("overwrite", overwrite)
        return copy_remote(sources[0], places[0], overwrite=overwrite, progress=progress)
    with ExitStack() as stack:
        stores = [stack.enter_context(open_store(place)) for place in sources]
        for place in places:
            check_destination(place, stores)
        copy = RecordCopier(stores, choice)
        if choice.split is None:
            return _write(copy, places, progress, {}, overwrite=overwrite, resume=resume)[0]
        done = _find_published(copy, places) if resume else {}
        return _write(copy, places, progress, done, overwrite=overwrite, resume=resume)


def _write(
    copy: RecordCopier,
    places: Sequence[Place],
    progress: Callable[[int, int], object],
    done: dict[int, Manifest],
    *,
    overwrite: bool,
    resume: bool,
) -> list[Manifest]:
    """Write all destinations that are not done, then publish them. Return the manifest of each."""
    with ExitStack() as stack:
        writers = {
            number: stack.enter_context(create_store(place, overwrite=overwrite, resume=resume, resumable=True))
            for number, place in enumerate(places)
            if number not in done
        }
        for number, writer in writers.items():
            writer.check_settings(copy.settings(number))
        for number, writer in writers.items():
            copy.write(number, writer, progress)
        made = dict(done)
        for number, writer in writers.items():
            source = copy.source(number)
            made[number] = writer.finish(classes=copy.selection.classes, source=source, created=copy.created)
    return [made[number] for number in range(len(places))]


def _find_published(copy: RecordCopier, places: Sequence[Place]) -> dict[int, Manifest]:
    """Return the destinations that an interrupted copy has published. If all are published, return {} to copy again."""
    found: dict[int, Manifest] = {}
    for number, place in enumerate(places):
        source = copy.source(number)
        with suppress(StoreError), open_store(place) as store:
            if store.manifest.source == source:
                found[number] = store.manifest
    return {} if len(found) == len(places) else found


def _marks_path(file: Place) -> Path:
    check_path("marks", file)
    return Path(file)


def _each(name: str, places: Place | Sequence[Place]) -> list[Place]:
    if isinstance(places, (str, bytes, os.PathLike)):
        return [places]
    if not isinstance(places, Iterable):
        raise TypeError(f"{name} must be a place, or a sequence of places, got {type(places).__name__}")
    return [*places]
