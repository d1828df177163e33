"""The plan of a conversion in parts: what is converted and how, frozen in a folder that all machines see.

Part k is a pure function of the plan and k, so any machine may make it, any number of times. ``DESTINATION.partial/``
holds the plan, the shards that parts have made, and a receipt for each of them, until `publish` makes a store of it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader._options import checked_flag, whole_number
from dbloader._version import __version__
from dbloader.conversion.file_list import FileList, permutation
from dbloader.conversion.file_to_record import FileConverter
from dbloader.conversion.open_files import describe_source, open_files
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, DamagedStoreError, PlaceError, StoreExistsError, StoreNotFoundError
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.keys import PARTIAL, checked_path
from dbloader.stores.lmdb.publish_shards import check_target, write_durably
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dbloader.sources.base import Source

RECEIPT_FOLDER = "parts"
PLAN_FILES = _PLAN, _LIST, _ENDS, _ORDER = "plan.bson", "files", "files.ends", "files.order"
# Their versions decide pixels and bytes, so all parts must be made with the same.
_PACKAGES = ("Pillow", "simplejpeg", "pymongo")
_MOST_PARTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A conversion that is planned; made by ``plan_conversion``.

    Attributes:
        folder: ``DESTINATION.partial``.
        id: SHA-256 of everything that decides the records, hex.
        parts: Number of parts, each of which makes one shard.
        files: Number of files in the list.
        place: The arguments of `open_source`, by their names.
        settings: Those of the FileConverter.
        fail_on: The kinds of rejected files that end the conversion: "bad" and "damaged".
        described: The ``source`` of the manifest.
        classes: Name of each label from 0 on.
        warnings: Sentences about the source, for people.
        skipped: Files left out, by extension.
        hidden: Hidden files left out.
        versions: Of dbloader and the libraries that decide the records.
    """

    folder: Path
    id: str
    parts: int
    files: int
    place: dict[str, Any]
    settings: dict[str, Any]
    fail_on: list[str]
    described: dict[str, Any]
    classes: list[str]
    warnings: list[str]
    skipped: dict[str, int]
    hidden: int
    versions: dict[str, str]

    @classmethod
    def open(cls, destination: str | os.PathLike[str]) -> Plan:
        """Read the plan of a destination.

        Raises:
            StoreNotFoundError: There is none.
            DamagedStoreError: It is not what was written.
        """
        folder = partial_folder(destination)
        try:
            values = open_sealed((folder / _PLAN).read_bytes())
            return cls(folder=folder, **values)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"{destination} has no plan at {folder}: dbloader plan makes one, and dbloader publish removes it"
            ) from error
        except (ValueError, TypeError) as error:
            raise DamagedStoreError(f"{folder / _PLAN} is damaged: {error}; remove {folder} and plan again") from error

    def converter(self) -> FileConverter:
        """Return the converter of the files."""
        settings = dict(self.settings)
        kept = {name: settings.pop(name) for name in ("check", "keep_damaged")}
        return FileConverter(**kept, images=ImageFormat(**settings))

    def open_source(self) -> Source:
        """Open the source of the files, whose entries are not listed again."""
        return open_files(self.converter().images, **self.place)

    def open_files(self) -> FileList:
        """Open the list of all files."""
        ends = (self.folder / _ENDS).read_bytes()
        if len(ends) != 8 * (self.files + 1):
            raise self._damaged(_ENDS)
        return FileList.of_file((self.folder / _LIST).open("rb"), ends, "")

    def part(self, number: int) -> range | np.ndarray[Any, Any]:
        """Return which files of the list a part converts, in order."""
        begin, end = (self.files * at // self.parts for at in (number, number + 1))
        if self.described["shuffle"] is None:
            return range(begin, end)
        order = np.fromfile(self.folder / _ORDER, "<i8", end - begin, offset=8 * begin)
        if len(order) != end - begin:
            raise self._damaged(_ORDER)
        return order

    def _damaged(self, name: str) -> DamagedStoreError:
        return DamagedStoreError(f"{self.folder / name} is cut short; plan again with overwrite (--overwrite)")

    def check_versions(self) -> None:
        """Raise ConversionError unless this process has the versions of the libraries that the plan was made with."""
        for name, planned in self.versions.items():
            if (here := _versions()[name]) != planned:
                raise ConversionError(
                    f"this machine has {name} {here} and {self.folder} was planned with {planned}, so a part made here "
                    f"might not have the same bytes: install {name}=={planned}, or plan again"
                )


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
        overwrite: Replace another plan at the destination, and the parts that are made of it.
        progress: Called with the number of files found so far.

    Raises:
        StoreExistsError: Another plan is at the destination.
        SourceError: The source cannot be converted.
        OptionError: An option is out of its range, or two exclude each other.
        TypeError: An option has the wrong type.
    """
    settings = Settings.checked(images, check, on_bad, on_damaged, shuffle)
    options: dict[str, Any] = {"name_field": name_field, "image_field": image_field, "file_fields": file_fields}
    return make_plan(
        source, destination, shards, settings, listing=listing, overwrite=overwrite, progress=progress, **options
    )


def make_plan(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    settings: Settings,
    *,
    overwrite: bool,
    progress: Callable[[int], object],
    **options: Any,
) -> Plan:
    """Make the plan of `plan_conversion`, with checked settings; the options are those of `open_source`."""
    parts = whole_number("shards", shards, 1, _MOST_PARTS)
    checked_flag("overwrite", overwrite)
    folder = partial_folder(destination)
    check_target(folder.with_name(folder.name.removesuffix(PARTIAL)), overwrite=True)  # publish replaces a store
    place: dict[str, Any] = {"source": _absolute(source), "listing": _absolute(options.get("listing"))}
    place |= {name: options.get(name) for name in ("name_field", "image_field")}
    place["file_fields"] = [*options.get("file_fields", ())]
    aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    converter, fail_on, shuffle = settings
    with closing(open_files(converter.images, **place)) as found:
        try:
            aside.mkdir(parents=False)
            (aside / SHARD_FOLDER).mkdir()
            (aside / RECEIPT_FOLDER).mkdir()
            data = (aside / _LIST).open("x+b")  # the list closes it
            with FileList.of_source(found, data, progress) as files:
                os.fsync(data.fileno())
                write_durably(aside / _ENDS, files.packed_ends())
            if shuffle is not None:
                write_durably(aside / _ORDER, permutation(len(files), shuffle).astype("<i8").tobytes())
            values: dict[str, Any] = {
                "parts": min(parts, max(1, len(files))),
                "files": len(files),
                "place": place,
                "settings": converter.settings(),
                "fail_on": sorted(fail_on),
                "described": describe_source(found, options.get("listing"), shuffle, converter),
                "classes": [*found.classes],
                "warnings": [*found.warnings],
                "skipped": dict(found.skipped),
                "hidden": found.hidden,
                "versions": _versions(),
            }
            values["id"] = _id_of(values, files.digest)
            write_durably(aside / _PLAN, seal(values))
            return _put(aside, destination, values["id"], overwrite=overwrite)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _put(aside: Path, destination: str | os.PathLike[str], plan_id: str, *, overwrite: bool) -> Plan:
    """Rename a plan to its place, unless the same plan is there already."""
    folder = partial_folder(destination)
    if folder.exists():
        if not (folder / _PLAN).is_file():
            raise StoreExistsError(f"{folder} is there, and has no plan: it is not replaced; remove it")
        if not overwrite:
            there = Plan.open(destination)
            if there.id == plan_id:
                return there
            raise StoreExistsError(
                f"{folder} has the plan of another conversion: publish it, or replace it with overwrite (--overwrite)"
            )
        remove_plan(folder)
    try:
        aside.rename(folder)
    except OSError as error:
        if not folder.exists():
            raise
        raise StoreExistsError(f"{folder} was made by another process meanwhile") from error
    return Plan.open(destination)


def remove_plan(folder: Path) -> None:
    """Remove the folder of a plan, which is away at once."""
    away = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def partial_folder(destination: str | os.PathLike[str]) -> Path:
    """Return the folder of a conversion in parts."""
    if is_mongo(destination):
        raise PlaceError(
            "shards are files: the destination must be a path that all machines see, got a place in MongoDB; convert "
            "without shards (--shards) to write there"
        )
    return Path(os.path.realpath(checked_path(destination)) + PARTIAL)


def _versions() -> dict[str, str]:
    return {"dbloader": __version__, **{name: version(name) for name in _PACKAGES}}


def _id_of(values: Mapping[str, Any], digest: str) -> str:
    decisive = {name: values[name] for name in ("parts", "settings", "fail_on", "described", "classes", "versions")}
    return hashlib.sha256(digest.encode() + bson.encode(decisive)).hexdigest()


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    """Return a path that other working directories know too; a URI as it is."""
    if path is None or "://" in os.fspath(path):
        return None if path is None else os.fspath(path)
    return os.path.abspath(path)  # noqa: PTH100 - it may have ranges in braces
