"""Small image folders with many kinds of files, and the command line in a process of its own."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from PIL import Image

from dbloader.cli import group
from tests.support import jpegs

WAIT_S = 60.0  # for processes that end by themselves; only failing tests wait this long
NOBODY = 65534

END = b"\xff\xd9"
STORED, REPAIRED, DAMAGED, BAD, UNSEEN = "stored", "repaired", "damaged", "bad", "unseen"


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def photo(seed: int = 0, width: int = 40, height: int = 30, **options: Any) -> bytes:
    return jpegs.encode(jpegs.draw(width, height, seed=seed), **options)


def scene(seed: int) -> Image.Image:
    """Return a picture that differs everywhere from pictures of other seeds, as photographs do."""
    spots = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), np.uint8)
    return Image.fromarray(spots).resize((240, 180), Image.Resampling.BICUBIC)


def picture(image_format: str, seed: int = 0) -> bytes:
    return encoded(jpegs.draw(24, 18, seed=seed), image_format)


def large_png(width: int, height: int) -> bytes:
    """Return a PNG with a large size in its header, and hardly any data."""
    return png_file(struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"")


def png_file(header: bytes, rows: bytes) -> bytes:
    """Return a PNG from the content of its IHDR chunk, and its rows before compression."""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def plant(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def plant_photos(root: Path, count: int, classes: tuple[str, ...] = ("cat", "dog"), **options: Any) -> Path:
    """Make a folder of intact photographs, no two alike."""
    return plant(root, {f"{classes[n % len(classes)]}/{n:04}.jpg": photo(n, **options) for n in range(count)})


def plant_coco(root: Path) -> Path:
    """Make three photographs, the first of a dog and a cat, with annotations as COCO, VOC and YOLO write them."""
    for folder in ("train2017", "images/train"):
        plant(root, {f"{folder}/{n:04}.jpg": photo(n, 64, 48) for n in range(3)})
    boxes = [{"id": 1, "image_id": 0, "category_id": 18, "bbox": [8, 12, 32, 24], "area": 700.5, "iscrowd": 0}]
    boxes += [{"id": 2, "image_id": 0, "category_id": 17, "bbox": [0, 0, 16, 48], "area": 500, "iscrowd": 0}]
    images = [{"id": n, "file_name": f"{n:04}.jpg", "width": 64, "height": 48} for n in range(3)]
    categories = [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}]
    whole = json.dumps({"images": images, "annotations": boxes, "categories": categories})
    box = "<xmin>9</xmin><ymin>13</ymin><xmax>40</xmax><ymax>36</ymax>"
    dog = f"<object><name>dog</name><bndbox>{box}</bndbox></object>"
    xml = f"<annotation><filename>0000.jpg</filename>{dog}</annotation>"
    labels = {"data.yaml": b"names: [cat, dog]\n", "labels/train/0000.txt": b"1 0.375 0.5 0.5 0.5\n"}
    files = {"annotations/instances_train2017.json": whole.encode(), "Annotations/0000.xml": xml.encode(), **labels}
    return plant(root, files)


def multi_picture(seed: int = 0) -> bytes:
    """Return an MPO, two JPEGs in one file, as stereo cameras write."""
    first, second = (jpegs.draw(24, 18, seed=seed + n) for n in range(2))
    return encoded(first, "MPO", save_all=True, append_images=[second])


def _link_to(target: str) -> Callable[[Path, int], None]:
    return lambda path, _: path.symlink_to(target)


def _pipe(path: Path, _: int) -> None:
    os.mkfifo(path)


def _socket(path: Path, _: int) -> None:
    # The address of a socket has at most 108 bytes, fewer than some temporary paths.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _file(make: Callable[[int], bytes]) -> Callable[[Path, int], None]:
    def plant_one(path: Path, seed: int) -> None:
        path.write_bytes(make(seed))

    return plant_one


class Kind(NamedTuple):
    """A kind of file, and its outcomes: by default, with ``check="structure"``, and with ``check="none"``."""

    suffix: str
    plant: Callable[[Path, int], None]
    decode: str
    structure: str
    none: str
    reason: str = ""  # a part of the reason in the report

    def outcome(self, check: str) -> str:
        return {"decode": self.decode, "structure": self.structure, "none": self.none}[check]


KINDS = {
    "photo": Kind(".jpg", _file(photo), STORED, STORED, STORED),
    "gray": Kind(".JPEG", _file(lambda seed: jpegs.encode(jpegs.draw(24, 18, "L", seed))), STORED, STORED, STORED),
    "cmyk": Kind(".jpg", _file(lambda seed: jpegs.encode(jpegs.draw(24, 18, "CMYK", seed))), STORED, STORED, STORED),
    "progressive": Kind(".jpg", _file(lambda seed: photo(seed, progressive=True)), STORED, STORED, STORED),
    "png": Kind(".png", _file(lambda seed: picture("PNG", seed)), STORED, STORED, STORED),
    "bmp": Kind(".bmp", _file(lambda seed: picture("BMP", seed)), STORED, STORED, STORED),
    "ppm": Kind(".ppm", _file(lambda seed: picture("PPM", seed)), STORED, STORED, STORED),
    "tiff": Kind(".tif", _file(lambda seed: picture("TIFF", seed)), STORED, STORED, STORED),
    "webp": Kind(".webp", _file(lambda seed: picture("WEBP", seed)), STORED, STORED, STORED),
    "png called jpg": Kind(".jpg", _file(lambda seed: picture("PNG", seed)), STORED, STORED, STORED),
    "multi-picture": Kind(".jpg", _file(multi_picture), STORED, STORED, STORED),
    "trailing bytes": Kind(".jpg", _file(lambda seed: photo(seed) + bytes(64)), STORED, STORED, STORED),
    "no end marker": Kind(".jpg", _file(lambda seed: photo(seed)[:-2]), REPAIRED, REPAIRED, STORED, "end marker"),
    "half": Kind(".jpg", _file(lambda seed: _half(photo(seed))), DAMAGED, DAMAGED, STORED, "more than its end"),
    "half, closed": Kind(
        ".jpg", _file(lambda seed: _half(photo(seed)) + END), DAMAGED, STORED, STORED, "premature end of data"
    ),
    "half a png": Kind(".png", _file(lambda seed: _half(picture("PNG", seed))), DAMAGED, STORED, STORED, "truncated"),
    "text": Kind(".jpg", _file(lambda seed: b"<html>404 Not Found %d</html>" % seed), BAD, BAD, STORED, "b'<htm'"),
    "empty": Kind(".png", _file(lambda _: b""), BAD, BAD, STORED, "is empty"),
    "pipe": Kind(".jpg", _pipe, BAD, BAD, BAD, "not a regular file"),
    "socket": Kind(".jpg", _socket, BAD, BAD, BAD, "cannot be read"),
    "dangling link": Kind(".jpg", _link_to("nowhere"), BAD, BAD, BAD, "No such file"),
    "loop of a link": Kind(".jpg", lambda path, _: path.symlink_to(path.name), BAD, BAD, BAD, "symbolic links"),
    "folder": Kind(".jpg", lambda path, _: path.mkdir(), UNSEEN, UNSEEN, UNSEEN),
    "another extension": Kind(".txt", _file(lambda _: b"a caption"), UNSEEN, UNSEEN, UNSEEN),
}


def _half(data: bytes) -> bytes:
    """Truncate an image within its pixel data."""
    return data[: len(data) * 3 // 4]


def plant_kinds(root: Path, *kinds: str) -> dict[str, str]:
    """Make one file of each kind and a photo, in two classes. Return the kinds by file name."""
    plant(root, {"cat/first.jpg": photo(999)})
    (root / "dog").mkdir(exist_ok=True)
    planted = {"cat/first.jpg": "photo"}
    for number, kind in enumerate(kinds):
        name = f"{('cat', 'dog')[number % 2]}/{number:03}{KINDS[kind].suffix}"
        KINDS[kind].plant(root / name, number)
        planted[name] = kind
    return planted


class Outcome(NamedTuple):
    status: int
    stdout: str
    stderr: str


def subcommands() -> dict[str, click.Command]:
    """Return the commands of the command line by name."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in commands.items() if command is not None}


def command(*arguments: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    return [sys.executable, "-m", "dbloader", *arguments]


def run(*arguments: str | os.PathLike[str], **options: Any) -> Outcome:
    """Run the real command line in a process of its own."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, errors="replace", timeout=WAIT_S, check=False, **options
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(arguments: list[Any], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process that ends with the block."""
    with subprocess.Popen(arguments, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> bool:
    """Wait until a condition is true, and check every millisecond; return False if the process ends before."""
    for _ in range(int(WAIT_S * 1000)):
        if condition():
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.001)
            return condition()
    raise AssertionError(f"waited for {WAIT_S} s")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's permission to read everything, in all threads."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
