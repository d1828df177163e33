"""``dbloader parts``."""

from __future__ import annotations

import click

from dbloader.cli.text import say, say_json
from dbloader.conversion.parts.part import list_parts, slurm_ranges

SOME_MISSING = 1


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
@click.option("--json", "as_json", is_flag=True, help="Print both as JSON.")
def parts_command(*, destination: str, only_missing: bool, as_json: bool) -> int:
    """List which parts of the conversion planned for DESTINATION are made, and which are missing.

    On Slurm: sbatch --array=$(dbloader parts train.lmdb --missing) --wrap 'dbloader part train.lmdb'
    """
    plan, receipts, missing = list_parts(destination)
    if as_json:
        say_json({"parts": plan.parts, "made": [receipt.part for receipt in receipts], "missing": missing}, indent=2)
    elif only_missing:
        say(slurm_ranges(missing))
    else:
        rest = f"; missing {slurm_ranges(missing)}" if missing else ""
        say(f"{plan.folder}: {len(receipts):,} of {plan.parts:,} parts are made{rest}")
    return SOME_MISSING if missing else 0
