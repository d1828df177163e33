"""``dbloader publish``."""

from __future__ import annotations

from dataclasses import asdict

import click

from dbloader.cli.convert import SOME_REJECTED, print_report
from dbloader.cli.text import say_json
from dbloader.conversion.parts.publish import publish


@click.command(
    "publish",
    short_help="Make a store of the parts of a planned conversion.",
    epilog="""\b
Exit status: 0 every file is stored, 1 some were rejected, 2 error.

\b
Examples:
  dbloader publish train.lmdb""",
)
@click.argument("destination", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace the store of shards at DESTINATION.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def publish_command(*, destination: str, overwrite: bool, quiet: bool, as_json: bool) -> int:
    """Make the store DESTINATION of the parts of its planned conversion, in one step.

    If a part is missing, damaged or from another plan, publish fails and changes nothing. If the store was published
    already, as when a job runs again, publish prints so and succeeds.
    """
    report = publish(destination, overwrite=overwrite)
    if as_json:
        say_json(asdict(report), indent=2)
    elif not quiet:
        print_report(report, rated=False)
    return SOME_REJECTED if report.rejected else 0
