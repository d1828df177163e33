"""Find LMDB files, and check whether they are stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.keys import MAGIC, MAGIC_AT, META, RECORDS

if TYPE_CHECKING:
    import os


def find_lmdb(place: str | os.PathLike[str]) -> Path | None:
    """Return the LMDB file at a place: the file itself, or ``data.mdb`` in a folder. Return None if there is none."""
    try:
        path = Path(place)
        path = path / "data.mdb" if path.is_dir() else path
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return path if file.read(MAGIC_AT + 4)[MAGIC_AT:] == MAGIC else None
    except (OSError, ValueError):
        return None  # FolderSource is tried last, and raises a clear error


def is_store(path: Path) -> bool:
    """Return whether an LMDB file is a store of dbloader, finished or not."""
    try:
        opened = env.acquire(path)
    except (lmdb.Error, OSError):
        return False  # LMDBSource then raises a clear error
    try:
        with opened.env.begin() as txn:
            return all(txn.get(key) is not None for key in (RECORDS, META))
    except lmdb.Error:
        return False
    finally:
        env.release(opened)
