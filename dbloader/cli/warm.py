"""``dbloader warm``."""

from __future__ import annotations

import click

from dbloader._describe import size
from dbloader.cli.meter import Meter
from dbloader.cli.places import PlaceArgument
from dbloader.cli.text import say, say_json
from dbloader.stores.lmdb.page_cache import warm


@click.command(
    "warm",
    short_help="Bring the file of a store into memory.",
    epilog="""\b
Example:
  dbloader warm train.lmdb""",
)
@click.argument("place", type=PlaceArgument())
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def warm_command(place: str, *, quiet: bool, as_json: bool) -> None:
    """Read the file of the store PLACE from start to end, so that it is in the system's page cache.

    The first epoch then reads from memory, as later ones do. Without this, it reads the disk in random order, which is
    slower. The system keeps the file in memory until programs need that memory. A file that is larger than the
    available memory does not fit; then this command prints a warning and helps little.
    """
    with Meter("Warming", "bytes", quiet=quiet or as_json) as meter:

        def show(done: int, nbytes: int, available: int | None) -> None:
            if not done and not quiet and available is not None and nbytes > available:
                say(
                    f"Warning: the file has {size(nbytes)}, but only {size(available)} of memory are available: "
                    "not all of it will stay in memory",
                    err=True,
                )
            meter.update(done, nbytes)

        done = warm(place, progress=show)
    if as_json:
        say_json(done._asdict(), indent=2)
    elif not quiet:
        say(f"{done.place}: {size(done.nbytes)} read in {done.seconds:.1f} s ({size(done.rate)}/s)")
