"""``dbloader duplicates``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted
from dbloader.cli.isolated import isolated
from dbloader.cli.text import complain, say, say_json
from dbloader.conversion.meter import Meter
from dbloader.ext.duplicates.search import DISTANCE, MAX_DISTANCE

FOUND = 1  # exit status if there are duplicates
_NAMED = 10


@click.command(
    "duplicates",
    short_help="Find duplicate images in a store, or in two stores.",
    epilog="""\b
Exit status: 0 no duplicates, 1 duplicates or unreadable images, 2 a store cannot be opened.

\b
Examples:
  dbloader duplicates train.lmdb
  dbloader duplicates train.lmdb --output twice.jsonl
  dbloader duplicates val.lmdb train.lmdb --output leaks.jsonl""",
)
@click.argument("place", type=click.Path())
@click.argument("other", type=click.Path(), required=False)
@click.option(
    "--distance",
    metavar="BITS",
    type=click.IntRange(0, MAX_DISTANCE),
    default=DISTANCE,
    show_default=True,
    help="Pictures are similar if at most this many of the 128 bits of their fingerprints differ.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(),
    help="Write all duplicates, without the originals, to the new file FILE, as JSON lines.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts and the first 1,000 duplicates as JSON.")
def duplicates_command(place: str, other: str | None, *, quiet: bool, as_json: bool, **options: Any) -> int:
    """Find duplicate images in the store PLACE, or images of the store OTHER that are also in PLACE.

    Duplicates have the same bytes or look alike, as a smaller copy does. The file PLACE.duplicates keeps a
    fingerprint of each image, so the next search decodes no images. For MongoDB, this file is
    DATABASE.COLLECTION.duplicates in the current folder. To remove duplicates, list them with --output FILE, then run
    dbloader copy PLACE NEW --drop FILE. With two stores, copy OTHER instead of PLACE.
    """
    with Meter("Looking", "records", quiet=quiet or as_json) as meter:
        report = isolated(
            "ext.duplicates.search.find_duplicates",
            place,
            *([other] if other else []),
            progress=lambda title, done, total: meter.update(done, total, title=title),
            **options,
        )
    status = FOUND if report["first"] or report["unreadable"] else 0
    if as_json:
        say_json(report, indent=2)
        return status
    for problem in report["problems"][:_NAMED]:
        complain(problem)
    if report["unreadable"] > _NAMED:
        complain(f"in total, {report['unreadable']:,} records have no picture that can be decoded and compared")
    if quiet:
        return status
    for one, records in zip(report["places"], report["records"]):  # noqa: B905
        say(f"{one}: {counted(records, 'record')}")
    for kind, number in {"same": 0, "near": 0, **report["duplicates"]}.items():
        say(f"  {kind:6}  {number:,}")
    if report["bytes_only"]:
        images = counted(report["bytes_only"], "image")
        say(f"  {images} without a pattern (one color, a gradient): compared only byte for byte")
    for row in report["first"][:_NAMED]:
        one = f"{row['index']} ({row['name'] or 'without a name'})"
        of = f"{row['of']} ({row['of_name'] or 'without a name'})"
        is_same = row["difference"] == "same"
        say(f"    {one}: same as {of}" if is_same else f"    {one}: near {of}, {counted(row['bits'], 'bit')} apart")
    if len(report["first"]) > _NAMED:
        say("    and more: --output writes all, dbloader view shows them")
    return status
