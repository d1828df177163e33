"""Compute the fingerprints of a store's images, and keep them in a file.

A fingerprint is a dHash (after Neal Krawetz, "Kind of Like That", hackerfactor.com, 2013). An image is divided into
9 x 9 areas. Along 8 rows and down 8 columns, the brightness of each area is compared with the area before it. This
gives 128 bits. With 64 bits, the search found as many copies, but three times as many false matches.

The file is next to the store. It contains one line of JSON, the duplicates, the start of each group of duplicates, and
the fingerprints.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simplejpeg
from isal.isal_zlib import crc32
from PIL import Image

from dbloader._machine import cpu_count
from dbloader._parallel import return_large_blocks, work_in_order
from dbloader._places import is_mongo, path_beside
from dbloader.errors import DamagedRecordError, ImageError, PixelRangeError
from dbloader.images.info import read_facts
from dbloader.images.pillow import max_pixels
from dbloader.images.resize import load_pixels, resizing_bytes
from dbloader.stores.lmdb.files import durable
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader._parallel import Hold
    from dbloader.records.columns import Array
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

# `seen` is the dHash, and `content` a 128-bit BLAKE2b hash of the stored image; both are 0 without an image.
FINGERPRINT = np.dtype([("seen", "<u8", 2), ("content", "<u8", 2), ("kind", "u1")])

# Record `index` is a duplicate of record `of`: their dHashes differ in `bits` bits. `same` is true if the bytes agree.
DUPLICATE = np.dtype([("index", "<i8"), ("of", "<i8"), ("bits", "u1"), ("same", "?")])

_BEGIN = np.dtype("<i8")
_MAGIC = "dbloader fingerprints 2"

NO_IMAGE, HASHED, BYTES_ONLY, UNREADABLE = range(4)

# Large images are decoded at a reduced size, with sides of at least this many pixels. With 36, an image and its copy of
# 0.9 times the size differed in 5 bits. With 72, they differed in 3 bits.
_LEAST = 72
# Least difference between the brightest and the darkest area, 0 to 255. Below it, noise decides the bits of the dHash.
_LEAST_CONTRAST = 16
# A turn is a place in a row or column of areas where the brightness changes from rising to falling, or back. Images
# with fewer turns than this are gradients, such as a clear sky. All gradients look alike: in a test with 5,000 images,
# the 2% that are gradients made 98% of the false pairs.
_LEAST_TURNS = 10


class Fingerprints(NamedTuple):
    """The fingerprints of all records of a store, and {index: reason} for unreadable records."""

    values: Array  # dtype FINGERPRINT, shape (records,)
    reasons: dict[int, str]


class Groups(NamedTuple):
    """The duplicates in a store.

    Attributes:
        distance: Pictures are similar if at most this many of the 128 bits of their hashes differ.
        rows: The duplicates, sorted by original: dtype DUPLICATE, shape (duplicates,).
        begins: Start of each group in ``rows``, and the end of the last group: int64, shape (groups + 1,).
    """

    distance: int
    rows: Array
    begins: Array


def compute_fingerprints(store: Store, progress: Callable[[int], object]) -> Fingerprints:
    """Read and decode all images of a store. ``progress`` is called with the number of finished records."""
    return_large_blocks()
    sizes = store.column("nbytes")

    def work(part: slice, hold: Hold) -> list[tuple[Any, str]]:
        hold(int(sizes[part].sum()))
        return [
            (((0, 0), (0, 0), UNREADABLE), str(record))
            if isinstance(record, DamagedRecordError)
            else _fingerprint(record, hold)
            for record in read_each(store, range(part.start, part.stop))
        ]

    values, reasons, done = np.zeros(len(store), FINGERPRINT), {}, 0
    for batch in work_in_order(work, len(store), cpu_count()):
        for value, reason in batch:
            values[done] = value
            if reason:
                reasons[done] = reason
            done += 1
        progress(done)
    return Fingerprints(values, reasons)


def read_each(store: Store, indices: Sequence[int]) -> list[Record | DamagedRecordError]:
    """Return each record, or the error of a damaged record."""
    try:
        return [*store.read(indices)]
    except DamagedRecordError as error:
        if len(indices) == 1:
            return [error.with_traceback(None)]
        return [record for index in indices for record in read_each(store, [index])]


def _fingerprint(record: Record, hold: Hold) -> tuple[Any, str]:
    image: Any = record.image
    if image is None:
        return ((0, 0), (0, 0), NO_IMAGE), ""
    data = image if isinstance(image, bytes) else f"{image.dtype}{image.shape}".encode() + image.tobytes()
    content = np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), "<u8")
    try:
        spots = _spots(image, hold).astype(int)
    except PixelRangeError:
        spots = np.zeros((9, 9), int)
    except ImageError as error:
        return ((0, 0), content, UNREADABLE), f"record {record.index} ({record.name or 'without a name'}) {error}"
    right, down = spots[:8, 1:] > spots[:8, :-1], spots[1:, :8] > spots[:-1, :8]
    turns = int((right[:, 1:] != right[:, :-1]).sum() + (down[1:] != down[:-1]).sum())
    kind = HASHED if np.ptp(spots) >= _LEAST_CONTRAST and turns >= _LEAST_TURNS else BYTES_ONLY
    return (np.packbits([right, down]).view("<u8"), content, kind), ""


def _spots(image: Any, hold: Hold) -> Array:
    """Return the mean brightness in each of 9 x 9 areas of an image: uint8, shape (9, 9), 0 to 255."""
    if isinstance(image, bytes):
        gray = _decode_jpeg(image) if image.startswith(b"\xff\xd8") else None
        if gray is not None:
            return gray
        hold(resizing_bytes(read_facts(image), (_LEAST, _LEAST)))
        image = load_pixels(image, (_LEAST, _LEAST))
    elif image.dtype != np.uint8 or not image.size or not (image.ndim == 2 or image.shape[2:] in ((3,), (4,))):
        raise PixelRangeError("no picture")
    return np.asarray(Image.fromarray(image).convert("L").resize((9, 9), Image.Resampling.BOX))


def _decode_jpeg(data: bytes) -> Array | None:
    """Return the result of `_spots` for a JPEG, decoded at a reduced size; None if Pillow must decode the JPEG."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        if height * width > max_pixels():
            return None
        least = {"min_height": min(height, _LEAST), "min_width": min(width, _LEAST), "min_factor": 1}
        gray = simplejpeg.decode_jpeg(data, "GRAY", strict=True, **least)[:, :, 0]
    except (ValueError, KeyError):
        return None
    # The decoder reduces to eighths of the size and rounds up, so the last column and row may extend past the edge of
    # the image. Use only the box up to the edge.
    eighths = 8 * gray.shape[1] // width
    box = (0, 0, width * eighths / 8, height * eighths / 8)
    return np.asarray(Image.fromarray(gray).resize((9, 9), Image.Resampling.BOX, box))


