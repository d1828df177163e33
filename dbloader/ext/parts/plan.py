"""Keep the plan of a conversion in parts: a list of files and all options. All machines see the plan.

Part k depends only on the plan and k, so any machine may make it, any number of times. ``DESTINATION.partial/``
contains the plan (``plan.bson``), the list of all files (``files/``), and a receipt for each part that is made
(``parts/``). On a disk, it also contains the shards of these parts (``shards/``). In a bucket, shards go directly to
``DESTINATION/shards/``, and their index files to ``DESTINATION.partial/parts/``. No program uses a shard without a
receipt.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._places import checked_path, is_mongo, is_remote
from dbloader._version import __version__
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, DamagedStoreError, PlaceError, StoreNotFoundError
from dbloader.ext.publishing.objects import open_target
from dbloader.ext.remote.bucket import Bucket, Item
from dbloader.images.pillow import LIMIT_VARIABLE, max_pixels
from dbloader.images.tiled.encode import JPEGTRAN, find_jpegtran
from dbloader.records.document import open_sealed
from dbloader.sources.base import Listing
from dbloader.stores.lmdb.files import copy_durably, write_durably
from dbloader.stores.lmdb.growing_file import sync_folder
from dbloader.stores.lmdb.keys import PARTIAL
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLAN_FILE = "plan.bson"
LIST_FOLDER = "files"  # contains the FileList, part by part
RECEIPT_FOLDER = "parts"
MAKING = ".making"
# Another version of one of these packages may make other pixels or bytes, so all parts need the same versions.
_PACKAGES = ("Pillow", "simplejpeg", "pymongo", "pillow-heif", "pillow-jxl-plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planned conversion.

    Attributes:
        where: Path or URL of ``DESTINATION.partial``.
        id: SHA-256 of everything that affects the records, hex.
        token: Random hex digits, new whenever a plan is written, even with the same id.
        parts: Number of parts, each of which makes one shard.
        files: Number of files in the list.
        ends: For each part, the offset in bytes at which its files end in the list: int64 values, packed as bytes.
        options: The fields of `Settings`, by their names.
        described: Value of ``source`` in the manifest.
        classes: Name of each label from 0 on.
        left_out: Warnings and counts of skipped files for the report; ``conversion.report.left_out`` makes them.
        grows: Name of the index file of the store that ``append`` extends; "" for a new store.
        versions: {name: version} of dbloader and of the libraries that affect the records.
    """

    where: str
    id: str
    token: str
    parts: int
    files: int
    ends: bytes
    options: dict[str, Any]
    described: dict[str, Any]
    classes: list[str]
    left_out: dict[str, Any]
    grows: str
    versions: dict[str, str]

    @classmethod
    def read(cls, files: PlanFolder | Bucket) -> Plan:
        """Read the plan of a destination.

        Raises:
            StoreNotFoundError: The destination has no plan.
            DamagedStoreError: The plan is damaged.
        """
        try:
            data = files.get(PLAN_FILE)
        except StoreNotFoundError:
            raise StoreNotFoundError(
                f"{files.place} has no plan: dbloader plan makes one, and dbloader publish removes it"
            ) from None
        return cls.decode(data, files.place)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Plan:
        """Return the plan that a plan file contains; DamagedStoreError if the file is damaged."""
        try:
            return cls(where=where, **open_sealed(data))
        except (ValueError, TypeError) as error:
            what = f"{where}/{PLAN_FILE} is damaged, or of another version of dbloader: {error}"
            raise DamagedStoreError(f"{what}; remove {where} and plan again") from error

    @property
    def folder(self) -> Path:
        """The folder of a plan on a disk."""
        return Path(self.where)

    @property
    def settings(self) -> Settings:
        """The settings of the conversion; OptionError if ``jpegtran`` is needed and not installed here."""
        listing = self.options["listing"]
        listing = Listing(**listing) if isinstance(listing, dict) else listing
        return Settings(**{**self.options, "images": ImageFormat(**self.options["images"]), "listing": listing})

    def part_length(self, number: int) -> int:
        """Return the number of files that a part converts."""
        return len(slice_of(number, self.parts, self.files))

    def part_span(self, number: int) -> tuple[int, int]:
        """Return the (begin, end) of a part's files in the list of files, in bytes."""
        begin, end = np.frombuffer(b"\0" * 8 + self.ends, "<i8")[number : number + 2].tolist()
        return begin, end

    def receipt_name(self, number: int) -> str:
        """Return the path of a part's receipt in ``DESTINATION.partial``."""
        # The name contains the plan's token, so a late receipt of a replaced plan is not used.
        return f"{RECEIPT_FOLDER}/{number:05}-{self.token}.bson"

    def attempt_name(self, number: int) -> str:
        """Return the path in ``DESTINATION.partial`` of the file that exists while this machine makes the part."""
        return f"{RECEIPT_FOLDER}/{number:05}-{self.token}.{socket.gethostname()}{MAKING}"

    def check_versions(self) -> None:
        """Raise ConversionError if this process has other library versions than the plan."""
        found = library_versions(self.settings.images)
        for name, planned in self.versions.items():
            if (here := found[name]) != planned:
                remedy = f"pip install {name}=={planned}" if planned != "none" else f"pip uninstall {name}"
                if name == LIMIT_VARIABLE:
                    remedy = f"export {name}={planned}"
                elif name == JPEGTRAN:
                    remedy = f"put {planned} first on the PATH"
                raise ConversionError(
                    f"this machine has {name} {here} and {self.where} was planned with {planned}, so a part made here "
                    f"might have other records: {remedy}, or plan again"
                )


