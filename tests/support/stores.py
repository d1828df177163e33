"""Write stores of records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dbloader.records.manifest import Manifest
from dbloader.records.record import Record, encode
from dbloader.stores.open import create_store


def store_records(
    place: str | Path, records: Iterable[Record], *, events: Iterable[dict[str, str]] = (), **values: Any
) -> Manifest:
    """Write records unchanged, although ``write_store`` would refuse some. ``values`` go to the manifest."""
    with create_store(place) as writer:
        writer.write(map(encode, records), events=events)
        return writer.finish(**values)
