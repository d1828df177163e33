"""Read and write ``manifest.bson``, the manifest of a sharded store.

A sharded store is a folder with LMDB files in ``shards/`` and an index of all their records. ``manifest.bson`` is
written last and names all files, so no program needs to list the folder. docs/format.md describes every value.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dbloader.errors import DamagedStoreError, NotAStoreError, StoreVersionError
from dbloader.records.document import UNREADABLE, open_sealed, seal
from dbloader.records.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MANIFEST_FILE, SHARD_FOLDER = "manifest.bson", "shards"
FORMAT, VERSION = "dbloader shards", 1

_DIGEST_HEX = 64
# Names must not be paths: otherwise a hostile manifest could name a file outside its folder.
_FILE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,200}")
COPY_AGAIN = "copy the folder again from the original"


def is_sharded(place: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder with the manifest of a sharded store."""
    return os.path.isfile(os.path.join(os.fspath(place), MANIFEST_FILE))  # noqa: PTH113, PTH118 - it may be any str


class Shard(NamedTuple):
    """One LMDB file of a sharded store: its name in ``shards/``, number of records, size in bytes, and digest."""

    name: str
    length: int
    nbytes: int
    digest: str


class ShardTable(NamedTuple):
    """The content of ``manifest.bson``.

    Attributes:
        manifest: The header of the whole store, as in a store of one file.
        index_file: File name of the index.
        shards: The shards, in the order of their records.
        previous: File name of the index before shards were last added; "" if no shards were ever added.
    """

    manifest: Manifest
    index_file: str
    shards: Sequence[Shard]
    previous: str = ""

    @property
    def files(self) -> list[str]:
        """Paths of the store's files, relative to its folder: the shards, then the index."""
        return [*(f"{SHARD_FOLDER}/{shard.name}" for shard in self.shards), self.index_file]

    @property
    def older_files(self) -> list[str]:
        """Paths of the previous version's index and manifest, relative to the store's folder."""
        return [self.previous, kept_manifest(self.previous)] if self.previous else []

    def encode(self) -> bytes:
        """Return the bytes of ``manifest.bson``."""
        names, lengths, nbytes, digests = zip(*self.shards, strict=True) if self.shards else ((), (), (), ())
        return seal(
            {
                "format": FORMAT,
                "version": VERSION,
                "manifest": self.manifest.encode(),
                "index": self.index_file,
                "names": list(names),
                "lengths": np.array(lengths, "<i8").tobytes(),
                "nbytes": np.array(nbytes, "<i8").tobytes(),
                "digests": bytes.fromhex("".join(digests)),
                "previous": self.previous,
            }
        )

    @classmethod
    def read(cls, folder: Path) -> ShardTable:
        """Return the table of the store in a folder. Raise OSError, or the errors of ``decode``."""
        return cls.decode((folder / MANIFEST_FILE).read_bytes(), str(folder))

    @classmethod
    def decode(cls, data: bytes, place: str) -> ShardTable:
        """Return the table in the bytes of a ``manifest.bson``.

        Raises:
            NotAStoreError: Another program wrote the file.
            StoreVersionError: The format is newer than this version of dbloader.
            DamagedStoreError: The file is damaged.
        """

        def damaged(what: str) -> DamagedStoreError:
            return DamagedStoreError(f"{place}: its {MANIFEST_FILE} {what}; {COPY_AGAIN}")

        try:
            values = open_sealed(data)
            known = values["format"] == FORMAT
            version = int(values["version"])
        except (KeyError, *UNREADABLE) as error:
            raise damaged(f"is damaged: {error}") from error
        if not known:
            raise NotAStoreError(f"{place} is not a dbloader store: another program wrote its {MANIFEST_FILE}")
        if version > VERSION:
            raise StoreVersionError(
                f"{place} has shards of format version {version}; this dbloader reads versions up to {VERSION}: "
                "install a newer dbloader"
            )
        try:
            manifest = Manifest.decode(values["manifest"], place)
            lengths = np.frombuffer(values["lengths"], "<i8").tolist()
            nbytes = np.frombuffer(values["nbytes"], "<i8").tolist()
            packed = np.frombuffer(values["digests"], np.uint8).tobytes().hex()
            digests = [packed[begin : begin + _DIGEST_HEX] for begin in range(0, len(packed), _DIGEST_HEX)]
            shards = [Shard(*row) for row in zip(values["names"], lengths, nbytes, digests, strict=True)]
            previous = values.get("previous", "")
            own = [MANIFEST_FILE, values["index"], *([] if previous == "" else [previous])]
            names = [*own, *values["names"]]
        except (KeyError, *UNREADABLE) as error:
            raise damaged(f"has no valid table: {error!r:.80}") from error
        if not all(isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in names):
            raise damaged("names a file with an invalid name")
        if len({*values["names"]}) < len(shards) or len({*own}) < len(own):
            raise damaged("names a file twice")
        if min(lengths, default=0) < 0 or sum(lengths) != manifest.length:
            raise damaged(f"has shards of {sum(lengths):,} records in all, not {manifest.length:,}")
        return cls(manifest, values["index"], shards, previous)


def kept_manifest(index_file: str) -> str:
    """Return the file name of a previous version's manifest, given the name of that version's index file."""
    return f"{index_file}.{MANIFEST_FILE}"
