"""The file next to a store with the fingerprints of its images, and the groups of duplicates among them.

It is one line of JSON, then the duplicates, where each group of them begins, and the fingerprints.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from dbloader.stores.mongo.uri import is_mongo, parse

if TYPE_CHECKING:
    from dbloader.records.names import Array
    from dbloader.stores.base import Store

# `seen` is the dHash; `content` is the BLAKE2b of the image as it is stored, 128 bits; 0 without one.
FINGERPRINT = np.dtype([("seen", "<u8", 2), ("content", "<u8", 2), ("kind", "u1")])

# `bits` of the pictures of `index` and `of` differ, the image that it is a duplicate of; `same` are their bytes.
DUPLICATE = np.dtype([("index", "<i8"), ("of", "<i8"), ("bits", "u1"), ("same", "?")])

_BEGIN = np.dtype("<i8")
_MAGIC = "dbloader fingerprints 2"


class Fingerprints(NamedTuple):
    """The fingerprints of a store: FINGERPRINT of each record, and what is wrong with those that cannot be read."""

    values: Array
    reasons: dict[int, str]


class Groups(NamedTuple):
    """The duplicates in a store.

    Attributes:
        distance: Bits in which two pictures may differ.
        rows: DUPLICATE, by the image that they are duplicates of.
        begins: Where each group begins in ``rows``, and where the last one ends: int64, shape (groups + 1,).
    """

    distance: int
    rows: Array
    begins: Array


def fingerprint_path(place: str | os.PathLike[str]) -> Path:
    """Return the file of a store's fingerprints: next to an LMDB file, in the working directory for MongoDB."""
    if not is_mongo(place):
        return Path(f"{os.fspath(place)}.duplicates")
    uri = parse(os.fspath(place))
    return Path(f"{uri.database}.{uri.collection}.duplicates")


def save_fingerprints(store: Store, found: Fingerprints, groups: Groups | None = None) -> None:
    """Write the file of a store, all or nothing; without groups until they are known."""
    parts = *((np.zeros(0, DUPLICATE), np.zeros(0, _BEGIN)) if groups is None else groups[1:]), found.values
    head = {
        "format": _MAGIC,
        "digest": store.manifest.digest,
        "distance": groups and groups.distance,
        "reasons": found.reasons,
        "parts": [[len(part), crc32(part.view("u1"))] for part in parts],
    }
    path = fingerprint_path(store.place)
    aside = Path(f"{path}.{os.getpid()}.partial")
    try:
        with aside.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            for part in parts:
                part.tofile(file)
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink()


def load_fingerprints(store: Store) -> Fingerprints | None:
    """Return the fingerprints of a store; None if there is no file, or if it is damaged or of other records."""
    if loaded := _load(store, DUPLICATE, _BEGIN, FINGERPRINT):
        head, (_, _, values) = loaded
        return Fingerprints(values, {int(index): str(reason) for index, reason in head["reasons"].items()})
    return None


def load_groups(store: Store) -> Groups | None:
    """Return the groups of duplicates in a store; None if none are kept of these records."""
    if loaded := _load(store, DUPLICATE, _BEGIN):
        head, parts = loaded
        return None if head["distance"] is None else Groups(head["distance"], *parts)
    return None


def _load(store: Store, *dtypes: np.dtype[Any]) -> tuple[dict[str, Any], list[Array]] | None:
    """Return the first line of the file of a store, and its first parts, whose checksums are right."""
    try:
        with fingerprint_path(store.place).open("rb") as file:
            head = json.loads(file.readline())
            if head["format"] != _MAGIC or head["digest"] != store.manifest.digest:
                return None
            counts, checksums = zip(*head["parts"], strict=True)
            parts = [np.fromfile(file, dtype, count) for dtype, count in zip(dtypes, counts, strict=False)]
            whole = all(crc32(part.view("u1")) == crc for part, crc in zip(parts, checksums, strict=False))
            return (head, parts) if whole else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, MemoryError):
        return None
