"""Print the result of a dry run, and the files that a source leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader.cli.meter import Meter
from dbloader.cli.text import say, say_json
from dbloader.conversion.dry_run import dry_run

if TYPE_CHECKING:
    from dbloader.conversion.dry_run import DryRun
    from dbloader.conversion.report import Report

_NAMED = 10  # kinds of files, problems and classes on the terminal


def show_dry_run(source: dict[str, Any], *, quiet: bool, as_json: bool) -> int:
    """Print what would be converted; return the number of rejected files."""
    with Meter("Looking for images", "images", quiet=quiet or as_json) as meter:
        found = dry_run(**source, progress=lambda count: meter.update(count, None))
    if as_json:
        say_json(found._asdict(), indent=2)
    elif not quiet:
        _print(found)
    return found.rejected


def _print(found: DryRun) -> None:
    boxes = f" with {found.boxes:,} boxes" if found.boxes else ""
    say(f"{found.source}: {counted(found.files, 'file')}{boxes} would be read and converted; nothing is written")
    labels = [*(found.labels or {}).items()]
    for name, count in labels[:_NAMED]:
        say(f"  {count:>10,}  {name}")
    if len(labels) > _NAMED:
        say(f"  and {len(labels) - _NAMED:,} more classes (--json gives all)")
    if found.rejected:
        say(f"  rejected  {found.rejected:,}, before any file is read")
    for problem in found.problems[:_NAMED]:
        say(f"    {problem['name']}: {problem['reason']}")
    print_left_out(found)


def print_left_out(found: DryRun | Report) -> None:
    """Print the files that a source leaves out, and its warnings."""
    if found.skipped:
        kinds = [f"{extension or 'no extension'} {count:,}" for extension, count in found.skipped.items()]
        kinds[_NAMED:] = [f"{len(kinds) - _NAMED:,} more"] if len(kinds) > _NAMED else []
        say(f"  left out  {counted(sum(found.skipped.values()), 'file')} of other kinds ({', '.join(kinds)})")
    if found.hidden:
        say(f"  left out  {counted(found.hidden, 'hidden file')} (names that begin with a dot)")
    for warning in found.warnings:
        say(f"Warning: {warning}", err=True)
