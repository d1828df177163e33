"""List the records of a store by their columns, without reading records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.stores.base import Store


class Row(NamedTuple):
    """What the columns say of one record; ``label`` is None, and others are empty or 0, if it has none."""

    index: int  # type: ignore[assignment] # tuple.index, which nobody looks for in a row
    name: str
    label: int | None
    width: int
    height: int
    nbytes: int


def list_records(store: Store, label: int | None = None) -> Iterator[Row]:
    """Yield all records of a store, or those with a label, in their order; chunk by chunk, as they are asked for."""
    handle = store.open_handle()

    def values(column: str, number: int) -> list[Any]:
        chunk = handle.chunk(column, number)
        if column == "name":
            return [name.decode("utf-8", "backslashreplace") for name in names_in(bytes(chunk))]
        numbers: list[Any] = np.frombuffer(chunk, DTYPES[column]).tolist()
        return numbers

    for number, start in enumerate(range(0, handle.manifest.length, CHUNK)):
        labels = values("label", number)
        if label is None or label in labels:
            columns = [values(column, number) for column in ("name", "width", "height", "nbytes")]
            for index, (found, name, *sizes) in enumerate(zip(labels, *columns, strict=True), start):
                if label in (None, found):
                    yield Row(index, name, None if found == NO_LABEL else found, *sizes)


def class_of(label: int | None, classes: Sequence[str]) -> str | None:
    """Return the name of a label's class; None if it has none."""
    return classes[label] if label is not None and 0 <= label < len(classes) else None
