"""The plan of a conversion in parts: what is converted and how, frozen in a folder that all machines see.

Part k is a pure function of the plan and k, so any machine may make it, any number of times. ``DESTINATION.partial/``
holds the plan, the shards that parts have made, and a receipt for each of them, until `publish` makes a store of it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._version import __version__
from dbloader.conversion.file_list import FileList
from dbloader.conversion.file_to_record import FileConverter
from dbloader.conversion.open_files import open_files
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import ConversionError, DamagedStoreError, PlaceError, StoreNotFoundError
from dbloader.records.columns import seal_chunk, unseal_chunk
from dbloader.records.document import open_sealed
from dbloader.stores.lmdb.keys import PARTIAL, checked_path
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from dbloader.sources.base import Source

RECEIPT_FOLDER = "parts"
PLAN_FILE, LIST_FILE, ENDS_FILE, ORDER_FILE = "plan.bson", "files", "files.ends", "files.order"
PLAN_FILES = PLAN_FILE, LIST_FILE, ENDS_FILE, ORDER_FILE
# Their versions decide pixels and bytes, so all parts must be made with the same.
_PACKAGES = ("Pillow", "simplejpeg", "pymongo")
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A conversion that is planned; made by ``plan_conversion``.

    Attributes:
        folder: ``DESTINATION.partial``.
        id: SHA-256 of everything that decides the records, hex.
        parts: Number of parts, each of which makes one shard.
        files: Number of files in the list.
        frozen: SHA-256, hex, of each file with the list and its order.
        place: The arguments of `open_source`, by their names.
        settings: Those of the FileConverter.
        fail_on: The kinds of rejected files that end the conversion: "bad" and "damaged".
        described: The ``source`` of the manifest.
        classes: Name of each label from 0 on.
        warnings: Sentences about the source, for people.
        skipped: Files left out, by extension.
        hidden: Hidden files left out.
        grows: The index of the store that the records are added to; "" for a new store.
        labels: The label in the store of each class of the source; None if they are the same.
        versions: Of dbloader and the libraries that decide the records.
    """

    folder: Path
    id: str
    parts: int
    files: int
    frozen: dict[str, str]
    place: dict[str, Any]
    settings: dict[str, Any]
    fail_on: list[str]
    described: dict[str, Any]
    classes: list[str]
    warnings: list[str]
    skipped: dict[str, int]
    hidden: int
    grows: str
    labels: list[int] | None
    versions: dict[str, str]

    @classmethod
    def open(cls, destination: str | os.PathLike[str]) -> Plan:
        """Read the plan of a destination.

        Raises:
            StoreNotFoundError: The destination has no plan.
            DamagedStoreError: It is not what was written.
        """
        folder = partial_folder(destination)
        try:
            values = open_sealed((folder / PLAN_FILE).read_bytes())
            return cls(folder=folder, **values)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"{destination} has no plan at {folder}: dbloader plan makes one, and dbloader publish removes it"
            ) from error
        except (ValueError, TypeError) as error:
            what = f"{folder / PLAN_FILE} is damaged, or of another version of dbloader: {error}"
            raise DamagedStoreError(f"{what}; remove {folder} and plan again") from error

    def converter(self) -> FileConverter:
        """Return the converter of the files."""
        settings = dict(self.settings)
        kept = {name: settings.pop(name) for name in ("check", "keep_damaged")}
        labels = None if self.labels is None else tuple(self.labels)
        return FileConverter(**kept, images=ImageFormat(**settings), labels=labels)

    def open_source(self) -> Source:
        """Open the source of the files, whose entries are not listed again."""
        return open_files(self.converter().images, **self.place)

    def open_files(self) -> FileList:
        """Open the list of all files; each entry is verified when it is read."""
        ends = self._unsealed(ENDS_FILE, 0, 0, self.files + 1)
        try:
            return FileList.of_file((self.folder / LIST_FILE).open("rb"), ends, "")
        except FileNotFoundError as error:
            raise self._missing(LIST_FILE) from error

    def part(self, number: int) -> range | np.ndarray[Any, Any]:
        """Return which files of the list a part converts, in order."""
        files = slice_of(number, self.parts, self.files)
        if self.described["shuffle"] is None:
            return files
        return np.frombuffer(self._unsealed(ORDER_FILE, number, files.start, len(files)), "<i8")

    def part_length(self, number: int) -> int:
        """Return how many files a part converts."""
        return len(slice_of(number, self.parts, self.files))

    def _unsealed(self, name: str, number: int, begin: int, count: int) -> memoryview:
        """Return some integers of 8 bytes in a file, the chunk of this number, verified."""
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(8 * begin + _CRC_BYTES * number)
                chunk = unseal_chunk(name, number, file.read(8 * count + _CRC_BYTES))
        except FileNotFoundError as error:
            raise self._missing(name) from error
        if chunk is None or len(chunk) != 8 * count:
            raise self._damaged(name)
        return chunk

    def check_frozen(self) -> None:
        """Raise DamagedStoreError unless the list and its order are what was frozen."""
        for name, digest in self.frozen.items():
            if file_digest(self.folder / name) != digest:
                raise self._damaged(name)

    def _damaged(self, name: str) -> DamagedStoreError:
        what = f"{self.folder / name} is damaged or cut short"
        return DamagedStoreError(f"{what}; plan again with overwrite (--overwrite)")

    def _missing(self, name: str) -> StoreNotFoundError:
        return StoreNotFoundError(f"{self.folder / name} is missing; plan again with overwrite (--overwrite)")

    def check_versions(self) -> None:
        """Raise ConversionError unless this process has the versions of the libraries that the plan was made with."""
        for name, planned in self.versions.items():
            if (here := library_versions()[name]) != planned:
                raise ConversionError(
                    f"this machine has {name} {here} and {self.folder} was planned with {planned}, so a part made here "
                    f"might not have the same bytes: install {name}=={planned}, or plan again"
                )


def slice_of(part: int, parts: int, files: int) -> range:
    """Return which of so many files, in order, are those of a part."""
    begin, end = (files * at // parts for at in (part, part + 1))
    return range(begin, end)


def pack_integers(name: str, *chunks: np.ndarray[Any, Any]) -> bytes:
    """Return integers of 8 bytes as a plan keeps them in the file of this name: chunks, each with a CRC-32."""
    return b"".join(seal_chunk(name, number, chunk.astype("<i8").tobytes()) for number, chunk in enumerate(chunks))


def remove_plan(folder: Path) -> None:
    """Remove the folder of a plan, which is away at once, and what is left of others whose removal was cut off."""
    folder.rename(folder.with_name(f"{folder.name}.removed-{secrets.token_hex(4)}"))
    for away in folder.parent.glob(f"{glob.escape(folder.name)}.removed-*"):
        shutil.rmtree(away, ignore_errors=True)


def partial_folder(destination: str | os.PathLike[str]) -> Path:
    """Return the folder of a conversion in parts."""
    if is_mongo(destination):
        raise PlaceError(
            "shards are files: the destination must be a path that all machines see, got a place in MongoDB; convert "
            "without shards (--shards) to write there"
        )
    return Path(os.path.realpath(checked_path(destination)) + PARTIAL)


def target_of(destination: str | os.PathLike[str]) -> Path:
    """Return the place of a sharded store, which a link may lead to."""
    folder = partial_folder(destination)
    return folder.with_name(folder.name.removesuffix(PARTIAL))


def library_versions() -> dict[str, str]:
    """Return the versions of dbloader and of the libraries that decide the records."""
    return {"dbloader": __version__, **{name: version(name) for name in _PACKAGES}}


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
