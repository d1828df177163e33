"""``dbloader convert --dry-run``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dbloader._describe import counted
from dbloader.cli.convert import NAMED, SOME_REJECTED, print_left_out
from dbloader.cli.text import say, say_json
from dbloader.conversion.meter import Meter
from dbloader.conversion.settings import Settings
from dbloader.ext.sources.dry_run import dry_run


def print_dry_run(options: dict[str, Any], *, quiet: bool, as_json: bool) -> int:
    """Print what ``convert`` with these options would convert, and return the exit status."""
    source = {field.name: options[field.name] for field in fields(Settings) if field.name in options}
    with Meter("Looking for images", "images", quiet=quiet or as_json) as meter:
        found = dry_run(**source, progress=lambda count: meter.update(count, None))
    if as_json:
        say_json(found._asdict(), indent=2)
    elif not quiet:
        boxes = f" with {found.boxes:,} boxes" if found.boxes else ""
        say(f"{found.source}: {counted(found.files, 'file')}{boxes} would be read and converted; nothing is written")
        for line in found.understood:
            say(f"  {line}")
        labels = [*(found.labels or {}).items()]
        for name, count in labels[:NAMED]:
            say(f"  {count:>10,}  {name}")
        if len(labels) > NAMED:
            say(f"  and {len(labels) - NAMED:,} more classes (--json gives all)")
        if found.rejected:
            say(f"  rejected  {found.rejected:,} (no file was read, so convert may reject more)")
        for problem in found.problems[:NAMED]:
            say(f"    {problem['name']}: {problem['reason']}")
        print_left_out(found)
    return SOME_REJECTED if found.rejected else 0
