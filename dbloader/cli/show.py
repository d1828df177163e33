"""``dbloader show``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from PIL import Image

from dbloader._describe import size
from dbloader.cli.text import can_draw, draw, say, say_json
from dbloader.errors import DamagedImageError
from dbloader.images.pillow import open_pillow, scale_to_8_bits, translate_errors
from dbloader.stores.open import open_store
from dbloader.viewing.record import describe_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.record import Record

_INDEX = re.compile("-?[0-9]{1,18}")
_LETTERS = 100  # of a value that is shown


@click.command(
    "show",
    short_help="Show one record of a store.",
    context_settings={"ignore_unknown_options": True},  # -1 is an index
    epilog="""\b
Examples:
  dbloader show train.lmdb 0
  dbloader show train.lmdb -1
  dbloader show train.lmdb cat/000.jpg --json | jq -r .format
  dbloader show train.lmdb 0 --output first.jpg""",
)
@click.argument("place", type=click.Path())
@click.argument("record")
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write the stored image to the new file FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show_command(place: str, record: str, *, output: str | None, as_json: bool) -> None:
    """Show a record of the store PLACE: its fields, its EXIF and its JPEG structure.

    RECORD is an index (-1 for the last record) or a name. A terminal with colors also shows the image, except with
    NO_COLOR=1.
    """
    with open_store(place) as store:
        found = store[int(record) if _INDEX.fullmatch(record) else store.find(record)]
        facts = describe_record(store, found)
    if output is not None:
        facts["output"] = _write(found, output)
    if as_json:
        say_json(facts, indent=2)
        return
    rows = [(title, value) for title, value in facts.items() if not isinstance(value, dict)]
    for part in ("fields", "exif", "jpeg"):
        rows += [(f"{part} {name}", value) for name, value in facts[part].items()]
    width = max(len(title) for title, _ in rows)
    for title, value in rows:
        text = str(value)
        if title == "jpeg segments":
            text = ", ".join(f"{segment['marker']} {size(segment['bytes'])}" for segment in value)
        elif len(text) > _LETTERS:
            text = f"{text[: _LETTERS - 1]}…"
        if value is not None:
            say(f"{title:<{width}}  {text}")
    if can_draw() and found.image is not None:
        for line in _half_blocks(found):
            draw(line)


def _write(record: Record, output: str) -> str:
    if not isinstance(record.image, bytes):
        raise click.ClickException(
            f"record {record.index} has no image file to write: its image is an array, or missing"
        )
    try:
        with Path(output).open("xb") as file:
            file.write(record.image)
    except FileExistsError as error:
        raise click.ClickException(f"{output} exists already: choose another FILE") from error
    except BaseException:  # the disk is full, or Ctrl-C
        Path(output).unlink(missing_ok=True)
        raise
    return output


def _half_blocks(record: Record) -> Iterator[str]:
    """Yield the lines of a picture in 24-bit color. Each character shows two pixels, one above the other."""
    data: Any = record.image
    try:
        with translate_errors("the image does not decode"):
            image = Image.fromarray(data) if isinstance(data, np.ndarray) else scale_to_8_bits(open_pillow(data))
            image = image.convert("RGB")
    except DamagedImageError as error:
        yield str(error)
        return
    columns, lines = shutil.get_terminal_size()
    image.thumbnail((columns, 2 * max(1, lines - 2)))
    pixels = np.asarray(image.crop((0, 0, image.width, image.height + image.height % 2)))
    for top, bottom in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        colors = (
            f"38;2;{above};48;2;{below}" for above, below in zip(map(_color, top), map(_color, bottom), strict=True)
        )
        yield "".join(f"\x1b[{color}m▀" for color in colors) + "\x1b[0m"


def _color(pixel: list[int]) -> str:
    return ";".join(map(str, pixel))
