"""Plan a conversion in parts: write the list of files and all options into ``DESTINATION.partial``."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader._options import checked_flag, whole_number
from dbloader.conversion.file_list import FileList
from dbloader.conversion.parts.append import check_agreement, join_classes, read_base
from dbloader.conversion.parts.plan import (
    LIST_FILE,
    PLAN_FILE,
    RECEIPT_FOLDER,
    SPANS_FILE,
    Plan,
    library_versions,
    pack_spans,
    partial_folder,
    remove_plan,
    target_of,
)
from dbloader.conversion.report import left_out
from dbloader.conversion.settings import Settings
from dbloader.errors import SourceError, StoreExistsError
from dbloader.records.document import seal
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.publish_shards import check_target, write_durably
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import check_destination

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_MOST_PARTS = 1_000_000


def plan_conversion(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Plan:
    """Write the list of a source's files, and all options, into ``DESTINATION.partial``.

    Then `convert_part` makes the parts, on any machines, and `publish` makes a store of them. Planning the same
    conversion again keeps the parts that are made.

    Args:
        source: As in `convert`; a path that all machines see.
        destination: Place of the store that will be: a path that all machines see.
        shards: Number of parts. Each makes one shard. There are at most as many as files.
        append: Add the records to the sharded store at the destination.
        overwrite: Replace another plan at the destination, with its parts.
        progress: Called with the number of files found so far.
        **options: The options of `convert` that decide the records, from ``listing`` to ``shuffle_seed``.

    Raises:
        StoreExistsError: Another plan is at the destination.
        StoreError: The plan cannot be written.
        SourceError: The source cannot be converted.
        OptionError: An option is out of its range, or two exclude each other; or the destination is the source.
        TypeError: An option has the wrong type.
    """
    return make_plan(
        Settings.checked(source, **options), destination, shards, append=append, overwrite=overwrite, progress=progress
    )


def make_plan(
    settings: Settings,
    destination: str | os.PathLike[str],
    shards: int,
    *,
    append: bool,
    overwrite: bool,
    progress: Callable[[int], object],
) -> Plan:
    """Make a plan with settings that are checked already; see `plan_conversion`."""
    settings = settings.absolute()
    parts = whole_number("shards", shards, 1, _MOST_PARTS)
    checked_flag("overwrite", overwrite)
    base = read_base(destination) if checked_flag("append", append) else None
    if base is None:
        check_target(target_of(destination), overwrite=True)  # publish replaces a store
    folder = partial_folder(destination)
    aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    with closing(settings.open()) as found, refusals(os.fspath(destination)):
        check_destination(destination, found.stores)
        if found.compressed:
            raise SourceError(
                f"{found.compressed}: is compressed, and each part would decompress all of it: decompress it first "
                "(gunzip), or convert without shards (--shards)"
            )
        classes, labels = [*found.classes], None
        if base is not None:
            classes, labels = join_classes(base.manifest, found, os.fspath(destination))
        try:
            for new in (aside, aside / SHARD_FOLDER, aside / RECEIPT_FOLDER):
                new.mkdir()
            with (aside / LIST_FILE).open("x+b") as data:
                files = FileList.of_source(found, data, progress)
                os.fsync(data.fileno())
                if base is not None:
                    check_agreement(base.manifest, found, files, os.fspath(destination))
                parts = min(parts, max(1, len(files)))
                spans = files.spans()[np.asarray(settings.order(len(files)))]
                write_durably(aside / SPANS_FILE, pack_spans(spans, parts))
            values: dict[str, Any] = {
                "parts": parts,
                "files": len(files),
                "place": settings.place,
                "fail_on": [*settings.fail_on],
                "described": settings.describe(found),
                "classes": classes,
                "labels": labels,
                "grows": "" if base is None else base.index_file,
                "left_out": left_out(found, files.tally),
                "versions": library_versions(settings.converter.images),
            }
            values |= {"id": _id_of(values, files.digest), "token": secrets.token_hex(4)}
            write_durably(aside / PLAN_FILE, seal(values))
            if is_mongo(settings.place["source"]):  # the place may contain a password
                (aside / PLAN_FILE).chmod((aside / PLAN_FILE).stat().st_mode & 0o770)
            return _put(aside, destination, values["id"], overwrite=overwrite)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _put(aside: Path, destination: str | os.PathLike[str], plan_id: str, *, overwrite: bool) -> Plan:
    """Move a new plan to its place, unless the same plan is there already."""
    folder = partial_folder(destination)
    if folder.exists():
        if not (folder / PLAN_FILE).is_file():
            raise StoreExistsError(f"{folder} exists and has no plan, so it is not replaced: remove it")
        if not overwrite:
            there = Plan.open(destination)
            if there.id == plan_id:
                return there
            raise StoreExistsError(
                f"{folder} has the plan of another conversion: publish it (dbloader publish), replace it (dbloader "
                "plan with --overwrite), or remove it when no process makes its parts any more"
            )
        remove_plan(folder)
    try:
        aside.rename(folder)
    except OSError as error:
        raise StoreExistsError(f"{folder} was made by another process meanwhile") from error
    return Plan.open(destination)


def _id_of(values: Mapping[str, Any], digest: str) -> str:
    names = ("parts", "fail_on", "described", "classes", "labels", "grows", "versions")
    decisive = {name: values[name] for name in names}
    decisive["fields"] = [values["place"][name] for name in ("name_field", "image_field")]
    return hashlib.sha256(digest.encode() + bson.encode(decisive)).hexdigest()