class PlanFolder:
    """The folder of a plan on a disk. It has the methods of `Bucket` that plans need.

    No method makes a folder, because the plan may have been published or removed meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)
        for name in (RECEIPT_FOLDER, SHARD_FOLDER):
            with suppress(OSError), os.scandir(folder / name):
                pass  # NFS may claim that a new file does not exist, until its folder is opened again

    def head(self, key: str) -> Item | None:
        """Return the size and time of a file; None if the file does not exist."""
        try:
            found = (self.folder / key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Item(key, found.st_size, "", datetime.fromtimestamp(found.st_mtime, UTC))

    def items(self, below: str) -> list[Item]:
        """Return all files in a subfolder."""
        names = (path.name for path in (self.folder / below).glob("*"))
        return [item for name in names if (item := self.head(f"{below}/{name}"))]

    def get(self, key: str) -> bytes:
        """Return the bytes of a file."""
        try:
            return (self.folder / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(f"{self.folder / key} does not exist") from error

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file to the folder."""
        with self._still_there():
            copy_durably(path, self.folder / key)

    def put_if(self, key: str, data: bytes, replaces: Item | None) -> None:
        """Write a file, perhaps over another process's file: all receipts of a part are valid. Ignore ``replaces``."""
        del replaces
        with self._still_there():
            write_durably(self.folder / key, data)

    @contextmanager
    def _still_there(self) -> Iterator[None]:
        """Turn an OSError in the block into a ConversionError if the folder is gone."""
        try:
            yield
        except OSError as error:
            if self.folder.exists():
                raise
            raise ConversionError(
                f"{self.place} is gone: another process has published its parts, or removed the plan"
            ) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and ignore errors."""
        for key in keys:
            with suppress(OSError):
                (self.folder / key).unlink()


def open_places(destination: str | os.PathLike[str]) -> tuple[PlanFolder | Bucket, PlanFolder | Bucket]:
    """Return the folder or bucket for the shards of a destination, and the folder or bucket of its plan."""
    if is_remote(destination):
        target = open_target(os.fspath(destination))
        return target, Bucket(f"{target.place}{PARTIAL}")
    folder = PlanFolder(partial_folder(destination))
    return folder, folder


def list_name(token: str) -> str:
    """Return the path of a plan's list of files in ``DESTINATION.partial``."""
    return f"{LIST_FOLDER}/list-{token}"


def slice_of(part: int, parts: int, files: int) -> range:
    """Return the positions of a part's files among all files."""
    return range(files * part // parts, files * (part + 1) // parts)


def remove_plan(folder: Path) -> None:
    """Remove the folder of a plan in one step, and the remains of interrupted removals."""
    folder.rename(folder.with_name(f"{folder.name}.removed-{secrets.token_hex(4)}"))
    sync_folder(folder.parent)  # otherwise a power loss could leave a folder with only some of its files
    for away in folder.parent.glob(f"{glob.escape(folder.name)}.removed-*"):
        shutil.rmtree(away, ignore_errors=True)


def partial_folder(destination: str | os.PathLike[str]) -> Path:
    """Return the folder with the plan of a destination."""
    return Path(f"{target_of(destination)}{PARTIAL}")


def target_of(destination: str | os.PathLike[str]) -> Path:
    """Return the path of a sharded store, with symbolic links resolved; PlaceError for a place in MongoDB."""
    if is_mongo(destination):
        raise PlaceError(
            "shards are files: the destination must be a path that all machines see, got a place in MongoDB; leave out "
            "shards (--shards) to convert into MongoDB"
        )
    return Path(os.path.realpath(checked_path(destination)))


def library_versions(images: ImageFormat) -> dict[str, str]:
    """Return the versions of dbloader and libraries, and the limit of pixels, by name. All of these affect records."""
    versions = {"dbloader": __version__, **dict.fromkeys(_PACKAGES, "none"), LIMIT_VARIABLE: f"{max_pixels():.0f}"}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if images.tile and images.quality is None:
        done = subprocess.run([find_jpegtran(), "-version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        # The jpegtran of the IJG prints its help for -version, so the first line of the help is compared.
        versions[JPEGTRAN] = (done.stdout + done.stderr).decode(errors="replace").partition("\n")[0].strip()
    return versions
