"""From a name to its index: a hash table in the store, so that one name is one lookup at any size.

Names are hashed by CRC-32 and dealt by their leading bits into buckets of about 2,048. A bucket is the sorted
hashes followed by the records' indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader.columns import CHUNK, DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_BUCKET = 2048
# Sorting this many at a time takes about 150 MB; a larger store takes several passes over its hashes.
_PASS = 4 * 2**20

_HASH = np.dtype("<u4")
_INDEX = np.dtype("<u8")
Array = np.ndarray[Any, Any]


def bucket_bits(named: int) -> int:
    """Gives the number of leading bits that tell the buckets apart."""
    return max(0, (max(named, 1) - 1) // _BUCKET).bit_length()


def bucket_of(name_hash: int, bits: int) -> int:
    """Gives the number of the bucket in which a hash is."""
    return name_hash >> (32 - bits)


def build(hashes: Callable[[], Iterable[Array]], named: int) -> Iterator[tuple[int, bytes]]:
    """Yields each bucket that is not empty, in order, with its number.

    Args:
        hashes: Gives the name_hash column anew, in parts, in the order of the indices; 0 stands for no name.
        named: How many names there are.
    """
    bits = bucket_bits(named)
    buckets = 1 << bits
    step = max(1, buckets // max(1, -(-named // _PASS)))
    for first in range(0, buckets, step):
        low, high = first << (32 - bits), min(first + step, buckets) << (32 - bits)
        found, where = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        begin = 0
        for part in hashes():
            positions = np.flatnonzero((part >= max(low, 1)) & (part < high))
            found.append(part[positions])
            where.append(positions + begin)
            begin += len(part)
        all_found, all_where = np.concatenate(found), np.concatenate(where)
        order = np.argsort(all_found, kind="stable")  # stable: indices of one hash stay in order
        sorted_hashes, sorted_indices = all_found[order].astype(_HASH), all_where[order].astype(_INDEX)
        numbers = sorted_hashes.astype(np.uint64) >> np.uint64(32 - bits)
        for number in range(first, min(first + step, buckets)):
            begin, end = np.searchsorted(numbers, [number, number + 1]).tolist()
            if end > begin:
                yield number, sorted_hashes[begin:end].tobytes() + sorted_indices[begin:end].tobytes()


def hashes_in(stored_chunk: Callable[[int], Mapping[str, bytes]], length: int) -> Iterator[Array]:
    """Yields the name_hash column of so many records in parts, from a function that gives the columns of a chunk."""
    for number in range(-(-length // CHUNK)):
        yield np.frombuffer(stored_chunk(number)["name_hash"], DTYPES["name_hash"])


def candidates(bucket: bytes | memoryview, name_hash: int) -> list[int]:
    """Gives the indices, ascending, of the names in a bucket that have a hash."""
    count = len(bucket) // (_HASH.itemsize + _INDEX.itemsize)
    hashes = np.frombuffer(bucket, _HASH, count)
    begin, end = np.searchsorted(hashes, [name_hash, name_hash + 1]).tolist()
    indices = np.frombuffer(bucket, _INDEX, count, count * _HASH.itemsize)
    return indices[begin:end].tolist()  # type: ignore[no-any-return]
