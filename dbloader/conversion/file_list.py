"""Keep the list of a source's entries in a file.

With the list, a conversion has the number of files before it reads the first file, and can read files in random order.
A resumed conversion compares the SHA-256 of its list with the SHA-256 of the interrupted conversion's list, to check
that the source is unchanged. Only the positions of the entries in the file are in memory. Each entry has a checksum,
because the list may be on a shared disk for days, and may be damaged there.
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
from dbloader.records.values import pack
from dbloader.sampling.rng import STEP, scramble
from dbloader.sources.base import Entries, Entry, Problem, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.sources.base import Source


_CRC_BYTES = 4  # at the end of each entry


class FileList:
    """The entries and problems of a source, in order. Threads may share a list. A ``with`` block closes the file.

    Attributes:
        digest: SHA-256 of the list, hex; equal for equal sources. "" if ``of_span`` made the list.
        tally: What the source left out. Empty if ``of_span`` made the list.
    """

    def __init__(self, data: IO[bytes], bounds: array[int], digest: str = "", tally: Tally | None = None) -> None:
        self._data = data
        self._bounds = bounds  # where entries begin and end in the file, in bytes
        self.digest = digest
        self.tally = tally or Tally()

    @classmethod
    def of_source(cls, source: Source, data: IO[bytes], progress: Callable[[int], object]) -> FileList:
        """Write the entries of a source into a new file. An entry takes about 150 bytes.

        After every thousand entries, ``progress`` is called with the number of entries. The caller closes the file.
        """
        ends, digest = array("Q", [0]), hashlib.sha256()
        entries = Entries(source.entries())
        for item in entries:
            line = _encoded(item)
            digest.update(line)
            sealed = seal_chunk("file", 0, line)
            data.write(sealed)
            ends.append(ends[-1] + len(sealed))
            if (len(ends) - 1) % 1000 == 0:
                progress(len(ends) - 1)
        data.flush()
        return cls(data, ends, digest.hexdigest(), entries.tally)

    def order(self, seed: int | None) -> range | np.ndarray[Any, Any]:
        """Return all positions, in a random order given by ``seed``, or in the source's order if ``seed`` is None."""
        return range(len(self)) if seed is None else permutation(len(self), seed)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @classmethod
    def of_span(cls, data: IO[bytes], begin: int, end: int) -> FileList:
        """Return the list of the entries between two offsets of a file. Reading a damaged entry raises an error."""
        ends = array("Q", [begin])
        while ends[-1] < end:  # each entry begins with its length, because it is a BSON document
            data.seek(ends[-1])
            ends.append(min(ends[-1] + int.from_bytes(data.read(4), "little") + _CRC_BYTES, end))
        return cls(data, ends)

    def sealed(self, position: int) -> bytes:
        """Return the bytes of an entry in the file."""
        start, end = self._bounds[position], self._bounds[position + 1]
        return os.pread(self._data.fileno(), end - start, start)

    def __iter__(self) -> Iterator[Entry | Problem]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, position: int) -> Entry | Problem:
        line = unseal_chunk("file", 0, self.sealed(position))
        if line is None:
            at = self._bounds[position]
            raise DamagedStoreError(
                f"the list of files is damaged at byte {at:,}: plan again (dbloader plan --overwrite)"
            )
        document = bson.decode(line)
        if "reason" in document:
            return Problem(**document)
        document["location"] = tuple(document["location"])
        return Entry(**document)  # `convert_file` unpacks the boxes, because an error there rejects only the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._data.close()


def permutation(length: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the order of files in a shuffled conversion: int64, shape (length,), each position once.

    Positions are sorted by a hash of seed and position, SplitMix64 (`dbloader.sampling.rng`). So the order does not
    depend on the version of a library.
    """
    key = np.frombuffer(hashlib.sha256(seed.to_bytes(8, "little", signed=True)).digest()[:8], "<u8")
    values = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(STEP) + key
    scramble(values)
    return np.argsort(values, kind="stable")


def _encoded(item: Entry | Problem) -> bytes:
    try:
        if isinstance(item, Entry) and item.boxes_in is not None:  # BSON cannot store the arrays of boxes
            item = item._replace(fields={name: pack(name, value) for name, value in item.fields.items()})
        document = item._asdict()
        if not document.get("files", True):  # most entries have no further files
            del document["files"]
        return bson.encode(document)
    except (bson.errors.BSONError, OverflowError, ValueError, RecursionError) as error:
        # Only extra fields can cause these errors: a listing may give them values of any type.
        reason = "an integer has more than 64 bits" if isinstance(error, OverflowError) else str(error)
        return bson.encode(Problem(item.name, f"its fields cannot be stored: {reason}")._asdict())
