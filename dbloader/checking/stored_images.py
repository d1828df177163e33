"""Examine the images of a store as those of a conversion are examined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbloader._machine import cpu_count
from dbloader.conversion.file_to_record import FileConverter
from dbloader.conversion.parallel import work_in_order
from dbloader.errors import DamagedRecordError, DamagedStoreError, ImageError
from dbloader.records.decode import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.stores.base import Store


@dataclass(frozen=True, slots=True)
class Examined:
    """A record, and why its image files do not decode; ``reason`` is empty if they do, or if the record is damaged."""

    index: int
    name: str | None = None
    reason: str = ""


def examine_images(store: Store) -> Iterator[list[Examined]]:
    """Yield all records in order, each after its image files were examined and decoded; arrays need not be."""
    converter = FileConverter()

    def examine(part: slice, hold: Hold, budget: MemoryBudget) -> list[Examined]:
        results = []
        for index in range(part.start, part.stop):
            if budget.closed:
                break
            results.append(_examine(store, index, converter, hold))
        return results

    return work_in_order(examine, len(store), cpu_count())


def _examine(store: Store, index: int, converter: FileConverter, hold: Hold) -> Examined:
    try:
        (document,) = store.documents([index])
        hold(2 * len(document))
        record = decode(document, index, store.manifest.salt)
    except (DamagedRecordError, DamagedStoreError):
        return Examined(index)
    names = [name for name in store.manifest.file_fields if name in record.fields]
    repaired = ""
    try:
        if isinstance(record.image, bytes):
            repaired = converter.check_image(record.image, hold).repaired
        _, more = converter.check_fields(record.fields, names, hold, {})
    except ImageError as error:
        return Examined(index, record.name, str(error))
    return Examined(index, record.name, "; ".join(filter(None, (repaired, more))))
