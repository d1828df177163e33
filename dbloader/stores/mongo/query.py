"""Which records a query finds; and that those it is answered from are all there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from dbloader.errors import DamagedStoreError
from dbloader.stores.mongo.schema import COLUMNS_INDEX, COVERED, LABEL_INDEX, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pymongo.collection import Collection

    from dbloader.stores.mongo.reader import MongoReader

T = TypeVar("T")

# Indices that an answer gives at a time: each is a small dict of the driver's for a moment.
_IDS = 2**14
_BAD_VALUE = 2  # what the server says of a hint of an index that is not there


def matching(handle: MongoReader, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the indices of the records that a query finds; see ``MongoStore.matching``."""
    check_counts(handle, by_label=any(field == "label" or field.startswith("$") for field in fields_of(query)))
    return found_by(handle, query)


def found_by(handle: MongoReader, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the indices of the records that the server finds by a query: int64, shape (records,), ascending.

    A record that the server has lost is not among them; see ``check_counts``.
    """
    fields = fields_of(query)
    hint = None
    if len(fields) > 1 and fields <= set(COVERED):
        hint = COLUMNS_INDEX  # left to itself, the server would look for one field and read the documents
    asked = {"filter": {"$and": [_of_this(handle), dict(query)]}, "projection": {"_id": 1}, "batch_size": _IDS}

    def ask(collection: Collection[Any]) -> np.ndarray[Any, Any]:
        def answer(hint: str | None) -> np.ndarray[Any, Any]:
            found = collection.find(**asked, hint=hint)
            return np.fromiter((checked_index(handle.place.shown, found["_id"]) for found in found), np.int64)

        return hinted(answer, hint)

    return np.unique(handle.of_records(ask, newest=True, scan=True))


def checked_index(shown: str, key: object) -> int:
    """Return the index that is the _id of a record's document.

    Args:
        shown: How messages name the store.
        key: The _id.

    Raises:
        DamagedStoreError: No record has such an _id: 3.5 would be taken for 3.
    """
    if not isinstance(key, Int64):
        raise DamagedStoreError(
            f"{shown} has a document of the _id {key!r:.80}, which no record has: "
            "convert again, or copy the store again from where it is whole"
        )
    return int(key)


def _of_this(handle: MongoReader) -> dict[str, Any]:
    return {"_id": {"$gte": 0, "$lt": handle.manifest.length}}


def check_counts(handle: MongoReader, *, by_label: bool) -> None:
    """Compare the records that a query is answered from with what the manifest says of them.

    A record that is lost, or whose label was edited, would else be missing from the answer, and nobody would know.

    Args:
        handle: Of the store.
        by_label: Whether to count the records of each label, for a query that asks about labels.

    Raises:
        DamagedStoreError: There are more, or fewer, or of other labels.
    """
    manifest = handle.manifest
    expected: dict[Any, int] = {None: manifest.length}
    if by_label and manifest.label_counts is not None:
        expected = {**manifest.label_counts, None: manifest.length - manifest.labelled}
    group = {"_id": "$label" if len(expected) > 1 else None, "records": {"$sum": 1}}
    asked = [{"$match": _of_this(handle)}, {"$group": group}]

    def ask(collection: Collection[Any]) -> dict[str, int]:
        def answer(hint: str | None) -> dict[str, int]:
            options: dict[str, Any] = {} if hint is None else {"hint": hint}
            return {repr(found["_id"]): found["records"] for found in collection.aggregate(asked, **options)}

        return hinted(answer, LABEL_INDEX if len(expected) > 1 else "_id_")

    found = handle.of_records(ask, newest=True, scan=True)
    for label, count in expected.items():
        there = found.pop(repr(label), 0)
        if there != count:
            which = "" if len(expected) == 1 else " without a label" if label is None else f" of label {label}"
            raise _differ(handle, f"{there} records{which}, and {count} were written")
    if found:
        raise _differ(handle, f"records with labels that none was written with: {', '.join([*found][:3]):.200}")


def _differ(handle: MongoReader, what: str) -> Exception:
    handle.check_here()
    return DamagedStoreError(
        f"{handle.place.shown} has {what}, so no query can be answered: "
        "convert again, or copy the store again from where it is whole"
    )


def hinted(ask: Callable[[str | None], T], hint: str | None) -> T:
    """Ask with the hint of an index; without, if it is not there, as in a copy of a store without its indexes."""
    try:
        return ask(hint)
    except OperationFailure as error:
        if hint is None or error.code != _BAD_VALUE or "hint" not in str(error):
            raise
        return ask(None)
