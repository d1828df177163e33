"""``dbloader info`` and ``show``, which print what is in a store."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbloader._describe import counted, cut
from dbloader._extensions import extension
from dbloader._places import is_remote
from dbloader.cli.text import say, say_json
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record

_CLASSES = 20  # the terminal shows at most this many classes
_INDEX = re.compile("-?[0-9]{1,18}")
_LETTERS = 100  # longer values are cut to this many characters


@click.command(
    "info",
    short_help="Show what is in a store.",
    epilog="""\b
Examples:
  dbloader info train.lmdb
  dbloader info train.lmdb --json | jq -r .digest
  dbloader info train.lmdb --report""",
)
@click.argument("place", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--report",
    is_flag=True,
    help="Print the report of the conversion, one JSON line for each event, such as a rejected or repaired file.",
)
def info_command(place: str, *, as_json: bool, report: bool) -> None:
    """Show the number of records and images, the classes and the origin of the store PLACE.

    info reads only the store's header, which takes milliseconds for a store of any size. PLACE may be in object
    storage: s3://bucket/train.lmdb.
    """
    if as_json and report:
        raise click.UsageError("--json and --report cannot be combined: choose one.")
    if is_remote(place) and not report:
        table = extension("read_remote_table")(place)
        manifest, shards = table.manifest, len(table.shards)
    else:
        with open_store(place) as store:
            if report:
                for event in store.events():
                    say_json(event)
                return
            place, manifest, shards = store.place, store.manifest, len(store.shard_lengths or ())
    if as_json:
        say_json({"place": place, **asdict(manifest)}, indent=2)
    else:
        _print(place, manifest, shards)


def _print(place: str, manifest: Manifest, shards: int) -> None:
    say(f"{place}: dbloader store, format version {manifest.version}")
    facts = {**manifest.in_words(), "Shards": f"{shards:,}" if shards else ""}
    del facts["Classes"]  # _print_classes prints the classes
    for title, text in facts.items():
        if text:
            say(f"  {title.lower():<10}  {text}")
    for line in manifest.understood:
        say(f"  understood  {line}")
    _print_classes(manifest)


def _print_classes(manifest: Manifest) -> None:
    counts = manifest.label_counts
    if counts is None:
        say("  labels      more than 65,536 different labels")
        return
    names = manifest.classes or [str(label) for label in counts]
    numbers = [counts.get(label, 0) for label in range(len(names))] if manifest.classes else list(counts.values())
    if not numbers:
        return
    title = "classes" if manifest.classes else "labels"
    least, most = min(numbers), max(numbers)
    each = counted(most, "record") + " each" if least == most else f"{least:,} to {most:,} records"
    say(f"  {title:<10}  {len(names):,}, with {each}")
    width = len(f"{most:,}")
    for name, number in zip(names[:_CLASSES], numbers, strict=False):
        say(f"    {number:>{width},}  {name}")
    if len(names) > _CLASSES:
        say(f"    and {len(names) - _CLASSES:,} more (--json gives all)")


@click.command(
    "show",
    short_help="Show one record of a store.",
    context_settings={"ignore_unknown_options": True},  # otherwise click takes the index -1 for an option
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
    from dbloader.stores.describe import record_facts  # imports Pillow, which info does not need

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
    except (OSError, KeyboardInterrupt):  # for example a full disk, or Ctrl-C
        Path(output).unlink(missing_ok=True)
        raise
    return output
