"""Read the chunks of a PNG, and remove metadata that would make Pillow refuse the image."""

from __future__ import annotations

import struct
import zlib

# Chunks that do not change the pixels that Pillow decodes (https://www.w3.org/TR/png-3/#11Ancillary-chunks).
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_METADATA = (*_TEXTS, b"iCCP", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"pHYs", b"tIME", b"bKGD", b"hIST", b"sPLT")
_CHUNK = struct.Struct(">I4s")  # length and kind (https://www.w3.org/TR/png-3/#5Chunk-layout)

_MOST_BYTES = 2**20  # Pillow's limit for a decompressed text or profile, PngImagePlugin.MAX_TEXT_CHUNK
_LEAST_BYTES = _MOST_BYTES // 1032  # zlib compresses to no less than 1/1032


def read_chunks(data: bytes | bytearray | memoryview, at: int = 8) -> list[tuple[bytes, int, int]]:
    """Return (kind, begin, end) of each chunk up to IEND. The last chunk may end beyond the data."""
    kind, chunks = b"", []
    while kind != b"IEND" and at + 12 <= len(data):
        length, kind = _CHUNK.unpack_from(data, at)
        chunks.append((kind, at, at + length + 12))
        at += length + 12
    return chunks


def without_refused(data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """Return a PNG without the metadata that make Pillow refuse it; ``data`` itself if it has no such metadata.

    Pillow refuses a text or profile of more than 1 MiB after decompression, and metadata with a wrong CRC.
    """
    kept, first = [], 0
    for kind, start, end in read_chunks(data):
        if kind in _METADATA and end <= len(data) and _is_refused(kind, bytes(data[start + 4 : end])):
            kept.append(data[first:start])
            first = end
    return b"".join((*kept, data[first:])) if kept else data


def _is_refused(kind: bytes, chunk: bytes) -> bool:
    """Return whether Pillow refuses a chunk. ``chunk`` has the chunk's bytes after its length."""
    body = chunk[4:-4]
    if zlib.crc32(chunk[:-4]) != int.from_bytes(chunk[-4:], "big"):
        # Not only the CRC may be wrong, but also the length. Then this chunk contains others, which must be kept.
        return not any(other in body for other in (b"IDAT", b"PLTE", b"tRNS", b"IEND"))
    if len(body) < _LEAST_BYTES or kind not in (b"zTXt", b"iTXt", b"iCCP"):
        return False
    _, _, packed = body.partition(b"\0")  # ``packed``: the compression method, then the compressed data
    if kind == b"iTXt":
        if packed[:1] != b"\x01":  # not compressed
            return False
        packed = b"\0" + packed[2:].split(b"\0", 2)[-1]
    try:
        return len(zlib.decompressobj().decompress(packed[1:], _MOST_BYTES + 1)) > _MOST_BYTES
    except zlib.error:
        return False  # Pillow ignores such a chunk
