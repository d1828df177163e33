"""Plan a conversion in parts: list the files of a source, and freeze the list and all options."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import bson

from dbloader._options import check_path, checked_flag, whole_number
from dbloader.conversion.file_list import FileList, permutation
from dbloader.conversion.grow import Joined, check_agreement, join_classes, read_base
from dbloader.conversion.open_files import describe_source, open_files
from dbloader.conversion.plan import (
    ENDS_FILE,
    LIST_FILE,
    ORDER_FILE,
    PLAN_FILE,
    RECEIPT_FOLDER,
    Plan,
    file_digest,
    library_versions,
    pack_integers,
    partial_folder,
    remove_plan,
    slice_of,
    target_of,
)
from dbloader.conversion.settings import Settings
from dbloader.errors import DBLoaderError, StoreExistsError
from dbloader.records.document import seal
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import NOT_THE_FILE
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.publish_shards import check_target, write_durably
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from dbloader.conversion.transcode import ImageFormat

_MOST_PARTS = 1_000_000


def plan_conversion(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    *,
    listing: str | os.PathLike[str] | None = None,
    name_field: str | None = None,
    image_field: str | None = None,
    file_fields: Sequence[str] = (),
    images: ImageFormat | None = None,
    check: str = "decode",
    on_bad: str = "reject",
    on_damaged: str = "reject",
    shuffle: int | None = None,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Plan:
    """List the files of a source, and freeze the list and all options in ``DESTINATION.partial``.

    Then `convert_part` makes the parts, on any machines, and `publish` makes a store of them. The same plan may be
    made again: it keeps the parts that are done.

    Args:
        source: As in `convert`; a path that all machines see.
        destination: Place of the store that will be: a path that all machines see.
        shards: Number of parts, each of which makes one shard; at most one for each file.
        listing: As in `convert`, as the next eight.
        name_field: Of a collection in MongoDB, the field with a file's name.
        image_field: Of a collection in MongoDB, the field with a file's bytes.
        file_fields: Columns of the listing with the paths of further files.
        images: How images are stored.
        check: What to check of each image.
        on_bad: What to do with a file that cannot be read or is no image.
        on_damaged: What to do with a truncated image.
        shuffle: Seed of a random order of the records; None for the source's order.
        append: Add the records to the sharded store at the destination.
        overwrite: Replace another plan at the destination, and the parts that are made of it.
        progress: Called with the number of files found so far.

    Raises:
        StoreExistsError: Another plan is at the destination.
        StoreError: The plan cannot be written.
        SourceError: The source cannot be converted.
        OptionError: An option is out of its range, or two exclude each other.
        TypeError: An option has the wrong type.
    """
    settings = Settings.checked(images, check, on_bad, on_damaged, shuffle)
    options: dict[str, Any] = {"name_field": name_field, "image_field": image_field, "file_fields": file_fields}
    options |= {"listing": listing, "append": append, "overwrite": overwrite, "progress": progress}
    return make_plan(source, destination, shards, settings, **options)


def make_plan(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    settings: Settings,
    *,
    append: bool,
    overwrite: bool,
    progress: Callable[[int], object],
    **options: Any,
) -> Plan:
    """Make the plan of `plan_conversion`, with checked settings; the options are those of `open_source`."""
    parts = whole_number("shards", shards, 1, _MOST_PARTS)
    checked_flag("overwrite", overwrite)
    base = read_base(destination) if checked_flag("append", append) else None
    folder = partial_folder(destination)
    if base is None:
        check_target(target_of(destination), overwrite=True)  # publish replaces a store
    place: dict[str, Any] = {
        "source": _absolute("source", source),
        "listing": _absolute("listing", options.get("listing")),
    }
    place |= {name: options.get(name) for name in ("name_field", "image_field")}
    place["file_fields"] = [*checked_file_fields(options.get("file_fields", ()))]
    aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    converter, fail_on, shuffle = settings
    with closing(open_files(converter.images, **place)) as found:
        joined = Joined([*found.classes], None)
        if base is not None:
            joined = join_classes(base.manifest, found, os.fspath(destination))
        try:
            aside.mkdir(parents=False)
            (aside / SHARD_FOLDER).mkdir()
            (aside / RECEIPT_FOLDER).mkdir()
            data = (aside / LIST_FILE).open("x+b")  # the list closes it
            with FileList.of_source(found, data, progress) as files:
                os.fsync(data.fileno())
                write_durably(aside / ENDS_FILE, pack_integers(ENDS_FILE, files.ends()))
                if base is not None:
                    check_agreement(base.manifest, found, files, os.fspath(destination))
            parts = min(parts, max(1, len(files)))
            if shuffle is not None:
                order = permutation(len(files), shuffle)
                chunks = (order[slice_of(part, parts, len(files))] for part in range(parts))
                write_durably(aside / ORDER_FILE, pack_integers(ORDER_FILE, *chunks))
            frozen = (path for path in aside.iterdir() if path.is_file())
            values: dict[str, Any] = {
                "parts": parts,
                "files": len(files),
                "frozen": {path.name: file_digest(path) for path in frozen},
                "place": place,
                "settings": converter.settings(),
                "fail_on": sorted(fail_on),
                "described": describe_source(found, options.get("listing"), shuffle, converter),
                **joined._asdict(),
                "grows": "" if base is None else base.index_file,
                "warnings": [*found.warnings],
                "skipped": dict(found.skipped),
                "hidden": found.hidden,
                "versions": library_versions(),
            }
            values["id"] = _id_of(values, files.digest)
            write_durably(aside / PLAN_FILE, seal(values))
            return _put(aside, destination, values["id"], overwrite=overwrite)
        except OSError as error:
            if isinstance(error, DBLoaderError) or error.errno in NOT_THE_FILE:
                raise
            raise translate_refusal(error, f"{os.fspath(destination)} ({error.filename or folder})") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _put(aside: Path, destination: str | os.PathLike[str], plan_id: str, *, overwrite: bool) -> Plan:
    """Rename a plan to its place, unless the same plan is there already."""
    folder = partial_folder(destination)
    if folder.exists():
        if not (folder / PLAN_FILE).is_file():
            raise StoreExistsError(f"{folder} is there, and has no plan: it is not replaced; remove it")
        if not overwrite:
            there = Plan.open(destination)
            if there.id == plan_id:
                return there
            raise StoreExistsError(
                f"{folder} has the plan of another conversion: publish it (dbloader publish), replace it with "
                "overwrite (--overwrite), or remove it"
            )
        remove_plan(folder)
    try:
        aside.rename(folder)
    except OSError as error:
        if not folder.exists():
            raise
        raise StoreExistsError(f"{folder} was made by another process meanwhile") from error
    return Plan.open(destination)


def _id_of(values: Mapping[str, Any], digest: str) -> str:
    names = ("parts", "settings", "fail_on", "described", "classes", "labels", "grows", "versions")
    decisive = {name: values[name] for name in names}
    return hashlib.sha256(digest.encode() + bson.encode(decisive)).hexdigest()


def _absolute(name: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return a path that other working directories know too; a URI as it is."""
    check_path(name, path, none=True)
    if path is None or "://" in os.fspath(path):
        return None if path is None else os.fspath(path)
    return os.path.abspath(path)  # noqa: PTH100 - it may have ranges in braces
