"""``dbloader plan``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted
from dbloader.cli.conversion_options import conversion_options, pop_image_format
from dbloader.cli.meter import Meter
from dbloader.cli.text import say, say_json
from dbloader.conversion.parts.make_plan import plan_conversion


@click.command(
    "plan",
    short_help="Plan a conversion for several machines.",
    epilog="""\b
Examples:
  dbloader plan imagenet/train/ train.lmdb --shards 512
  dbloader plan imagenet/train/ train.lmdb --shards 512 --short-side 256 --quality 90""",
)
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option("--shards", metavar="N", type=int, required=True, help="Number of parts; each makes one shard.")
@conversion_options
@click.option("--append", is_flag=True, help="Add the images to the folder of shards DESTINATION.")
@click.option("--overwrite", is_flag=True, help="Replace another plan and its parts.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan_command(*, source: str, destination: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the list of files in SOURCE, and the options, to the folder DESTINATION.partial.

    Then machines that see both folders make the parts in any order with dbloader part, and dbloader publish makes the
    store of them. Making the same plan again keeps finished parts. Without --append, a store at DESTINATION stays until
    dbloader publish --overwrite replaces it.
    """
    images = pop_image_format(options)
    with Meter("Looking for images", "images", quiet=quiet or as_json) as meter:
        plan = plan_conversion(
            source, destination, images=images, progress=lambda count: meter.update(count, None), **options
        )
    if as_json:
        say_json({"place": destination, "folder": str(plan.folder), "parts": plan.parts, "files": plan.files}, indent=2)
    elif not quiet:
        say(f"{plan.folder}: {counted(plan.files, 'file')} in {counted(plan.parts, 'part')}, 0 to {plan.parts - 1}")
        for warning in plan.left_out["warnings"]:
            say(f"Warning: {warning}", err=True)
