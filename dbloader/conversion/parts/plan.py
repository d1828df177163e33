"""The plan of a conversion in parts: the list of files and all options, in a folder that all machines see.

Part k is a pure function of the plan and k, so any machine may make it, any number of times. The folder
``DESTINATION.partial/`` contains the plan, the shards of the parts that are made, and a receipt for each of them.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dbloader._version import __version__
from dbloader.conversion.file_list import FileList
from dbloader.conversion.settings import Settings
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, DamagedStoreError, PlaceError, StoreNotFoundError
from dbloader.images.pillow import LIMIT_VARIABLE, max_pixels
from dbloader.images.tiled.encode import JPEGTRAN, find_jpegtran
from dbloader.records.document import open_sealed
from dbloader.stores.lmdb.keys import PARTIAL, checked_path
from dbloader.stores.mongo.uri import is_mongo

PLAN_FILE = "plan.bson"
LIST_FOLDER = "files"  # contains the FileList, part by part
RECEIPT_FOLDER = "parts"
MAKING = ".making"
# Packages that decide pixels and bytes. All parts must be made with the same versions.
_PACKAGES = ("Pillow", "simplejpeg", "pymongo", "pillow-heif")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planned conversion; `make_plan` makes it.

    Attributes:
        where: Path or URL of ``DESTINATION.partial``.
        id: SHA-256 of everything that decides the records, hex.
        token: Random hex digits, new whenever a plan is written, even with the same id.
        parts: Number of parts, each of which makes one shard.
        files: Number of files in the list.
        ends: Offset in the list where the files of each part end, in bytes: int64 values, packed as bytes.
        options: The fields of `Settings`, by their names.
        described: Value of ``source`` in the manifest.
        classes: Name of each label from 0 on.
        left_out: The ``warnings``, ``skipped`` and ``hidden`` of the report, from ``report.left_out``.
        grows: File name of the index of the store that the records are added to; "" for a new store.
        versions: Versions of dbloader and of the libraries that decide the records, by name.
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
    def open(cls, destination: str | os.PathLike[str]) -> Plan:
        """Read the plan of a destination.

        Raises:
            StoreNotFoundError: The destination has no plan.
            DamagedStoreError: The plan is damaged.
        """
        folder = partial_folder(destination)
        try:
            return cls.decode((folder / PLAN_FILE).read_bytes(), str(folder))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_plan(destination, str(folder)) from error

    @classmethod
    def decode(cls, data: bytes, where: str) -> Plan:
        """Return the plan in the content of a plan file; DamagedStoreError if the content is damaged."""
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
        return Settings(**{**self.options, "images": ImageFormat(**self.options["images"])})

    def part_length(self, number: int) -> int:
        """Return the number of files that a part converts."""
        return len(slice_of(number, self.parts, self.files))

    def part_span(self, number: int) -> tuple[int, int]:
        """Return where the files of a part begin and end in the list, in bytes."""
        begin, end = np.frombuffer(b"\0" * 8 + self.ends, "<i8")[number : number + 2].tolist()
        return begin, end

    def receipt_name(self, number: int) -> str:
        """Return the path of a part's receipt in ``DESTINATION.partial``."""
        # An older plan has another token. So a late receipt of its parts has another name.
        return f"{RECEIPT_FOLDER}/{number:05}-{self.token}.bson"

    def attempt_name(self, number: int) -> str:
        """Return the path in ``DESTINATION.partial`` of an empty file that exists while this machine makes a part."""
        return f"{RECEIPT_FOLDER}/{number:05}-{self.token}.{socket.gethostname()}{MAKING}"

    def open_part(self, number: int) -> FileList:
        """Open the files that a part converts, on a disk; StoreNotFoundError if the list is missing."""
        path = self.folder / list_name(self.token)
        try:
            data = path.open("rb")
        except FileNotFoundError as error:
            raise StoreNotFoundError(f"{path} is missing; plan again with overwrite (--overwrite)") from error
        return FileList.of_span(data, *self.part_span(number))

    def check_versions(self) -> None:
        """Raise ConversionError if this process has other library versions than the plan."""
        found = library_versions(self.settings.images)
        for name, planned in self.versions.items():
            if (here := found[name]) != planned:
                install = f"pip install {name}=={planned}" if planned != "none" else f"pip uninstall {name}"
                remedy = {LIMIT_VARIABLE: f"export {name}={planned}", JPEGTRAN: f"put {planned} first on the PATH"}
                raise ConversionError(
                    f"this machine has {name} {here} and {self.where} was planned with {planned}, so a part made here "
                    f"might have other records: {remedy.get(name, install)}, or plan again"
                )


def no_plan(destination: str | os.PathLike[str], where: str) -> StoreNotFoundError:
    """Return the error for a destination without a plan."""
    return StoreNotFoundError(
        f"{destination} has no plan at {where}: dbloader plan makes one, and dbloader publish removes it"
    )


def list_name(token: str) -> str:
    """Return the path of a plan's list of files in ``DESTINATION.partial``."""
    return f"{LIST_FOLDER}/list-{token}"


def slice_of(part: int, parts: int, files: int) -> range:
    """Return the positions of a part's files among all files."""
    return range(files * part // parts, files * (part + 1) // parts)


def remove_plan(folder: Path) -> None:
    """Remove the folder of a plan in one step, and the remains of interrupted removals."""
    folder.rename(folder.with_name(f"{folder.name}.removed-{secrets.token_hex(4)}"))
    for away in folder.parent.glob(f"{glob.escape(folder.name)}.removed-*"):
        shutil.rmtree(away, ignore_errors=True)


def partial_folder(destination: str | os.PathLike[str]) -> Path:
    """Return the folder with the plan of a destination."""
    return Path(f"{target_of(destination)}{PARTIAL}")


def target_of(destination: str | os.PathLike[str]) -> Path:
    """Return the path of a sharded store, after symbolic links; PlaceError for a place in MongoDB."""
    if is_mongo(destination):
        raise PlaceError(
            "shards are files: the destination must be a path that all machines see, got a place in MongoDB; convert "
            "without shards (--shards) to write there"
        )
    return Path(os.path.realpath(checked_path(destination)))


def library_versions(images: ImageFormat) -> dict[str, str]:
    """Return the versions of dbloader and libraries, and the limit of pixels, by name. All of these affect records."""
    versions = {"dbloader": __version__, **dict.fromkeys(_PACKAGES, "none"), LIMIT_VARIABLE: f"{max_pixels():.0f}"}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if images.tile and images.quality is None:
        command = [find_jpegtran(), "-version"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        # IJG's jpegtran does not know -version. It prints its help, so its version is the first line of the help.
        versions[JPEGTRAN] = (done.stdout + done.stderr).decode(errors="replace").partition("\n")[0].strip()
    return versions
