"""``dbloader bench`` and ``doctor``, which examine what this machine can do."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import click

from dbloader._describe import counted, size
from dbloader.cli.text import say, say_json
from dbloader.conversion.meter import Meter
from dbloader.ext.measuring.doctor import examine_machine, examine_place

PROBLEM = 1


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[int] | None:
    if value is None:
        return None
    if not re.fullmatch("[0-9]{1,9}(, *[0-9]{1,9})*", value):
        raise click.BadParameter(f"must be numbers separated by commas, such as 1,2,4, got {value!r}")
    return [int(part) for part in value.split(",")]


@click.command(
    "bench",
    short_help="Measure how fast this machine reads images from a store.",
    epilog="""\b
Examples:
  dbloader bench train.lmdb
  dbloader bench train.lmdb --workers 1,2 --size 384
  dbloader bench mongodb://server/images.train --json | jq -r .verdict""",
)
@click.argument("place", type=click.Path())
@click.option("--batch-size", metavar="N", type=int, default=64, show_default=True, help="Images in a batch.")
@click.option("--size", metavar="PX", type=int, default=224, show_default=True, help="Height and width of the crops.")
@click.option(
    "--workers",
    metavar="N,N,...",
    callback=_numbers,
    help="Numbers of workers to try.  [default: 1, half the number of CPUs, the number of CPUs]",
)
@click.option("--seconds", metavar="S", type=float, default=2, show_default=True, help="Duration of each measurement.")
@click.option(
    "--rounds", metavar="N", type=int, default=3, show_default=True, help="Measure N times, and show medians."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench_command(*, as_json: bool, **options: Any) -> None:
    """Measure how fast this machine reads images from the store PLACE, and find what limits the speed.

    bench reads records, decodes them, and loads batches of random crops with worker threads and processes. It does not
    train. Other running programs lower the result. To see whether your own training waits for data, print the stats()
    of its loader.
    """
    try:
        from dbloader.ext.measuring.benchmark import measure  # imports torch, which takes over a second
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException("bench needs torch, which is not installed here: pip install torch") from error

    with Meter("Measuring", "runs", quiet=as_json) as meter:
        result = measure(**options, progress=meter.update)
    if as_json:
        say_json(asdict(result), indent=2)
        return
    say(f"{result.place}: {counted(result.images, 'image')} of {size(result.image_bytes)} on average")
    say(f"{counted(result.cpus, 'CPU')}; random crops of {options['size']} x {options['size']} pixels")
    say("")
    width = max(len(one.name) for one in result.measurements)
    say(f"  {'':<{width}}  {'images/s':>10}  {'least - greatest':>19}")
    for one in result.measurements:
        spread = f"{min(one.rounds):,.0f} - {max(one.rounds):,.0f}"
        say(f"  {one.name:<{width}}  {one.images_per_s:>10,.0f}  {spread:>19}")
    say("")
    say(result.verdict)


@click.command(
    "doctor",
    short_help="Find what stops or slows training on this machine.",
    epilog="""\b
Exit status: 0 no problem, 1 a problem, 2 PLACE cannot be examined.

\b
Examples:
  dbloader doctor train.lmdb
  dbloader doctor mongodb://server/images.train
  dbloader doctor train.lmdb --json | jq -r .state""",
)
@click.argument("place", type=click.Path(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(place: str | None, *, as_json: bool) -> int:
    """Find what stops or slows training on this machine or from the store PLACE, and what to do about it.

    Each line is one finding: "ok"; a "warning" about something that slows training or prevents some uses; or a
    "problem" that prevents most uses. doctor examines versions, /dev/shm, CUDA, and PLACE: its file system and size,
    or its MongoDB server. doctor changes nothing, and measures no speed.
    """
    findings = examine_machine()
    if place is not None:
        findings += examine_place(place)
    states = {finding.state for finding in findings}
    state = next(state for state in ("problem", "warning", "ok") if state in states)
    if as_json:
        say_json({"state": state, "findings": [asdict(finding) for finding in findings]}, indent=2)
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            consequence = f" - {finding.consequence}" if finding.consequence else ""
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            say(f"{finding.state:<7}  {finding.name:<{width}}  {finding.found}{consequence}{remedy}")
    return PROBLEM if state == "problem" else 0