def fingerprint_path(place: str) -> Path:
    """Return the path of a store's fingerprints: beside an LMDB store; for MongoDB, in the working directory."""
    if not is_mongo(place):
        return path_beside(place, ".duplicates")
    uri = parse(place)
    return Path(f"{uri.database}.{uri.collection}.duplicates")


def save_fingerprints(store: Store, found: Fingerprints, groups: Groups | None = None) -> None:
    """Write the fingerprints of a store, and the groups of duplicates if they are known, to a file in one step."""
    parts = *((np.zeros(0, DUPLICATE), np.zeros(0, _BEGIN)) if groups is None else groups[1:]), found.values
    head = {
        "format": _MAGIC,
        "digest": store.manifest.digest,
        "distance": groups and groups.distance,
        "reasons": found.reasons,
        "parts": [[len(part), crc32(part.view("u1"))] for part in parts],
    }
    with durable(fingerprint_path(store.place)) as file:
        file.write(json.dumps(head).encode() + b"\n")
        for part in parts:
            part.tofile(file)


def load_fingerprints(store: Store) -> Fingerprints | None:
    """Load a store's fingerprints; None if the file is missing, unreadable, damaged or made for other records."""
    if loaded := _load(store, DUPLICATE, _BEGIN, FINGERPRINT):
        head, (_, _, values) = loaded
        return Fingerprints(values, {int(index): str(reason) for index, reason in head["reasons"].items()})
    return None


def load_groups(store: Store) -> Groups | None:
    """Load a store's groups of duplicates; None if the file has no groups for these records."""
    if loaded := _load(store, DUPLICATE, _BEGIN):
        head, parts = loaded
        return None if head["distance"] is None else Groups(head["distance"], *parts)
    return None


def _load(store: Store, *dtypes: np.dtype[Any]) -> tuple[dict[str, Any], list[Array]] | None:
    """Read a file of fingerprints. Return (its first line, one array for each of ``dtypes``).

    Return None if the file is missing, unreadable, damaged or made for other records.
    """
    try:
        with fingerprint_path(store.place).open("rb") as file:
            head = json.loads(file.readline())
            if head["format"] != _MAGIC or head["digest"] != store.manifest.digest:
                return None
            counts, checksums = zip(*head["parts"], strict=True)
            parts = [np.fromfile(file, dtype, count) for dtype, count in zip(dtypes, counts, strict=False)]
            whole = all(crc32(part.view("u1")) == crc for part, crc in zip(parts, checksums, strict=False))
            return (head, parts) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError):
        return None
