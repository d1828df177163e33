"""Write samples with write_store, and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbloader.ext.collecting.write_store import write_store
from dbloader.records.record import Record
from dbloader.stores.open import open_store


def written(samples: Any, folder: Path, **options: Any) -> list[Record]:
    """Return the records that write_store makes."""
    place = folder / "s.lmdb"
    place.unlink(missing_ok=True)
    write_store(samples, place, **options)
    with open_store(place) as store:
        return list(store)
