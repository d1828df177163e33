"""Convert a layout, compare the store with the right answer, and say in one word how it went."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, PngImagePlugin
from typing_extensions import override

from dbloader import LMDBDataset, write_store
from dbloader.cli import main
from dbloader.decoding import Crop, Decoder, decode_pil
from dbloader.errors import DBLoaderError, OptionError
from dbloader.records.record import Record
from tests.support.layouts.base import Answer, Box, Layout

RIGHT, WARNED, REFUSED = "right", "warned", "refused"
"""Good outcomes. A message names the problem and the remedy. If the remedy is an option, the option makes it right."""

WARNED_ONLY, REFUSED_ONLY = "warned, no remedy", "refused, no remedy"
"""A message names the true problem, but not the option or the remedy that makes it right."""

SILENT, USELESS, COUNTED, TEXT, NOISY = "SILENT", "refused, useless", "only counted", "kept as text", "noisy"
"""Bad outcomes: wrong without a message; refused, but the problem is not named; images left out and only counted;
numbers or flags stored as text; right, but with a needless warning."""


class _Whole(Decoder):
    """Decodes the whole image."""

    @override
    def choose_crop(self, random_numbers: Any, width: int, height: int) -> Crop:
        return Crop(0, 0, width, height)


class Ran(NamedTuple):
    """A command: its exit status, what the user reads about problems, and the differences from the right answer."""

    status: int
    problems: list[str]
    differences: list[str]
    is_counted: bool  # whether the report counts files that were left out


@dataclass
class Outcome:
    """The outcome of a layout: a word, the plain command, and the command with the option."""

    word: str
    plain: Ran
    with_option: Ran | None = None


def try_layout(layout: Layout, folder: Path) -> Outcome:
    """Make a layout in an empty folder, convert it by its plain command, and then by the command with the option."""
    answer = layout.make(folder)
    with contextlib.chdir(folder):
        plain = _write(answer) if answer.samples is not None else _convert(layout.commands, answer, "plain")
    flags = {*re.findall(r"(?<!\S)--[a-z-]+", layout.option)} - {*re.findall(r"--[a-z-]+", " ".join(layout.commands))}
    named = any(re.search("|".join([layout.says, *flags]), problem) for problem in plain.problems)
    if not plain.differences:
        word = SILENT if layout.must_say and not named else RIGHT
        return Outcome(NOISY if layout.kind == 0 and plain.problems else word, plain)
    if not named:
        return Outcome(_unnamed(plain), plain)
    decided = None
    with contextlib.chdir(folder):
        if layout.option:
            decided = _convert((*layout.commands[:-1], layout.option), answer, "decided")
    text = "\n".join(plain.problems)
    by_remedy = layout.remedy != "" and re.search(layout.remedy, text) is not None
    by_option = (
        decided is not None
        and not decided.differences
        and (all(flag in text for flag in flags) if flags else by_remedy)
    )
    words = (REFUSED, REFUSED_ONLY) if plain.status else (WARNED, WARNED_ONLY)
    return Outcome(words[0] if by_option or (by_remedy and decided is None) else words[1], plain, decided)


def _unnamed(ran: Ran) -> str:
    """Return the outcome of a wrong store, or of none, if no message names the problem."""
    if ran.status == 2 or (ran.status == 1 and all(line.startswith("missing") for line in ran.differences)):
        return USELESS
    if all(line.startswith("text:") for line in ran.differences):
        return TEXT
    if ran.is_counted and all(line.startswith(("missing", "no field")) for line in ran.differences):
        return COUNTED
    return SILENT


def _convert(commands: tuple[str, ...], answer: Answer, store: str) -> Ran:
    """Run commands after ``dbloader convert``. The word STORE is the destination; the last store is compared."""
    status, problems, place, counted = 0, list[str](), "", False
    for number, text in enumerate(commands):
        place = f"{store}.lmdb" if number == len(commands) - 1 else f"earlier-{number}.lmdb"
        arguments = [place if word == "STORE" else word for word in shlex.split(text)]
        status, stdout, stderr = run_command("convert", *arguments, "--json", "--overwrite")
        problems += [line for line in stderr.splitlines() if line.strip()]
        if status == 2:
            return Ran(status, problems, ["missing: there is no store"], is_counted=False)
        report = json.loads(stdout)
        problems += report["warnings"]
        counted = bool(report["skipped"] or report["hidden"])
        if report["report_file"]:
            events = [json.loads(line) for line in Path(report["report_file"]).read_text().splitlines()]
            problems += [f"{event['event']} {event['name']}: {event['reason']}" for event in events]
    return Ran(status, problems, [*differences(place, answer)], counted)


def _write(answer: Answer) -> Ran:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            write_store(answer.samples, "plain.lmdb")
        except (DBLoaderError, TypeError, ValueError) as error:
            return Ran(2, [str(error)], ["missing: there is no store"], is_counted=False)
    return Ran(0, [str(warning.message) for warning in caught], [*differences("plain.lmdb", answer)], is_counted=False)


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process. Return its exit status, stdout and stderr."""
    before, sys.argv = sys.argv, ["dbloader", *arguments]
    stdout, stderr = StringIO(), StringIO()
    status: object = None
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main()
    except SystemExit as stop:
        status = stop.code
    finally:
        sys.argv = before
    assert isinstance(status, int)
    return status, stdout.getvalue(), stderr.getvalue()


