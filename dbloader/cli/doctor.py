"""``dbloader doctor``."""

from __future__ import annotations

from dataclasses import asdict

import click

from dbloader.cli.text import say, say_json
from dbloader.loading.doctor import examine_machine, examine_place

PROBLEM = 1


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
    "problem" that prevents most uses. doctor examines versions, memory, /dev/shm, open files, libjpeg-turbo and CUDA,
    and the file system, size or server of PLACE. It changes nothing, and measures no speed.
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
