"""``dbloader repair``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted
from dbloader.cli.isolated import isolated
from dbloader.cli.meter import Meter
from dbloader.cli.places import PlaceArgument
from dbloader.cli.text import say, say_json, say_next

SOME_REJECTED = 1


@click.command(
    "repair",
    short_help="Make a new store of what is whole in a store.",
    epilog="""\b
Exit status: 0 all records are in the new store; 1 some are in the quarantine folder; 2 it failed.

\b
Example:
  dbloader repair train.lmdb repaired.lmdb""",
)
@click.argument("place", type=PlaceArgument())
@click.argument("destination", type=PlaceArgument())
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION, or what a killed run left there.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def repair_command(place: str, destination: str, *, quiet: bool, as_json: bool, **options: Any) -> int:
    """Examine and decode every image of the store PLACE, and make at DESTINATION a store of those that are whole.

    A JPEG that lacks only its end marker gets it. Images beyond repair and damaged records are put into the folder
    DESTINATION.quarantine, with the reasons in its listing.jsonl. PLACE is not changed.
    """
    with Meter("Repairing", "records", quiet=quiet or as_json) as meter:
        report = isolated("checking.repair_store.repair_store", place, destination, progress=meter.update, **options)
    left_out = report["rejected"] + report["damaged"]
    if as_json:
        say_json(report, indent=2)
    elif not quiet:
        say(f"{report['place']}: {counted(report['records'], 'record')}; digest {report['digest']}")
        if report["repaired"]:
            say(f"  repaired  {report['repaired']:,}: only the end marker was missing")
        if left_out:
            say(f"  rejected  {left_out:,}: see {report['quarantine']}/listing.jsonl")
        say_next("Look at it", "dbloader", "view", report["place"])
    return SOME_REJECTED if left_out else 0
