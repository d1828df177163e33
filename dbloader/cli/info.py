"""``dbloader info``, which prints what is in a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dbloader._describe import counted
from dbloader._extensions import extension
from dbloader._places import is_remote
from dbloader.cli.text import say, say_json
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from dbloader.records.manifest import Manifest

_CLASSES = 20  # the terminal shows at most this many classes


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
    """Show the records, images, classes and source of the store PLACE.

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
    for line in manifest.understood or ["not recorded, see verify --against"] * ("path" in manifest.source):
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
