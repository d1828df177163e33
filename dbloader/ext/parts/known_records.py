"""Find the new files of an append whose records are in the store already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import counted
from dbloader.ext.comparing.record_keys import record_keys
from dbloader.records.columns import name_hash
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.records.columns import Array


class KnownRecords:
    """The records of a store, and the files that were rejected before. A record takes 8 bytes of memory."""

    def __init__(self, target: Path) -> None:
        with LMDBStore(target) as store:
            self._keys = np.sort(_keys(store))
            lines = (line for line in store.events() if line["event"] == "rejected")
            self._rejected = {(line["name"], line["reason"]) for line in lines}

    def __contains__(self, done: Any) -> bool:
        """Return whether the store has the record of a FileResult, or has rejected the file for the same reason."""
        if (record := done.record) is None:
            return (done.item.name, done.events["rejected"]) in self._rejected
        values = record.crc32, name_hash((record.name or "").encode()), record.nbytes
        key = record_keys(*(np.array([value], "u8") for value in values))
        return bool(self._keys.searchsorted(key, "right") > self._keys.searchsorted(key))


def repeated_warnings(target: Path, old: int) -> list[str]:
    """Warn about new records with the content or name of earlier records. ``old`` is the number of earlier records."""
    with LMDBStore(target) as store:
        keys, names = _keys(store), store.column("name_hash")
    equal = np.isin(keys[old:], keys[:old])
    named = np.isin(names[old:], names[:old]) & (names[old:] != name_hash(b"")) & ~equal
    what = {
        "were in the store already, with the same name, label and fields: new_only (--new-only) leaves them out": equal,
        "have the name of an earlier record, which stays: dbloader copy --drop makes a store without it": named,
    }
    return [f"{counted(int(found.sum()), 'new image')} {text}" for text, found in what.items() if found.any()]


def _keys(store: LMDBStore) -> Array:
    return record_keys(*map(store.column, ("crc32", "name_hash", "nbytes")))
