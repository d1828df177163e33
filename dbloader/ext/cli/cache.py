"""``dbloader cache``."""

from __future__ import annotations

import click

from dbloader._describe import counted, size
from dbloader.cli.text import say, say_json
from dbloader.conversion.meter import Meter
from dbloader.ext.caching.care import check_cache, clear_cache, describe_cache, fill_cache

DAMAGED = 1
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@click.command(
    "cache",
    short_help="Show, check, fill or clear a cache.",
    epilog="""\b
Exit status: 0 success, 1 --verify found damaged files, 2 error.

\b
Examples:
  dbloader cache cache/
  dbloader cache cache/ --verify
  dbloader cache cache/ --fill train.lmdb""",
)
@click.argument("folder", type=click.Path())
@click.option("--verify", is_flag=True, help="Check all files, and remove damaged files.")
@click.option("--fill", metavar="PLACE", type=click.Path(), help="Fetch the shards of the store PLACE.")
@click.option("--cache-bytes", metavar="N", type=int, help="With --fill: keep at most N bytes of shards in the cache.")
@click.option("--clear", is_flag=True, help="Remove the files, unless a process uses the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def cache_command(
    folder: str, *, verify: bool, fill: str | None, cache_bytes: int | None, clear: bool, as_json: bool
) -> int:
    """Show what is in FOLDER, the cache of a dataset (cache=FOLDER).

    Training fetches missing files when it needs them. To fetch all files now, give --fill PLACE.
    """
    if clear and (verify or fill):
        raise click.UsageError("--clear cannot be combined with --verify or --fill.")
    if cache_bytes is not None and fill is None:
        raise click.UsageError("--cache-bytes needs --fill.")
    damaged: list[str] = []
    removed = clear_cache(folder) if clear else 0
    if verify:
        with Meter("Checking", "files", quiet=as_json) as meter:
            damaged = check_cache(folder, meter.update)
    if fill is not None:
        with Meter("Fetching", "shards", quiet=as_json) as meter:
            fill_cache(fill, folder, cache_bytes, meter.update)
    facts = describe_cache(folder)
    if as_json:
        say_json({**facts._asdict(), "stats": vars(facts.stats), "damaged": damaged, "removed": removed}, indent=2)
        return DAMAGED if damaged else 0
    if removed:
        say(f"{folder}: {size(removed)} were removed")
    for name in damaged:
        say(f"{folder}: {name} was damaged, and was removed")
    say(f"{folder}: cache of {facts.origin}")
    say(f"  shards      {facts.shards:,} of {facts.of or 'an unknown number'}, {size(facts.nbytes)}")
    say(f"  last use    {f'{_age(facts.idle_s)} ago' if facts.idle_s else 'now'}")
    say(f"  readers     {facts.stats.readers:,}")
    say(f"  damaged     {counted(facts.stats.damaged, 'shard')}, fetched again")
    if facts.stats.last_error:
        say(f"  last error  {facts.stats.last_error}")
    return DAMAGED if damaged else 0


def _age(seconds: float) -> str:
    unit, name = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return counted(int(seconds // unit), name)
