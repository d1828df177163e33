"""``dbloader show``, which prints one record of a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbloader._describe import cut
from dbloader.cli.text import say, say_json
from dbloader.ext.images.record_facts import record_facts
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from dbloader.records.record import Record

_INDEX = re.compile("-?[0-9]{1,18}")
_LETTERS = 100  # longer values are cut to this many characters


@click.command(
    "show",
    short_help="Show one record of a store.",
    context_settings={"ignore_unknown_options": True},  # otherwise click would parse the index -1 as an option
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

    RECORD is an index (-1 for the last record) or a name.
    """
    with open_store(place) as store:
        found = store[int(record) if _INDEX.fullmatch(record) else store.find(record)]
        facts = record_facts(store, found)
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
        if value is not None:
            say(f"{title:<{width}}  {cut(str(value), _LETTERS)}")


def _write(record: Record, output: str) -> str:
    if not isinstance(record.image, bytes):
        raise click.ClickException(
            f"record {record.index} has no image file to write, because its image is an array or missing"
        )
    try:
        with Path(output).open("xb") as file:
            file.write(record.image)
    except FileExistsError as error:
        raise click.ClickException(f"{output} exists already: choose another FILE") from error
    except (OSError, KeyboardInterrupt):  # for example if the disk is full, or at Ctrl-C
        Path(output).unlink(missing_ok=True)
        raise
    return output
