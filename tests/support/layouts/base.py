"""A layout: files as people have them, the command that they type, and the right answer."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.images import encoded, plant
from tests.support.jpegs import draw, turned_exif

Label = str | int | float | tuple[str, ...] | None
Box = tuple[str, float, float, float, float]


@dataclass
class Answer:
    """What a layout means.

    Attributes:
        images: The bytes of every image that the store must have, by a name. Its last part is also the last part of the
            record's name. No other image may be in the store.
        labels: The target of each image: the name of its class, or a tuple of names; an int that is the label itself; a
            float; None for no label.
        classes: All classes in the order of their numbers; None if only the names count.
        boxes: (class, x_min, y_min, x_max, y_max) of each object, in pixels of the upright image.
        fields: Values that each record has, with their types. Further fields are allowed.
        decodes: Whether every image must decode in training, to Pillow's pixels.
        samples: Samples for ``write_store``, for layouts that are a Dataset and not files.
    """

    images: Mapping[str, bytes]
    labels: Mapping[str, Label] = field(default_factory=dict)
    classes: Sequence[str] | None = None
    boxes: Mapping[str, Sequence[Box]] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    decodes: bool = False
    samples: Any = None


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        name: Its name in tables and in the ids of tests.
        kind: The kind of mistake that it invites. Ordinary layouts have the kind 0.
        make: Writes the files into an empty folder, and returns the right answer.
        commands: The plainest commands that a user types after ``dbloader convert``. The last store is compared.
        option: The last command with the option that makes the store right; "" without one. A message must name it.
        says: A pattern. A warning, a reason in the report or an error that matches it names the true problem.
        remedy: A pattern that the message must match if no option helps; "" if only a right store is good.
        must_say: Whether a right store needs a warning too.
        tool: The program of the user that defines the answer; "" if the answer is written by hand.
    """

    name: str
    kind: int
    make: Callable[[Path], Answer]
    commands: tuple[str, ...]
    option: str
    says: str
    remedy: str
    must_say: bool
    tool: str


LAYOUTS: dict[str, Layout] = {}


def layout(
    kind: int,
    name: str,
    *commands: str,
    option: str = "",
    says: str = "(?!)",
    remedy: str = "",
    must_say: bool = False,
    tool: str = "",
) -> Callable[[Callable[[Path], Answer]], Callable[[Path], Answer]]:
    """Add a function that makes a layout to LAYOUTS."""

    def add(make: Callable[[Path], Answer]) -> Callable[[Path], Answer]:
        key = f"{kind:02} {name}"
        assert key not in LAYOUTS, key
        LAYOUTS[key] = Layout(key, kind, make, commands, option, says, remedy, must_say, tool)
        return make

    return add


def ordinary(
    name: str, *commands: str, tool: str = ""
) -> Callable[[Callable[[Path], Answer]], Callable[[Path], Answer]]:
    """Add a layout that must convert without a warning."""
    return layout(0, name, *commands, tool=tool)


# --- images -----------------------------------------------------------------------------------------------------------


def photo(seed: int, width: int = 40, height: int = 30, orientation: int = 1, **options: Any) -> bytes:
    """Return a small JPEG; no two seeds give the same. The size is of the stored pixels."""
    if orientation != 1:
        options["exif"] = turned_exif(orientation)
    return encoded(draw(width, height, seed=seed), "JPEG", **options)


def png(seed: int, width: int = 24, height: int = 18, mode: str = "RGB", **options: Any) -> bytes:
    return encoded(draw(width, height, mode, seed), "PNG", **options)


def mask(seed: int, width: int = 40, height: int = 30) -> bytes:
    """Return a gray PNG with a few classes as its values."""
    values = np.zeros((height, width), np.uint8)
    values[2 : 8 + seed, 3:20] = 1 + seed % 3
    return encoded(Image.fromarray(values), "PNG")


def photos(names: Iterable[str], first: int = 0, **options: Any) -> dict[str, bytes]:
    """Return a photo, or a PNG, for each name."""
    make = {"png": png}
    return {
        name: make.get(name.rpartition(".")[2].lower(), photo)(seed, **options)
        for seed, name in enumerate(names, first)
    }


def by_folder(names: Iterable[str], depth: int = 0) -> dict[str, str]:
    """Return the label of each path: a folder in it."""
    return {name: name.split("/")[depth] for name in names}


# --- files ------------------------------------------------------------------------------------------------------------


def write(at: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    plant(at, {name: text.encode(encoding)})
    return at / name


def write_csv(at: Path, name: str, rows: Iterable[Sequence[object]], separator: str = ",", end: str = "\n") -> Path:
    stream = io.StringIO()
    csv.writer(stream, delimiter=separator, lineterminator=end).writerows(rows)
    return write(at, name, stream.getvalue())


def write_jsonl(at: Path, name: str, rows: Iterable[Mapping[str, object]]) -> Path:
    return write(at, name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return path


def rename_in_zip(path: Path, names: Mapping[bytes, bytes]) -> Path:
    """Replace names in a zip by other bytes of the same length, and clear the flag for UTF-8."""
    data = path.read_bytes()
    for old, new in names.items():
        assert len(old) == len(new)
        data = data.replace(old, new)
    changed = bytearray(data)
    for magic, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.find(magic)
        while start >= 0:
            changed[start + at + 1] &= ~8
            start = data.find(magic, start + 1)
    path.write_bytes(changed)
    return path


def write_tar(path: Path, files: Mapping[str, bytes | str], mode: str = "w") -> Path:
    """Write a tar. A text is the name of an earlier member, to which a hard link is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as out:  # type: ignore[call-overload]  # the mode is a str
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.LNKTYPE, data
                out.addfile(member)
            else:
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return path


def voc(filename: str, size: tuple[int, int], objects: Iterable[Box]) -> str:
    """Return an XML file of VOC. Its boxes are in VOC's pixels, counted from 1."""
    items = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x + 1:g}</xmin><ymin>{y + 1:g}</ymin><xmax>{right:g}</xmax>"
        f"<ymax>{bottom:g}</ymax></bndbox></object>"
        for name, x, y, right, bottom in objects
    )
    width, height = size
    return (
        f"<annotation><filename>{filename}</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>{items}</annotation>"
    )


def coco(images: Iterable[tuple[str, int, int]], boxes: Mapping[str, Sequence[Box]], classes: Sequence[str]) -> str:
    """Return a COCO file: (name, width, height) of each image, and its boxes."""
    listed: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, width, height) in enumerate(images, 1):
        listed.append({"id": number, "file_name": name, "width": width, "height": height})
        for label, x, y, right, bottom in boxes.get(name, ()):
            box = [x, y, right - x, bottom - y]
            facts = {"category_id": classes.index(label) + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": number, **facts})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    return json.dumps({"images": listed, "annotations": annotations, "categories": categories})
