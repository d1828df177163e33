"""``dbloader plan``, ``part``, ``parts`` and ``publish``, which convert on several machines."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from dbloader._describe import counted, size
from dbloader.cli.convert import conversion_options, pop_image_format, print_report
from dbloader.cli.text import say, say_json
from dbloader.conversion.meter import Meter
from dbloader.conversion.settings import Settings
from dbloader.ext.cli.source_options import pop_listing
from dbloader.ext.parts.make_plan import plan_parts
from dbloader.ext.parts.part import convert_part, left_folders, list_parts, slurm_ranges
from dbloader.ext.parts.publish import publish

SOME_MISSING = 1


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
def plan_command(
    *,
    source: str,
    destination: str,
    shards: int,
    append: bool,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the list of files in SOURCE, and the options, to the folder DESTINATION.partial.

    After that, machines make the parts in any order with dbloader part. dbloader publish joins them into the store.
    All machines must see SOURCE and DESTINATION at the same places, on a shared file system or in object storage
    (s3://, gs://, az://). Making the same plan again keeps finished parts. Only dbloader publish changes a store at
    DESTINATION: it adds to the store after plan --append, or replaces the store with publish --overwrite.
    """
    images = pop_image_format(options)
    options["listing"] = pop_listing(options)
    with Meter("Looking for images", "images", quiet=quiet or as_json) as meter:
        plan = plan_parts(
            Settings(source=source, images=images, **options),
            destination,
            shards,
            append=append,
            overwrite=overwrite,
            progress=lambda count: meter.update(count, None),
        )
    if as_json:
        say_json({"place": destination, "folder": plan.where, "parts": plan.parts, "files": plan.files}, indent=2)
    elif not quiet:
        say(f"{plan.where}: {counted(plan.files, 'file')} in {counted(plan.parts, 'part')}, 0 to {plan.parts - 1}")
        for line in plan.left_out.get("understood", ()):
            say(f"  {line}")
        for warning in plan.left_out["warnings"]:
            say(f"Warning: {warning}", err=True)


@click.command(
    "part",
    short_help="Make one part of a planned conversion.",
    epilog="""\b
Examples:
  dbloader part train.lmdb 17""",
)
@click.argument("destination", type=click.Path())
@click.argument("number", type=int)
@click.option("--workers", metavar="N", type=int, default=1, show_default=True, help="Number of threads.")
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(),
    help="Local folder for the shard while it is made.  [default: TMPDIR]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def part_command(
    *, destination: str, number: int, workers: int, scratch: str | None, quiet: bool, as_json: bool
) -> None:
    """Make part NUMBER (from 0) of the conversion that dbloader plan has planned for DESTINATION.

    After a failure, run the same command again. A finished part is not made again, and several machines may make the
    same part at the same time.

    On Slurm: sbatch --array=0-511 --wrap 'dbloader part train.lmdb $SLURM_ARRAY_TASK_ID'
    """
    receipt = convert_part(destination, number, workers=workers, scratch=scratch)
    if as_json:
        say_json(asdict(receipt), indent=2)
    elif not quiet:
        rejected = f", {receipt.rejected:,} rejected" if receipt.rejected else ""
        say(f"part {receipt.part}: {counted(receipt.records, 'record')}, {size(receipt.nbytes)}{rejected}")


@click.command(
    "parts",
    short_help="List the missing parts of a planned conversion.",
    epilog="""\b
Exit status: 0 all parts are made, 1 some are missing, 2 error.

\b
Examples:
  dbloader parts train.lmdb""",
)
@click.argument("destination", type=click.Path())
@click.option("--missing", "only_missing", is_flag=True, help="Print only the missing numbers, such as 3,17,40-42.")
@click.option("--made", is_flag=True, help="Also print size, duration and machine of each finished part.")
@click.option("--scratch", metavar="FOLDER", type=click.Path(), help="Scratch folder of the parts.  [default: TMPDIR]")
@click.option("--clean", is_flag=True, help="Remove what killed processes left in this machine's scratch folder.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def parts_command(
    *, destination: str, only_missing: bool, made: bool, scratch: str | None, clean: bool, as_json: bool
) -> int:
    """List the finished, begun and missing parts of the conversion planned for DESTINATION.

    Slurm accepts the output of --missing: sbatch --array=$(dbloader parts train.lmdb --missing)
    """
    left = left_folders(scratch, remove=clean)
    plan, receipts, missing, attempts = list_parts(destination)
    if as_json:
        facts = {"parts": plan.parts, "made": [one.part for one in receipts], "receipts": [*map(asdict, receipts)]}
        making = [attempt._asdict() for attempt in attempts]
        say_json({**facts, "missing": missing, "making": making, "left": [str(path) for path, _ in left]}, indent=2)
    elif only_missing:
        say(slurm_ranges(missing))
    else:
        rest = f"; missing {slurm_ranges(missing)}" if missing else ""
        say(f"{plan.where}: {len(receipts):,} of {plan.parts:,} parts are made{rest}")
        for attempt in attempts:
            minutes = max(0, time.time() - attempt.since) / 60
            say(f"  part {attempt.part}: begun {minutes:.0f} min ago on {attempt.host}; still running, or killed")
        for receipt in receipts if made else ():
            what = f"{counted(receipt.records, 'record')}, {size(receipt.nbytes)}"
            say(f"  part {receipt.part}: {what}, made in {receipt.seconds:,.0f} s by {receipt.host}")
        for path, nbytes in left:
            say(f"  {path}: {size(nbytes)} of a killed part {'were removed' if clean else '(--clean removes them)'}")
    return SOME_MISSING if missing else 0


@click.command(
    "publish",
    short_help="Join the parts of a planned conversion into a store.",
    epilog="""\b
Exit status: 0 every file is stored, 1 some were rejected, 2 error.

\b
Examples:
  dbloader publish train.lmdb""",
)
@click.argument("destination", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace the store of shards at DESTINATION.")
@click.option(
    "--keep-hours",
    metavar="H",
    type=float,
    help="In object storage: remove objects that no store has used for H hours.  [default: 24]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def publish_command(*, destination: str, overwrite: bool, keep_hours: float | None, quiet: bool, as_json: bool) -> int:
    """Join the parts of the conversion planned for DESTINATION into the store DESTINATION, in one step.

    If a part is missing, damaged or from another plan, publish fails and changes nothing. If the store was already
    published, for example because a job runs again, publish warns about it and succeeds.
    """
    report = publish(destination, overwrite=overwrite, keep_hours=keep_hours)
    return print_report(report, quiet=quiet, as_json=as_json, rated=False)
