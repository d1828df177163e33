"""Plan a conversion in parts: write the list of files and all options to ``DESTINATION.partial``.

With ``append``, the plan also unites the classes of the store and of the new images. The old shards do not change. New
shards, a new index file and a new manifest are added to the store.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from array import array
from collections import Counter
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader._places import is_mongo, is_remote
from dbloader.conversion.file_list import FileList
from dbloader.conversion.report import left_out
from dbloader.errors import OptionError, SourceError, StoreExistsError, StoreNotFoundError
from dbloader.ext.parts.plan import (
    LIST_FOLDER,
    PLAN_FILE,
    RECEIPT_FOLDER,
    Plan,
    PlanFolder,
    library_versions,
    list_name,
    open_places,
    partial_folder,
    remove_plan,
    slice_of,
    target_of,
)
from dbloader.ext.publishing.objects import open_target, read_table
from dbloader.ext.publishing.publish_shards import check_target
from dbloader.ext.sources.boxes import LABELS
from dbloader.ext.sources.class_folders import name_warnings
from dbloader.ext.sources.classes import class_numbers, describe_labels
from dbloader.ext.sources.open import open_with
from dbloader.ext.sources.options import Reading
from dbloader.records.document import seal
from dbloader.records.field_columns import column_value
from dbloader.sources.base import Listing
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.files import durable, write_durably
from dbloader.stores.lmdb.growing_file import sync_folder
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable, is_sharded
from dbloader.stores.open import check_destination

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.conversion.settings import Settings
    from dbloader.records.manifest import Manifest
    from dbloader.sources.base import Source

_MOST_PARTS = 1_000_000
# Kinds of values. A query cannot compare values of two kinds. bool is first, because isinstance(True, int) is true.
_KINDS = ((bool, ("bool",), "booleans"), ((int, float), ("int", "float"), "numbers"), (str, ("text",), "texts"))
_ADDS = "append (--append) adds to a folder of shards"
_MAKE = "shards=8 (--shards 8) without append makes one"
_JOIN = "convert the new images into a store of their own, and join the two with dbloader copy"


def plan_parts(
    settings: Settings,
    destination: str | os.PathLike[str],
    shards: int,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Plan:
    """Write the list of a source's files, and all options, to ``DESTINATION.partial``.

    Then `convert_part` makes the parts, on any machines, and `publish` makes a store of them. Planning the same
    conversion again keeps finished parts. If there are fewer files than ``shards``, each file is a part.
    ``append`` adds the records to the sharded store at the destination. ``overwrite`` replaces another plan, with its
    parts. ``progress`` is called with the number of files found so far.
    """
    base = _read_base(destination) if append else None
    if is_remote(destination):
        return _plan_in_bucket(settings, os.fspath(destination), shards, base, progress, overwrite=overwrite)
    if base is None:
        check_target(target_of(destination), overwrite=True)  # `publish` checks ``overwrite``
    folder = partial_folder(destination)
    aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    try:
        plan = _write_plan(aside, settings, os.fspath(destination), shards, base, progress)
        for changed in (aside / LIST_FOLDER, aside):  # so a power loss cannot leave a folder without its plan
            sync_folder(changed)
        if folder.exists():
            if not (folder / PLAN_FILE).is_file():
                raise StoreExistsError(f"{folder} exists and has no plan, so it is not replaced: remove it")
            if not overwrite:
                return _checked_same(Plan.read(PlanFolder(folder)), plan.id)
            remove_plan(folder)
        try:
            aside.rename(folder)
        except OSError as error:
            raise StoreExistsError(f"{folder} was made by another process meanwhile") from error
        return replace(plan, where=str(folder))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _plan_in_bucket(
    settings: Settings,
    place: str,
    shards: int,
    base: ShardTable | None,
    progress: Callable[[int], object],
    *,
    overwrite: bool,
) -> Plan:
    _, bucket = open_places(place)
    there = bucket.head(PLAN_FILE)
    with tempfile.TemporaryDirectory(prefix="dbloader-") as local, refusals(local):
        aside = Path(local) / "plan"
        plan = replace(_write_plan(aside, settings, place, shards, base, progress), where=bucket.place)
        if there is not None and not overwrite:
            return _checked_same(Plan.read(bucket), plan.id)
        bucket.put_file(list_name(plan.token), aside / list_name(plan.token))
        bucket.put_if(PLAN_FILE, (aside / PLAN_FILE).read_bytes(), there)
    if there is not None:
        files = [*bucket.items(LIST_FOLDER), *bucket.items(RECEIPT_FOLDER)]
        bucket.delete([item.key for item in files if plan.token not in item.key])
    return plan


def _checked_same(there: Plan, plan_id: str) -> Plan:
    """Return the existing plan. Raise StoreExistsError if it does not have this id."""
    if there.id != plan_id:
        raise StoreExistsError(
            f"{there.where} has the plan of another conversion: publish it (dbloader publish), or replace it "
            "(dbloader plan --overwrite)"
        )
    return there


def _write_plan(
    aside: Path,
    settings: Settings,
    destination: str,
    shards: int,
    base: ShardTable | None,
    progress: Callable[[int], object],
) -> Plan:
    """Write all files of a plan into a new folder ``aside``. ``base`` is the store to which the records are added."""
    settings, parts = _with_absolute_paths(settings), whole_number("shards", shards, 1, _MOST_PARTS)
    own = base is not None and bool(base.manifest.classes)
    with closing(open_with(settings, beside=not own)) as found, refusals(destination):
        check_destination(destination, found.stores)
        if found.compressed:
            raise SourceError(
                f"{found.compressed}: is compressed, and each part would decompress all of it: decompress it first "
                "(gunzip), or convert without shards (--shards)"
            )
        classes = [*found.stored_classes]
        if settings.new_only:
            if base is None or is_remote(destination):
                raise OptionError("new_only (--new-only) needs append (--append) to shards on a disk, not in a bucket")
            before = base.manifest.source
            if other := [name for name, value in asdict(settings.images).items() if before.get(name, value) != value]:
                raise OptionError(
                    f"{destination} was made with another {' and '.join(other)}, so new_only (--new-only) would find "
                    "no unchanged file: use the same value, or leave new_only out"
                )
        if base is not None:
            classes, labels = _unite_classes(base.manifest, found, destination)
            if found.label_table is not None and labels:
                labels = [labels[label] for label in found.label_table]
            settings = replace(settings, labels=found.label_table if labels is None else labels)
            if base.manifest.classes:
                describe_labels(found, settings.labels)
        elif settings.classes is None:
            settings = replace(settings, labels=found.label_table)
        for new in (aside, aside / SHARD_FOLDER, aside / RECEIPT_FOLDER, aside / LIST_FOLDER):
            new.mkdir()
        token, ends = secrets.token_hex(4), array("q")
        with tempfile.TemporaryFile(dir=aside) as data, durable(aside / list_name(token)) as ordered:
            files = FileList.of_source(found, data, progress)
            if base is not None:
                _check_agreement(base.manifest, found, files, destination)
            if parts > len(files) > 0:
                fewer = f"shards (--shards) is {parts:,}, but there will be only {len(files):,}, one for each file"
                found.warnings = (*found.warnings, fewer)
            parts, order = min(parts, max(1, len(files))), files.order(settings.shuffle_seed)
            for part in range(parts):
                ordered.writelines(files.sealed(order[at]) for at in slice_of(part, parts, len(files)))
                ends.append(ordered.tell())
        options = asdict(settings)
        decisive = {
            "parts": parts,
            "described": settings.describe(found, files.tally),
            "classes": classes,
            "grows": "" if base is None else base.index_file,
            "versions": library_versions(settings.images),
        }
        # The id depends on the full path in ``described``, not on these options: several paths may lead to one source.
        known: dict[str, Any] = {**decisive, "options": {**options, "source": None, "listing": None}}
        for name in ("new_only", "classes", *(field.name for field in fields(Reading))):
            if not options[name]:  # an unused option is left out, so plans of versions without it have the same id
                del known["options"][name]
        plan_id = hashlib.sha256(files.digest.encode() + bson.encode(known)).hexdigest()
        facts = {"options": options, "files": len(files), "ends": np.array(ends, "<i8").tobytes()}
        sealed = seal({**decisive, **facts, "left_out": left_out(found, files.tally), "id": plan_id, "token": token})
        write_durably(aside / PLAN_FILE, sealed)
        if is_mongo(settings.source):  # the place may contain a password
            (aside / PLAN_FILE).chmod((aside / PLAN_FILE).stat().st_mode & 0o770)
        return Plan.decode(sealed, str(aside))


def _with_absolute_paths(settings: Settings) -> Settings:
    """Return the settings with absolute paths, because other processes may have another working directory."""
    listing: Any = settings.listing
    if isinstance(listing, Listing):
        listing = replace(listing, path=_absolute(listing.path))
    elif listing is not None:
        listing = _absolute(listing)
    return replace(settings.decided(), source=_absolute(settings.source), listing=listing)


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text or "://" in text:  # opening the source raises an error for ""
        return text
    return os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118 - any str


# ---- Append


def _read_base(destination: str | os.PathLike[str]) -> ShardTable:
    """Return the shard table of a store to append to; OptionError or StoreNotFoundError for other places."""
    if is_mongo(destination):
        raise OptionError(f"{_ADDS}, not to a store in MongoDB: {_JOIN}")
    if is_remote(destination):
        target = open_target(os.fspath(destination))
        if target.head(MANIFEST_FILE) is None:
            raise StoreNotFoundError(f"{_ADDS}, and no store is at {target.place}: {_MAKE}")
        return read_table(target)
    path, name = target_of(destination), os.fspath(destination)
    if not os.path.lexists(path):
        raise StoreNotFoundError(f"{_ADDS}, and nothing is at {name}: {_MAKE}")
    if not is_sharded(path):
        message = f"{_ADDS}, and {name} is no such folder: {_JOIN}"
        if path.is_file():
            message += f"; or dbloader convert {name} NEW.lmdb --shards 8 makes a folder of shards of it"
        raise OptionError(message)
    return ShardTable.read(path)


def _unite_classes(base: Manifest, found: Source, place: str) -> tuple[list[str], list[int] | None]:
    """Return the classes of a store and a source together, and the label of each class of the source.

    The classes of the store come first. The labels are None if the labels of the source need not change.

    Raises:
        OptionError: The store has integer labels, but the source has class names; or two classes have the same name.
    """
    if found.given_classes == () and base.classes:
        raise OptionError(
            f"{place} has class names, so classes (--classes) 'numbers' would give its labels another meaning: leave "
            "it out, or convert the new images to a store of their own"
        )
    if not found.stored_classes:
        return [*base.classes], [] if base.classes else None  # with [], any label of a new image is an error
    if (base.labelled or LABELS in base.fields) and not base.classes:
        raise OptionError(
            f"the labels of {place} are integers, and {found.place} has class names: give the new images integer "
            "labels by a listing (--listing), or by classes='numbers' (--classes numbers) if the names are the integers"
        )
    for names, where in ((base.classes, place), (found.stored_classes, found.place)):
        if len({*names}) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise OptionError(f"{where}: two of its classes are called {twice!r}, so a name does not identify a class")
    known = class_numbers(found.stored_classes, base.classes)
    classes = [*base.classes, *(name for name in found.stored_classes if name not in known)]
    number = {name: label for label, name in enumerate(classes)} | known
    labels = [number[name] for name in found.stored_classes]
    old = {*name_warnings(base.classes), *name_warnings(found.classes)}
    kept = [text for text in found.warnings if text not in old]
    found.warnings = (
        *kept,
        *(text for text in name_warnings((*classes,)) if text not in {*name_warnings(base.classes)}),
    )
    return classes, None if labels == [*range(len(labels))] else labels


def _check_agreement(base: Manifest, found: Source, files: FileList, place: str) -> None:
    """Raise an error if new images have labels or file fields of another kind than the store.

    Raises:
        SourceError: The store's labels have class names, and a new image has an integer label.
        OptionError: A field has files or values of another kind in the new images; or their target is another field.
    """
    if (target := found.target or "label") != base.target:
        raise OptionError(
            f"{found.place}: the target of the new images is {target!r}, but the target of {place} is {base.target!r}: "
            "give the new images labels of the same kind (one class, several classes or numbers), or convert them to a "
            "store of their own"
        )
    if base.classes and not found.stored_classes:
        labelled = (files[position] for position in range(len(files)))
        if item := next((item for item in labelled if getattr(item, "label", None) is not None), None):
            raise SourceError(
                f"{found.place}: the label of {item.name} is an integer, and {place} has class names: give the new "
                "images the names of their classes, by a listing (--listing)"
            )
    _check_kinds(base, found, files, place)
    for name in {*found.file_fields} - {*base.file_fields}:
        if name in base.fields:
            raise OptionError(
                f"the field {name!r} has image files in the new images, and other values in {place}: give it another "
                "name in the new images"
            )


def _check_kinds(base: Manifest, found: Source, files: FileList, place: str) -> None:
    """Raise OptionError if new values of a field are of another kind (text, number, boolean) than the store's values.

    Queries cannot use a field with values of two kinds, so they would no longer find the earlier records by this field.
    """
    stored = {name: kind for name, kind in base.columns.items() if name not in found.file_fields}
    for item in files if stored else ():
        for name, value in getattr(item, "fields", {}).items():
            kinds = next((kinds for types, kinds, _ in _KINDS if isinstance(value, types)), ())
            if name in stored and kinds and stored[name] not in kinds and column_value(value) is not None:
                what = next(what for _, kinds, what in _KINDS if stored[name] in kinds)
                keep = f"keep the texts of a CSV (--text-column {name})" if what == "texts" else "mend the value"
                raise OptionError(
                    f"{found.place}: the field {name!r} of {item.name} is {short_repr(value, 50)}, and has {what} in "
                    f"{place}: {keep}, or give the field another name"
                )
