"""``dbloader diff``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted
from dbloader.cli.isolated import isolated
from dbloader.cli.meter import Meter
from dbloader.cli.places import PlaceArgument
from dbloader.cli.text import say, say_json

DIFFERENT = 1
_NAMED = 10


@click.command(
    "diff",
    short_help="Compare two stores, record by record.",
    epilog="""\b
Exit status: 0 the stores are the same; 1 they differ; 2 they could not be compared.

\b
Examples:
  dbloader diff train.lmdb mongodb://server/images.train
  dbloader diff train.lmdb other.lmdb --pixels --output differences.jsonl""",
)
@click.argument("a", type=PlaceArgument())
@click.argument("b", type=PlaceArgument())
@click.option("--pixels", is_flag=True, help="Decode the images whose bytes differ, and compare their pixels.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(),
    help="Write the records of A that differ, or that B lacks, to the new file FILE, as JSON lines.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts and the first 1,000 differences as JSON.")
def diff_command(a: str, b: str, *, quiet: bool, as_json: bool, **options: Any) -> int:
    """Compare the stores A and B, each a file or a mongodb:// place, by index, name and content.

    Images are read only of records whose checksums differ. dbloader copy A NEW --drop FILE leaves out the records that
    --output has written. Records that are the same in both but at another index are counted, and not in FILE.
    """
    with Meter("Comparing", "records", quiet=quiet or as_json) as meter:
        report = isolated("checking.diff_stores.diff_stores", a, b, progress=meter.update, **options)
    same = report["classes"] and not report["moved"] and not report["differences"]
    if as_json:
        say_json(report, indent=2)
    elif not quiet:
        for letter, place, records in zip("AB", report["places"], report["records"]):  # noqa: B905
            say(f"{letter} {place}: {counted(records, 'record')}")
        for kind, number in {"same": report["same"], "moved": report["moved"], **report["differences"]}.items():
            say(f"  {kind:10}  {number:,}")
        if not report["classes"]:
            say("  classes     not the same")
        for row in report["first"][:_NAMED]:
            index = "" if row["index"] is None else f"record {row['index']}, "
            say(f"    {index}{row['name'] or 'without a name'}: {row['difference']}")
        if len(report["first"]) > _NAMED:
            say("    and more: --output writes all of A's, --json prints the first 1,000")
    return 0 if same else DIFFERENT
