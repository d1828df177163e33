"""``dbloader verify``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted
from dbloader.cli.isolated import isolated
from dbloader.cli.text import complain, say, say_json
from dbloader.conversion.meter import Meter
from dbloader.errors import DamagedRecordError, DamagedStoreError, DBLoaderError

FOUND = 1  # exit status if there are problems
_NAMED = 10


@click.command(
    "verify",
    short_help="Check that a store is complete and undamaged.",
    epilog="""\b
Exit status: 0 no problem, 1 problems, 2 the store cannot be opened.

\b
Examples:
  dbloader verify train.lmdb
  dbloader verify train.lmdb --decode
  dbloader verify train.lmdb --against imagefolder/
  dbloader verify train.lmdb --against mongodb://server/images.train""",
)
@click.argument("place", type=click.Path())
@click.option("--decode", is_flag=True, help="Also decode every image.")
@click.option(
    "--against",
    metavar="SOURCE",
    type=click.Path(),
    help="Also compare the store with SOURCE: the files that it was converted from, or another store.",
)
@click.option("--listing", metavar="FILE", type=click.Path(), help="Listing of SOURCE.")
@click.option(
    "--output", "-o", metavar="FILE", type=click.Path(), help="Write all problems to the new file FILE, as JSON lines."
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts and the first 1,000 problems as JSON.")
def verify_command(place: str, *, quiet: bool, as_json: bool, **options: Any) -> int:
    """Compare each record of the store PLACE with its checksum, and the whole store with its digest.

    verify prints the first ten problems. --output writes all problems to a file for dbloader copy --drop.
    """
    problems: list[dict[str, Any]] = []
    try:
        with Meter("Verifying", "records", quiet=quiet or as_json) as meter:
            report = isolated(
                "checking.verify_store.verify_store",
                place,
                found=problems.append,
                progress=lambda title, done, total: meter.update(done, total, title=title),
                **options,
            )
    except DBLoaderError as error:
        _complain(problems)
        if not isinstance(error, (DamagedRecordError, DamagedStoreError)):
            raise
        complain(str(error))
        return FOUND
    count = sum(report["problems"].values())
    if as_json:
        say_json(report, indent=2)
        return FOUND if count else 0
    _complain(problems)
    if not quiet:
        for note in report["notes"]:
            say(f"Note: {note}", err=True)
    compared = "".join(f"; {number:,} {kind}" for kind, number in report["compared"].items())
    what = f"{report['place']}: {counted(report['records'], 'record')}"
    if count > 1 or (count and compared):
        found = ", ".join(f"{number:,} {kind}" for kind, number in report["problems"].items())
        complain(f"{what}, {counted(count, 'problem')} ({found}){compared}")
    elif not count and not quiet:
        say(f"{what}, all undamaged{compared}; digest {report['digest']}")
    return FOUND if count else 0


def _complain(problems: list[dict[str, Any]]) -> None:
    for problem in problems[:_NAMED]:
        complain(problem["reason"])
