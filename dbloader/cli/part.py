"""``dbloader part``."""

from __future__ import annotations

import os
import re
from dataclasses import asdict

import click

from dbloader._describe import counted, size
from dbloader.cli.text import say, say_json
from dbloader.conversion.parts.part import convert_part

# The number of a task of Slurm, a Kubernetes Indexed Job, PBS and AWS Batch.
_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "PBS_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX")


@click.command(
    "part",
    short_help="Make one part of a planned conversion.",
    epilog="""\b
Examples:
  dbloader part train.lmdb 17""",
)
@click.argument("destination", type=click.Path())
@click.argument("number", type=int, required=False)
@click.option("--workers", metavar="N", type=int, default=1, show_default=True, help="Threads that read and check.")
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(),
    help="Local folder for the shard while it is made.  [default: TMPDIR]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def part_command(
    *, destination: str, number: int | None, workers: int, scratch: str | None, quiet: bool, as_json: bool
) -> None:
    """Make part NUMBER (from 0) of the conversion that dbloader plan has planned for DESTINATION.

    Without NUMBER, part takes the array index of Slurm, Kubernetes, PBS or AWS Batch. It keeps a part that is made
    already, and several attempts at once do no harm. So just run a failed task again.

    On Slurm: sbatch --array=0-511 --wrap 'dbloader part train.lmdb'
    """
    receipt = convert_part(destination, _task() if number is None else number, workers=workers, scratch=scratch)
    if as_json:
        say_json(asdict(receipt), indent=2)
    elif not quiet:
        rejected = f", {receipt.rejected:,} rejected" if receipt.rejected else ""
        say(f"part {receipt.part}: {counted(receipt.records, 'record')}, {size(receipt.nbytes)}{rejected}")


def _task() -> int:
    for variable in _VARIABLES:
        value = os.environ.get(variable, "")
        if re.fullmatch("[0-9]{1,9}", value):
            return int(value)
        if value:
            raise click.UsageError(f"{variable} must be the number of a part, got {value!r}")
    raise click.UsageError(f"give the NUMBER of a part, or run it as a task of an array ({', '.join(_VARIABLES)})")
