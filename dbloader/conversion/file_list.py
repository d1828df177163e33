"""The entries of a source, kept in a temporary file while they are converted.

So the number of files is known before the first is read, any order can be taken, a resumed conversion can tell
whether it has the same source before it, and memory does not grow with the number of files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader.sampling.rng import STEP, mix
from dbloader.sources.base import Entry, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from dbloader.sources.base import Source

_OFFSET = np.dtype("<u8")


class FileList:
    """The entries and problems of a source, in its order; used in a ``with`` block, which removes the files.

    Args:
        source: Is iterated once.
        folder: Where the temporary files are made: about 150 bytes for each entry; None for the
            system's folder for such.
        progress: Called with the number of entries found so far, every thousand entries.

    Attributes:
        digest: SHA-256, hex, of all entries: the same for the same source.
    """

    def __init__(self, source: Source, folder: Path | None, progress: Callable[[int], object]) -> None:
        self._data = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - __exit__ closes it
        self._offsets = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - __exit__ closes it
        digest, end, count = hashlib.sha256(), 0, 0
        try:
            for item in source.entries():
                line = _encoded(item)
                digest.update(line)
                self._data.write(line)
                self._offsets.write(end.to_bytes(8, "little"))
                end += len(line)
                count += 1
                if count % 1000 == 0:
                    progress(count)
            self._offsets.write(end.to_bytes(8, "little"))
            self._data.flush()
            self._offsets.flush()
        except BaseException:
            self._close()
            raise
        self.digest = digest.hexdigest()
        self._length = count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Entry | Problem:
        """Return one item; any thread may ask."""
        return self.items([position])[0]

    def items(self, positions: list[int]) -> list[Entry | Problem]:
        """Return some items, those of neighboring positions with one reading; any thread may ask.

        Raises:
            IndexError: There is none at a position.
        """
        found: list[Entry | Problem] = []
        while len(found) < len(positions):
            first, count = positions[len(found)], 1
            while len(found) + count < len(positions) and positions[len(found) + count] == first + count:
                count += 1
            if not 0 <= first <= first + count <= len(self):
                raise IndexError(f"there are {len(self)} items, got positions from {first} to {first + count - 1}")
            found += self._neighbors(first, count)
        return found

    def _neighbors(self, first: int, count: int) -> Iterator[Entry | Problem]:
        packed = os.pread(self._offsets.fileno(), (count + 1) * _OFFSET.itemsize, first * _OFFSET.itemsize)
        offsets = np.frombuffer(packed, _OFFSET).tolist()
        data = os.pread(self._data.fileno(), offsets[-1] - offsets[0], offsets[0])
        for begin, end in pairwise(offsets):
            yield _unpacked(bson.decode(data[begin - offsets[0] : end - offsets[0]]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        self._data.close()
        self._offsets.close()


def permutation(length: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the order of a shuffled conversion: int64, shape (length,), each position once.

    Positions are sorted by the SplitMix64 of seed and position, so the order depends on no library's version.
    """
    key = np.frombuffer(hashlib.sha256(seed.to_bytes(8, "little", signed=True)).digest()[:8], "<u8")[0]
    mixed = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(STEP) + key
    mix(mixed)
    return np.argsort(mixed, kind="stable")


def _encoded(item: Entry | Problem) -> bytes:
    try:
        return bson.encode(_packed(item))
    except (bson.errors.BSONError, OverflowError, ValueError, RecursionError) as error:
        # Only what a listing gives for further fields can be of any kind.
        reason = "an integer has more than 64 bits" if isinstance(error, OverflowError) else str(error)
        return bson.encode(_packed(Problem(item.name, f"its fields cannot be stored: {reason}")))


def _packed(item: Entry | Problem) -> dict[str, Any]:
    if isinstance(item, Problem):
        return {"name": item.name, "reason": item.reason}
    return {"name": item.name, "path": item.path, "label": item.label, "fields": item.fields}


def _unpacked(document: dict[str, Any]) -> Entry | Problem:
    return Problem(**document) if "reason" in document else Entry(**document)
