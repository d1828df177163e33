"""Fingerprints of a store's images, by which duplicates are found.

The hash of what is seen is dHash: whether each of 8 x 8 spots is brighter than its neighbor (Neal Krawetz, "Kind of
Like That", hackerfactor.com, 2013). Each is compared with the one above too, which makes 128 bits: at the same share
of changed copies found, a third as many different pictures were taken for copies as with 64.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import Image

from dbloader._machine import cpu_count
from dbloader.checking.fingerprint_file import FINGERPRINT, Fingerprints
from dbloader.conversion.parallel import return_large_blocks, work_in_order
from dbloader.conversion.resize import load_pixels, resizing_bytes
from dbloader.errors import DamagedRecordError, ImageError, PixelRangeError
from dbloader.images.info import read_facts
from dbloader.images.pillow import max_pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.conversion.parallel import Hold, MemoryBudget
    from dbloader.records.names import Array
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

NO_IMAGE, HASHED, BYTES_ONLY, UNREADABLE = range(4)

# Pixels of the smaller image that is decoded, at least: with half as many, an image and its copy of 0.9 of the size
# differed in 5 bits rather than 3.
_LEAST = 72
# Where spots differ by less, of 255, noise would decide.
_LEAST_CONTRAST = 16
# How often the brightness along a row or column turns from rising to falling. Below, an image is a gradient, like a
# clear sky or a blurred background, and all of those look alike: 2% of 5,000 images made 98% of the pairs that were
# wrong.
_LEAST_TURNS = 10


def compute_fingerprints(store: Store, progress: Callable[[int], object]) -> Fingerprints:
    """Read and decode all images of a store; ``progress`` is called with the number of records done."""
    return_large_blocks()

    sizes = store.column("nbytes")

    def work(part: slice, hold: Hold, budget: MemoryBudget) -> list[tuple[Any, str]]:
        if budget.closed:
            return []
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
    """Return records, or for damaged ones the error."""
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
    content = np.frombuffer(content_hash(image), "<u8")
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


def content_hash(image: Any) -> bytes:
    """Return 16 bytes that two images, files or arrays, share if they are the same bytes."""
    data = image if isinstance(image, bytes) else f"{image.dtype}{image.shape}".encode() + image.tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()


def _spots(image: Any, hold: Hold) -> Array:
    """Return an image as 9 x 9 gray spots: uint8, shape (9, 9), 0 to 255."""
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
    """Return the spots of a JPEG, decoded at 1/8 of its size or a little more; None if that is left to Pillow."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        if height * width > max_pixels():
            return None
        least = {"min_height": min(height, _LEAST), "min_width": min(width, _LEAST), "min_factor": 1}
        gray = simplejpeg.decode_jpeg(data, "GRAY", strict=True, **least)[:, :, 0]
    except (ValueError, KeyError):
        return None
    eighths = 8 * gray.shape[1] // width  # the last column and row may be less than a pixel
    box = (0, 0, width * eighths / 8, height * eighths / 8)
    return np.asarray(Image.fromarray(gray).resize((9, 9), Image.Resampling.BOX, box))
