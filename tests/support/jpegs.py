"""JPEGs encoded by Pillow, and JPEGs written code by code."""

import io
import random
import shutil
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

needs_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="jpegtran is not installed (libjpeg-turbo-progs)"
)

END = b"\xff\xd9"

# Huffman tables: DC differences of 0 to 2 bits, and the AC symbols of the tests.
DC = {0: "00", 1: "01", 2: "10"}
AC = {0x00: "0", 0x01: "10", 0xF0: "110", 0x31: "1110", 0x10: "11110", 0x02: "111110"}


def draw(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return a gradient with noise, in which no two blocks are alike."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    noise = np.random.default_rng(seed).normal(0, 25, (height, width, bands))
    ramp = np.linspace(0, 255, width)[None, :, None] + np.linspace(-60, 60, height)[:, None, None]
    pixels = np.clip(ramp + noise, 0, 255).astype(np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def encode(image: Image.Image, **options: Any) -> bytes:
    """Encode a picture with Pillow."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def turned_exif(orientation: int = 6) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def segment(code: int, payload: bytes) -> bytes:
    return bytes((0xFF, code)) + (len(payload) + 2).to_bytes(2, "big") + payload


def table(name: int, codes: dict[int, str]) -> bytes:
    counts = bytes(sum(len(code) == length for code in codes.values()) for length in range(1, 17))
    return bytes((name,)) + counts + bytes(codes)


def frame(process: int, width: int, height: int, *sampling: int, precision: int = 8) -> bytes:
    """Return tables and a frame header. Each ``sampling`` contains H and V of a component, such as 0x21."""
    head = bytes((precision,)) + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes((len(sampling),))
    components = b"".join(bytes((number, factors, 0)) for number, factors in enumerate(sampling, 1))
    return (
        b"\xff\xd8"
        + segment(0xDB, bytes(1) + bytes([1]) * 64)
        + segment(0xC4, table(0x00, DC) + table(0x10, AC))
        + segment(process, head + components)
    )


def scan(components: list[int], *intervals: str, band: tuple[int, int] = (0, 63), bits: int = 0) -> bytes:
    """Return a scan header and the bits of each restart interval; ``bits`` has Ah and Al, such as 0x21."""
    selectors = b"".join(bytes((component, 0x00)) for component in components)
    data = bytearray(segment(0xDA, bytes((len(components),)) + selectors + bytes((*band, bits))))
    for number, interval in enumerate(intervals):
        if number:
            data += bytes((0xFF, 0xD0 + (number - 1) % 8))
        padded = interval + "1" * (-len(interval) % 8)
        coded = bytes(int(padded[at : at + 8], 2) for at in range(0, len(padded), 8))
        data += coded.replace(b"\xff", b"\xff\x00")
    return bytes(data)


def thumbnail_exif(thumbnail: bytes) -> bytes:
    """Return an EXIF payload: a little-endian TIFF with an empty first directory, and a thumbnail in the second."""
    entries = struct.pack("<HHHIIHHIII", 2, 0x0201, 4, 1, 44, 0x0202, 4, 1, len(thumbnail), 0)
    return b"Exif\x00\x00" + struct.pack("<2sHIHI", b"II", 42, 8, 0, 14) + entries + thumbnail


def code_blocks(count: int, seed: int = 0) -> str:
    """Return the bits of blocks with random coefficients."""
    generator = random.Random(seed)
    bits = ""
    for _ in range(count):
        size = generator.randrange(3)
        bits += DC[size] + "".join(generator.choices("01", k=size))
        left = 63
        steps = {0x01: 1, 0x31: 4, 0xF0: 16}
        while left and generator.random() < 0.97:
            symbol = generator.choice([symbol for symbol, step in steps.items() if step <= left])
            bits += AC[symbol] + ("" if symbol == 0xF0 else generator.choice("01"))
            left -= steps[symbol]
        bits += AC[0x00] if left else ""
    return bits


def exotic(*sampling: int, blocks: int = 0) -> bytes:
    """Return a JPEG of 48 x 48 pixels with any sampling factors. The last ``blocks`` blocks are missing."""
    across, down = max(factors >> 4 for factors in sampling), max(factors & 15 for factors in sampling)
    units = -(-48 // (8 * across)) * -(-48 // (8 * down)) if len(sampling) > 1 else 36
    total = units * sum((factors >> 4) * (factors & 15) for factors in sampling)
    coded = scan(list(range(1, len(sampling) + 1)), code_blocks(total - blocks))
    return frame(0xC0, 48, 48, *sampling) + coded + END
