"""Examine the images of a store as those of a conversion are examined."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dbloader._machine import cpu_count
from dbloader.conversion.file_to_record import FileConverter, FileResult
from dbloader.conversion.parallel import work_in_order
from dbloader.errors import DamagedRecordError, DamagedStoreError, ImageError
from dbloader.images.pillow import array_depth
from dbloader.records.decode import decode
from dbloader.records.document import find_image
from dbloader.records.record import encode
from dbloader.sources.base import Entry, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.conversion.memory_budget import MemoryBudget
    from dbloader.conversion.parallel import Hold
    from dbloader.records.record import EncodedRecord
    from dbloader.stores.base import Store


@dataclass(frozen=True, slots=True)
class Examined:
    """A record whose image was examined.

    Attributes:
        record: The record as it is to be stored: with its end marker if only that was missing; None if it is rejected.
        event: ``"repaired"``, ``"rejected"`` or ``""``.
        data: What is rejected: the image, also if it is another file; the whole document if that is damaged; ``b""`` if
            it cannot be read.
        is_document: Whether the record itself is damaged.
        depth: Of the image's values; ``""`` without one.
    """

    index: int
    record: EncodedRecord | None
    name: str | None = None
    event: str = ""
    reason: str = ""
    data: bytes = b""
    depth: str = ""
    is_document: bool = False


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
    document, name = b"", None
    try:
        (document,) = store.documents([index])
        hold(2 * len(document))
        encoded = store.verified(document, index)
    except (DamagedRecordError, DamagedStoreError) as error:
        with suppress(DamagedRecordError, DamagedStoreError):
            name = store.name(index)
        return Examined(index, None, name, "rejected", str(error), document, is_document=True)
    _, _, found = find_image(document)
    files = [name for name in store.manifest.file_fields if name in encoded.fields]
    if found is None and not files:
        return Examined(index, encoded)
    record, depth = decode(document, index, store.manifest.salt), ""
    image, result = record.image, FileResult(Problem(encoded.name or "", ""))
    if isinstance(image, np.ndarray):
        depth = array_depth(image)
    try:
        if isinstance(image, bytes):
            record.image, facts = converter._check(result, image, hold)
            depth = facts.depth if facts else ""
        record.fields = converter._check_files(result, Entry("", b"", None, record.fields), files, hold)
    except ImageError as error:
        return Examined(index, None, encoded.name, "rejected", str(error), image if isinstance(image, bytes) else b"")
    if not result.events:
        return Examined(index, encoded, depth=depth)
    record.damaged = None
    return Examined(index, encode(record), encoded.name, "repaired", result.events["repaired"], depth=depth)
