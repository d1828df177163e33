"""Image files that have more than 8 bits per value, values of unknown range, planes, or several frames."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, features

from tests.support.images import encoded, png_file

Array = np.ndarray[Any, Any]

# Every 16-bit value once, and the upper 8 bits of each value.
DEEP = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
UPPER = (DEEP >> 8).astype(np.uint8)


def png(pixels: Array, color: int, depth: int = 16) -> bytes:
    """Return a PNG of a color type that Pillow cannot write with 16 bits; pixels: (height, width, channels)."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return png_file(struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0), rows)


def tiff(
    pixels: bytes, width: int, height: int, bits: int, *, white: int = 1, kind: int = 1, samples: int = 1
) -> bytes:
    """Return an uncompressed little-endian TIFF; ``white`` is PhotometricInterpretation, ``kind`` SampleFormat."""
    tags = {256: width, 257: height, 259: 1, 262: white, 273: 8, 277: samples, 278: height, 279: len(pixels)}
    at = 8 + len(pixels)
    after = at + 2 + 12 * (len(tags) + 2) + 4
    directory, extra = struct.pack("<H", len(tags) + 2), b""
    for tag, value in sorted({**tags, 258: bits, 339: kind}.items()):
        if tag in (258, 339):
            values = struct.pack(f"<{samples}H", *[value] * samples)
            if samples > 2:
                directory += struct.pack("<HHII", tag, 3, samples, after + len(extra))
                extra += values
            else:
                directory += struct.pack("<HHI4s", tag, 3, samples, values)
        else:
            directory += struct.pack("<HHII", tag, 4, 1, value)
    return struct.pack("<2sHI", b"II", 42, at) + pixels + directory + bytes(4) + extra


def planar_tiff(planes: Array, *, white: int, compression: int = 1, fill: int = 1) -> bytes:
    """Return a TIFF with one strip for each plane; ``planes``: uint8 or uint16, (samples, height, width)."""
    samples, height, width = planes.shape
    strips = [zlib.compress(plane.tobytes()) if compression == 8 else plane.tobytes() for plane in planes]
    ends = np.cumsum([len(strip) for strip in strips]).tolist()
    tags = {
        256: [width], 257: [height], 258: [8 * planes.itemsize] * samples, 259: [compression], 262: [white],
        266: [fill], 273: [8, *(8 + end for end in ends[:-1])], 277: [samples], 278: [height],
        279: [len(strip) for strip in strips], 284: [2],
    }  # fmt: skip
    at = 8 + ends[-1]
    after, directory, extra = at + 2 + 12 * len(tags) + 4, struct.pack("<H", len(tags)), b""
    for tag, values in tags.items():
        packed = struct.pack(f"<{len(values)}I", *values)
        place = packed if len(values) == 1 else struct.pack("<I", after + len(extra))
        directory += struct.pack("<HHI", tag, 4, len(values)) + place
        extra += packed if len(values) > 1 else b""
    return struct.pack("<2sHI", b"II", 42, at) + b"".join(strips) + directory + bytes(4) + extra


def packed_12_bits(values: Array) -> bytes:
    """Pack 12-bit values, two values in three bytes."""
    bits = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 4:]
    return np.packbits(bits.reshape(-1)).tobytes()


def save(values: Array, image_format: str) -> bytes:
    return encoded(Image.fromarray(values), image_format)


GRAY = {
    "PNG": (save(DEEP, "PNG"), DEEP),
    "TIFF": (save(DEEP, "TIFF"), DEEP),
    "TIFF, big-endian": (
        struct.pack(">2sHI", b"MM", 42, 8 + DEEP.nbytes) + DEEP.astype(">u2").tobytes() + struct.pack(
            ">H" + "HHII" * 2 + "HHIHH" * 4 + "HHII" * 2 + "I", 8, 256, 4, 1, 256, 257, 4, 1, 256, 258, 3, 1, 16, 0,
            259, 3, 1, 1, 0, 262, 3, 1, 1, 0, 277, 3, 1, 1, 0, 273, 4, 1, 8, 279, 4, 1, DEEP.nbytes, 0,
        ), DEEP,
    ),
    "TIFF, white is 0": (tiff((~DEEP).tobytes(), 256, 256, 16, white=0), DEEP),
    "TIFF, 12 bits": (tiff(packed_12_bits(DEEP >> 4), 256, 256, 12), DEEP),
    "PGM": (save(DEEP, "PPM"), DEEP),
    "PGM, text": (b"P2 256 256 65535\n" + b" ".join(b"%d" % value for value in DEEP.reshape(-1).tolist()), DEEP),
    "PGM, 12 bits": (b"P5 256 256 4095\n" + (DEEP >> 4).astype(">u2").tobytes(), DEEP),
}  # fmt: skip
if features.check("jpg_2000"):
    GRAY["JPEG 2000"] = (save(DEEP, "JPEG2000"), DEEP)

COLORS = np.random.default_rng(0).integers(0, 2**16, (40, 30, 4)).astype(np.uint16)
COLORED = {
    "PNG, RGB": (png(COLORS[..., :3], 2), COLORS[..., :3]),
    "PNG, RGBA": (png(COLORS, 6), COLORS[..., :3]),
    "PNG, gray with alpha": (png(COLORS[..., :2], 4), COLORS[..., [0, 0, 0]]),
    "TIFF, RGB": (tiff(COLORS[..., :3].tobytes(), 30, 40, 16, white=2, samples=3), COLORS[..., :3]),
}
PLANES = np.ascontiguousarray(COLORS[..., :3].transpose(2, 0, 1))
BYTES = (PLANES >> 8).astype(np.uint8)
FLOATS = (DEEP / 65535).astype(np.float32)
UNKNOWN = {
    "TIFF, float": (save(FLOATS, "TIFF"), "32-bit float"),
    "TIFF, float, white is 0": (tiff(FLOATS.tobytes(), 256, 256, 32, white=0, kind=3), "32-bit float"),
    "PFM": (save(FLOATS, "PPM"), "32-bit float"),
    "TIFF, 32 bits": (tiff(DEEP.astype("<u4").tobytes(), 256, 256, 32), "32-bit"),
    "TIFF, 32 bits signed": (save(DEEP.astype(np.int32), "TIFF"), "32-bit signed"),
    "TIFF, 16 bits signed": (tiff(DEEP.tobytes(), 256, 256, 16, kind=2), "16-bit signed"),
    "TIFF, 8 bits signed": (tiff(UPPER.tobytes(), 256, 256, 8, kind=2), "8-bit signed"),
}


def moving(image_format: str) -> bytes:
    """Return a file with two frames."""
    first, second = (Image.new("RGB", (20, 10), color) for color in ("red", "blue"))
    options = {"lossless": True} if image_format == "WEBP" else {}
    return encoded(first, image_format, save_all=True, append_images=[second], **options)
