"""Read the chunks of a PNG, count its pixels, and remove metadata that would make Pillow refuse the image."""

from __future__ import annotations

import struct
import zlib

# Chunks that do not change the pixels that Pillow decodes (https://www.w3.org/TR/png-3/#11Ancillary-chunks).
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_METADATA = (*_TEXTS, b"iCCP", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"pHYs", b"tIME", b"bKGD", b"hIST", b"sPLT")
_CHUNK = struct.Struct(">I4s")  # length and kind (https://www.w3.org/TR/png-3/#5Chunk-layout)
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type (https://www.w3.org/TR/png-3/#11IHDR)
# The first column and row of each pass of an interlaced PNG, and the steps to the next ones (.../png-3/#8Interlace).
_PASSES = (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)

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


def lacks_pixels(data: bytes | bytearray | memoryview) -> bool:
    """Return whether the compressed data of a PNG end before its last pixel. Pillow decodes such pixels as 0."""
    width, height, depth, color, _, _, is_interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    missing = 0
    for left, top, across, down in _PASSES if is_interlaced else ((0, 0, 1, 1),):
        columns, rows = len(range(left, width, across)), len(range(top, height, down))
        missing += rows * (1 + (columns * depth * _CHANNELS[color] + 7) // 8) if columns else 0
    inflate = zlib.decompressobj()
    for kind, start, end in read_chunks(data):
        packed = bytes(data[start + 8 : end - 4]) if kind == b"IDAT" else b""
        while packed and missing > 0:
            missing -= len(inflate.decompress(packed, _MOST_BYTES))
            packed = inflate.unconsumed_tail
    return missing > 0


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