# --- comparing --------------------------------------------------------------------------------------------------------


def differences(place: str, answer: Answer) -> Iterator[str]:
    """Yield each difference between a store and the right answer, in one line."""
    with LMDBDataset(place, decode=None, fields=("image",)) as dataset:
        records, classes = dataset.records(range(len(dataset))), [*dataset.classes]
    targets = _targets(place, len(records), classes)
    if answer.classes is not None and classes != [*answer.classes]:
        yield f"classes are {classes}, not {[*answer.classes]}"
    keys: dict[bytes, list[str]] = {}
    for key, data in answer.images.items():
        keys.setdefault(data, []).append(key)
    seen = Counter[str]()
    for number, record in enumerate(records):
        name = record.name or ""
        data = record.image if isinstance(record.image, bytes) else b""
        same = keys.get(data, [*answer.images] if answer.samples is not None else [])
        ends = [key for key in same if _last(key) == _last(name)] or same
        if not ends:
            yield f"{name} is stored, with the label {targets[number]!r}: no such image is expected"
            continue
        key = next((key for key in ends if not seen[key]), ends[0])
        seen[key] += 1
        if seen[key] > 1:
            yield f"{key} is stored {seen[key]} times"
        elif answer.samples is None and _last(name) != _last(key):
            yield f"{key} is called {name}"
        if key in answer.labels:
            wanted, found = answer.labels[key], targets[number]
            if isinstance(wanted, int) and record.label is not None:  # compare the number, not the name
                found = record.label
            if not _same(found, wanted):
                yield f"{key} has the label {found!r}, not {wanted!r}"
        for column, value in answer.fields.get(key, {}).items():
            if column not in record.fields:
                yield f"no field {column!r} in {key}: it should be {value!r}"
            elif not _same(found := record.fields[column], value):
                is_text = "text: " * (isinstance(found, str) and found in (str(value), str(value).lower()))
                yield f"{is_text}{key} has {column} {found!r}, not {value!r}"
    if answer.decodes:
        yield from _pixel_differences(records, keys)
    if answer.boxes:
        yield from _box_differences(place, answer, keys)
    for key in answer.images:
        if not seen[key]:
            yield f"missing: {key}"


def _last(name: str) -> str:
    return unicodedata.normalize("NFC", name.replace("\\", "/").rpartition("/")[2])


def _same(found: Any, wanted: Any) -> bool:
    """Return whether two values are equal and of the same kind: 1, 1.0, True and "1" differ."""
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if hasattr(found, "item"):
        found = found.item()
    if isinstance(wanted, float) and isinstance(found, float):
        return abs(found - wanted) <= 1e-6 * max(1, abs(wanted)) or (found != found and wanted != wanted)
    if isinstance(wanted, list) and isinstance(found, (list, tuple)):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return isinstance(found, type(wanted)) and isinstance(wanted, type(found)) and bool(found == wanted)


def _targets(place: str, count: int, classes: list[str]) -> list[Any]:
    """Return the target of each sample (image, target) as training gets it. Classes are named."""
    try:
        dataset = LMDBDataset(place, decode=None)
    except OptionError:  # no record has a target
        return [None] * count
    with dataset:
        return [_named(dataset[number][1], classes) for number in range(count)]


def _named(target: Any, classes: list[str]) -> Any:
    if isinstance(target, int) and not isinstance(target, bool):
        return classes[target] if 0 <= target < len(classes) else target
    if hasattr(target, "tolist") and getattr(target, "ndim", 0) == 1 and len(target) == len(classes):
        return tuple(name for name, is_there in zip(classes, target.tolist(), strict=True) if is_there)
    return target.item() if hasattr(target, "item") else target


