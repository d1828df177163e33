"""Find the indices of records by a query, and check that the records it is answered from are all there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from dbloader.errors import DamagedStoreError
from dbloader.stores.mongo.schema import COLUMNS_INDEX, COVERED, LABEL_INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dbloader.stores.mongo.reader import MongoReader

T = TypeVar("T")

# Indices in one answer: the driver makes a small dict of each.
_INDICES_AT_ONCE = 2**14
_BAD_VALUE = 2  # the code for the hint of an index that does not exist


def find_matching(reader: MongoReader, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the indices of the records that a query finds, after checking that none is missing."""
    check_counts(reader, by_label=any(field == "label" or field.startswith("$") for field in _fields(query)))
    return find_indices(reader, query)


def find_indices(reader: MongoReader, query: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the indices of the records that the server finds by a query: int64, shape (records,), ascending.

    It does not notice records that the server has lost; see ``check_counts``.
    """
    fields = _fields(query)
    # Left alone, the server would use the index of one field and read the documents.
    hint = COLUMNS_INDEX if len(fields) > 1 and fields <= set(COVERED) else None
    condition = {"$and": [_in_store(reader), dict(query)]}

    def find(hint: str | None) -> np.ndarray[Any, Any]:
        found = reader.newest.find(condition, {"_id": 1}, batch_size=_INDICES_AT_ONCE, hint=hint)
        return np.fromiter((to_index(reader.place.redacted, document["_id"]) for document in found), np.int64)

    return np.unique(reader.connection.retry(lambda: with_hint(find, hint), scan=reader.newest))


def to_index(place: str, key: object) -> int:
    """Return the _id of a record's document as an index, if it is an int64: 3.5 would be taken for 3."""
    if not isinstance(key, Int64):
        raise DamagedStoreError(
            f"{place} has a document of the _id {key!r:.80}, which no record has: "
            "convert again, or copy the store again from where it is whole"
        )
    return int(key)


def check_counts(reader: MongoReader, *, by_label: bool) -> None:
    """Raise DamagedStoreError unless the server has as many records, ``by_label`` of each label, as the manifest says.

    Otherwise a record that is lost, or whose label was edited, would silently be missing from the answer to a query.
    """
    manifest = reader.manifest
    expected: dict[Any, int] = {None: manifest.length}
    if by_label and manifest.label_counts is not None:
        expected = {**manifest.label_counts, None: manifest.length - manifest.labelled}
    by_label = len(expected) > 1
    group = {"_id": "$label" if by_label else None, "records": {"$sum": 1}}
    pipeline = [{"$match": _in_store(reader)}, {"$group": group}]

    def count(hint: str | None) -> dict[str, int]:
        options: dict[str, Any] = {} if hint is None else {"hint": hint}
        return {repr(found["_id"]): found["records"] for found in reader.newest.aggregate(pipeline, **options)}

    index = LABEL_INDEX if by_label else "_id_"
    counts = reader.connection.retry(lambda: with_hint(count, index), scan=reader.newest)
    for label, wanted in expected.items():
        found = counts.pop(repr(label), 0)
        if found != wanted:
            which = "" if not by_label else " without a label" if label is None else f" of label {label}"
            raise _incomplete(reader, f"{found} records{which}, and {wanted} were written")
    if counts:
        raise _incomplete(reader, f"records with labels that none was written with: {', '.join([*counts][:3]):.200}")


def _incomplete(reader: MongoReader, what: str) -> Exception:
    reader.check_records()
    return DamagedStoreError(
        f"{reader.place.redacted} has {what}, so no query can be answered: "
        "convert again, or copy the store again from where it is whole"
    )


def _in_store(reader: MongoReader) -> dict[str, Any]:
    return {"_id": {"$gte": 0, "$lt": reader.manifest.length}}


def _fields(query: Mapping[str, Any]) -> set[str]:
    """Return the fields that a query compares; for an operator other than ``$and``, ``$or``, ``$nor``, its name."""
    fields: set[str] = set()
    for key, value in query.items():
        if key in ("$and", "$or", "$nor") and isinstance(value, (list, tuple)):
            for part in value:
                fields |= _fields(part)
        else:
            fields.add(key)
    return fields


def with_hint(find: Callable[[str | None], T], hint: str | None) -> T:
    """Query with the hint of an index; without if that is missing, as in a copy of a store without its indexes."""
    try:
        return find(hint)
    except OperationFailure as error:
        if hint is None or error.code != _BAD_VALUE or "hint" not in str(error):
            raise
        return find(None)
