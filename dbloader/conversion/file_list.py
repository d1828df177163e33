"""The list of a source's entries, in a file.

With a list, the number of files is known before the first file is read, any order is possible, and a resumed conversion
can check that its source is the same. Memory holds only the positions of the entries in the file. Each entry has a
checksum, since the list of a conversion in parts may be on a shared disk for days.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from typing import IO, TYPE_CHECKING, Any, Self

import bson
import numpy as np

from dbloader.errors import DamagedStoreError
from dbloader.records.columns import seal_chunk, unseal_chunk
from dbloader.records.document import UNREADABLE, open_sealed, seal
from dbloader.records.values import pack
from dbloader.sampling.rng import STEP, mix
from dbloader.sources.base import Entries, Entry, Problem, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sources.base import Source


class FileList:
    """The entries and problems of a source, in its order. Threads may read at the same time.

    A ``with`` block closes the file.

    Attributes:
        digest: SHA-256 of the list, hex; equal for equal sources. "" for the list of a part.
        tally: What the source left out, after ``of_source``.
    """

    def __init__(
        self,
        data: IO[bytes],
        begins: np.ndarray[Any, Any],
        ends: np.ndarray[Any, Any],
        digest: str = "",
        tally: Tally | None = None,
    ) -> None:
        self._data = data
        self._begins, self._ends = begins, ends  # bytes of the file
        self.digest = digest
        self.tally = tally or Tally()

    @classmethod
    def of_source(cls, source: Source, data: IO[bytes], progress: Callable[[int], object]) -> FileList:
        """Write the entries of a source into a new file, about 150 bytes each.

        ``progress`` is called after every thousand entries, with their number. The caller closes the file.
        """
        ends, digest = array("Q", [0]), hashlib.sha256()
        entries = Entries(source)
        for item in entries:
            line = _encoded(item)
            digest.update(line)
            sealed = seal_chunk("file", 0, line)
            data.write(sealed)
            ends.append(ends[-1] + len(sealed))
            if (len(ends) - 1) % 1000 == 0:
                progress(len(ends) - 1)
        data.flush()
        bounds = np.asarray(ends)
        return cls(data, bounds[:-1], bounds[1:], digest.hexdigest(), entries.tally)

    def order(self, seed: int | None) -> range | np.ndarray[Any, Any]:
        """Return all positions: with a seed in a random order, else in the order of the source."""
        return range(len(self)) if seed is None else permutation(len(self), seed)

    def spans(self) -> np.ndarray[Any, Any]:
        """Return the byte where each entry begins and ends in the file: int64, shape (len, 2)."""
        return np.stack((self._begins, self._ends), 1).astype("<i8", copy=False)

    def __len__(self) -> int:
        return len(self._ends)

    def packed(self) -> bytes:
        """Return all entries, with their positions, for `unpacked`."""
        lengths = (self._ends - self._begins).astype("<i8")
        return seal({"lengths": lengths.tobytes(), "entries": b"".join(map(self._sealed, range(len(self))))})

    @classmethod
    def unpacked(cls, packed: bytes, data: IO[bytes]) -> FileList:
        """Write packed entries into a new file, and return them; DamagedStoreError if they are damaged."""
        try:
            values = open_sealed(packed)
        except UNREADABLE as error:
            raise DamagedStoreError(f"the list of files is damaged: {error}; plan again (--overwrite)") from error
        data.write(values["entries"])
        data.flush()
        ends = np.cumsum(np.frombuffer(values["lengths"], "<i8"))
        return cls(data, np.concatenate(([0], ends[:-1])), ends)

    def _sealed(self, position: int) -> bytes:
        start, end = int(self._begins[position]), int(self._ends[position])
        return os.pread(self._data.fileno(), end - start, start)

    def __getitem__(self, position: int) -> Entry | Problem:
        line = unseal_chunk("file", 0, self._sealed(position))
        if line is None:
            start = int(self._begins[position])
            raise DamagedStoreError(f"the list of files is damaged at byte {start:,}: plan again (--overwrite)")
        document = bson.decode(line)
        if "reason" in document:
            return Problem(**document)
        document["location"] = tuple(document["location"])
        return Entry(**document)  # arrays stay packed: a wrong array rejects its file, and does not end the conversion

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._data.close()


def permutation(length: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the order of a shuffled conversion: int64, shape (length,), each position once.

    Positions are sorted by SplitMix64 (`dbloader.sampling.rng`) of seed and position, so the order does not depend on
    the version of a library.
    """
    key = np.frombuffer(hashlib.sha256(seed.to_bytes(8, "little", signed=True)).digest()[:8], "<u8")
    values = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(STEP) + key
    mix(values)
    return np.argsort(values, kind="stable")


def _encoded(item: Entry | Problem) -> bytes:
    try:
        if isinstance(item, Entry) and item.boxes_in is not None:  # boxes are arrays
            item = item._replace(fields={name: pack(name, value) for name, value in item.fields.items()})
        document = item._asdict()
        if not document.get("files", True):  # most have none
            del document["files"]
        return bson.encode(document)
    except (bson.errors.BSONError, OverflowError, ValueError, RecursionError) as error:
        # Only the further fields of a listing can have values of any kind.
        reason = "an integer has more than 64 bits" if isinstance(error, OverflowError) else str(error)
        return bson.encode(Problem(item.name, f"its fields cannot be stored: {reason}")._asdict())