def _pixel_differences(records: list[Record], keys: dict[bytes, list[str]]) -> Iterator[str]:
    """Yield images that training cannot decode, stored or upright, or whose pixels or upright size are not Pillow's."""
    for record in records:
        data = record.image
        if not isinstance(data, bytes) or data not in keys:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of EXIF and of palettes with transparency
            with _lenient_pillow(), Image.open(BytesIO(data)) as image:
                upright = ImageOps.exif_transpose(image).size
                wanted = np.asarray(image.convert("RGB"), np.int16)
            try:
                found = np.asarray(decode_pil(data), np.int16)
                turned = _Whole(exif_transpose=True)(data)
            except (DBLoaderError, ValueError, OSError) as error:
                yield f"{record.name} cannot be decoded in training: {error}"
                continue
        if found.shape != wanted.shape or np.abs(found - wanted).max() > 2:  # libjpegs round differently
            yield f"{record.name} has other pixels than Pillow's"
        if (turned.shape[2], turned.shape[1]) != upright:
            yield f"{record.name} is {turned.shape[2]} x {turned.shape[1]} upright, and Pillow's is {upright}"


@contextlib.contextmanager
def _lenient_pillow() -> Iterator[None]:
    """Make Pillow open every PNG that browsers show: with wrong checksums of its metadata, and with long texts."""
    most, ImageFile.LOAD_TRUNCATED_IMAGES = PngImagePlugin.MAX_TEXT_CHUNK, True
    PngImagePlugin.MAX_TEXT_CHUNK = 2**30
    try:
        yield
    finally:
        PngImagePlugin.MAX_TEXT_CHUNK, ImageFile.LOAD_TRUNCATED_IMAGES = most, False


# --- boxes ------------------------------------------------------------------------------------------------------------


def _box_differences(place: str, answer: Answer, keys: dict[bytes, list[str]]) -> Iterator[str]:
    """Yield differences of boxes, as training gets them with and without ``exif_transpose``."""
    for upright in (True, False):
        try:
            yield from _boxes_in_frame(place, answer, keys, upright=upright)
        except OptionError:
            yield "no field 'boxes' in any record"
            return


def _boxes_in_frame(place: str, answer: Answer, keys: dict[bytes, list[str]], *, upright: bool) -> Iterator[str]:
    frame = "upright" if upright else "stored"
    decode = _Whole(exif_transpose=True) if upright else None
    with LMDBDataset(place, decode=decode, fields=("image", "boxes", "box_labels")) as dataset:
        for number in range(len(dataset)):
            record = dataset.record(number)
            key = next(iter(keys.get(record.image if isinstance(record.image, bytes) else b"", [])), "")
            if key not in answer.boxes:
                continue
            sample = dataset[number]
            orientation = orientation_of(answer.images[key])
            size = record.width or 0, record.height or 0
            wanted = [*answer.boxes[key]]
            if not upright:
                wanted = [stored_box(box, orientation, size) for box in wanted]
            labels = [dataset.classes[label] for label in np.asarray(sample["box_labels"]).tolist()]
            boxes = np.asarray(sample["boxes"]).tolist()
            found = [(label, *box) for label, box in zip(labels, boxes, strict=True)]
            pairs = zip(sorted(found), sorted(wanted), strict=False)
            if len(found) != len(wanted) or not all(_near(*pair) for pair in pairs):
                shown = [(label, *(round(value, 1) for value in box)) for label, *box in found]
                yield f"{key} has the boxes {shown} in the {frame} image, not {wanted}"


def _near(found: Any, wanted: Any) -> bool:
    return found[0] == wanted[0] and np.allclose(found[1:], wanted[1:], atol=0.51)


def orientation_of(data: bytes) -> int:
    """Return the EXIF orientation of an image file, by Pillow."""
    with Image.open(BytesIO(data)) as image:
        return int(image.getexif().get(0x0112, 1))


def stored_box(box: Box, orientation: int, size: tuple[int, int]) -> Box:
    """Return a box of the upright image in the pixels as they are stored; ``size`` is that of the stored pixels."""
    label, *corners = box
    width, height = size
    points = [(corners[0], corners[1]), (corners[2], corners[3])]
    # Where the upright point (x, y) lies in the stored image, from the meaning of EXIF's eight orientations.
    to_stored: dict[int, Callable[[float, float], tuple[float, float]]] = {
        1: lambda x, y: (x, y),
        2: lambda x, y: (width - x, y),
        3: lambda x, y: (width - x, height - y),
        4: lambda x, y: (x, height - y),
        5: lambda x, y: (y, x),
        6: lambda x, y: (y, height - x),
        7: lambda x, y: (width - y, height - x),
        8: lambda x, y: (width - y, x),
    }
    (left, top), (right, bottom) = (to_stored[orientation](*point) for point in points)
    return label, min(left, right), min(top, bottom), max(left, right), max(top, bottom)
