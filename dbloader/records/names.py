"""Pack many texts, such as names: the UTF-8 of all texts in one block, and the offset of each text in the block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from typing_extensions import override

from dbloader.errors import DamagedRecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Array = np.ndarray[Any, Any]

_OFFSET = np.dtype("<u4")
_AT_ONCE = 4096  # number of names that are copied or decoded at a time


class Names(Sequence[str]):
    """Names of all records, packed. A name becomes a str only when it is read.

    Attributes:
        data: uint8, shape (bytes,), UTF-8 of the names one after the other.
        offsets: int64, shape (records + 1,), where each name begins in ``data``, then where the last name ends.
    """

    def __init__(self, data: Array, offsets: Array) -> None:
        self.data = data
        self.offsets = offsets

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    @override
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return _decode_name(bytes(self.data[self.offsets[position] : self.offsets[position + 1]]))

    def take(self, indices: Array) -> Names:
        """Return the names at some indices, in the order of the indices."""
        begins = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - begins
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        for start in range(0, len(lengths), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            first, last = offsets[start], offsets[min(start + _AT_ONCE, len(lengths))]
            # The byte data[p] comes from self.data[p + (old beginning of its name) - (new beginning of its name)].
            data[first:last] = self.data[
                np.arange(first, last) + np.repeat(begins[part] - offsets[:-1][part], lengths[part])
            ]
        return Names(data, offsets)

    @override
    def __len__(self) -> int:
        return len(self.offsets) - 1

    @override
    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(self))
            block = bytes(self.data[self.offsets[start] : self.offsets[stop]])
            bounds = (self.offsets[start : stop + 1] - self.offsets[start]).tolist()
            for begin, end in pairwise(bounds):
                yield _decode_name(block[begin:end])

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} names, packed>"


def pack_names(names: Sequence[bytes]) -> bytes:
    """Return a chunk of names: uint32 count, uint32 offsets (count + 1), then the UTF-8 of all names."""
    offsets = np.zeros(len(names) + 2, _OFFSET)
    offsets[0] = len(names)
    np.cumsum([len(name) for name in names], out=offsets[2:])
    return offsets.tobytes() + b"".join(names)


def are_names(chunk: bytes | memoryview, count: int) -> bool:
    """Return whether a chunk has the right layout for ``count`` packed names."""
    head = _OFFSET.itemsize * (count + 2)
    if len(chunk) < head or np.frombuffer(chunk, _OFFSET, 1)[0] != count:
        return False
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    ascending = offsets[0] == 0 and bool(np.all(offsets[1:] >= offsets[:-1]))
    return ascending and len(chunk) == head + int(offsets[-1])


def _unpack(chunk: bytes | memoryview) -> tuple[Array, Array]:
    """Return two views of a chunk of names: the UTF-8 bytes (uint8) and the offsets (uint32, count + 1)."""
    count = int(np.frombuffer(chunk, _OFFSET, 1)[0])
    offsets = np.frombuffer(chunk, _OFFSET, count + 1, _OFFSET.itemsize)
    return np.frombuffer(chunk, np.uint8, int(offsets[-1]), _OFFSET.itemsize * (count + 2)), offsets


def names_in(chunk: bytes | memoryview) -> list[bytes]:
    """Return the names in a chunk, as UTF-8."""
    data, offsets = _unpack(chunk)
    text = data.tobytes()
    return [text[begin:end] for begin, end in pairwise(offsets.tolist())]


def name_at(chunk: bytes | memoryview, position: int) -> str:
    """Return the name at a position of a chunk."""
    data, offsets = _unpack(chunk)
    return _decode_name(data[offsets[position] : offsets[position + 1]].tobytes())


def join_names(chunks: Iterable[bytes | memoryview], length: int) -> Names:
    """Return the names in all chunks, in new memory."""
    offsets = np.zeros(length + 1, np.int64)
    data, begin = bytearray(), 0
    for chunk in chunks:
        text, bounds = _unpack(chunk)
        offsets[begin + 1 : begin + len(bounds)] = bounds[1:].astype(np.int64) + len(data)
        data += text.data
        begin += len(bounds) - 1
    return Names(np.frombuffer(data, np.uint8), offsets)


def _decode_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordError(f"the name {name!r} is not UTF-8, but conversions write only UTF-8") from error
