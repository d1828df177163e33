"""``dbloader warm``."""

from __future__ import annotations

import click

from dbloader.cli.meter import Meter
from dbloader.cli.place import PlaceArgument
from dbloader.cli.text import say, size
from dbloader.stores.lmdb.page_cache import warm


@click.command(
    "warm",
    short_help="Read a store's file into memory.",
    epilog="""\b
Example:
  dbloader warm train.lmdb""",
)
@click.argument("place", type=PlaceArgument())
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def warm_command(place: str, *, quiet: bool) -> None:
    """Read the file of the store PLACE once, from its beginning to its end, into the system's page cache.

    A first epoch then reads from memory, as the later ones do; without, its reads jump about on the disk. The file
    stays in memory until that is needed for something else. One that is larger than the memory available does not fit:
    then this gains little, and says so.
    """
    with Meter("Warming", "bytes", quiet=quiet) as meter:

        def show(done: int, nbytes: int, available: int | None) -> None:
            if not done and not quiet and available is not None and nbytes > available:
                say(
                    f"Warning: the file has {size(nbytes)}, the memory available {size(available)}: "
                    "it will not stay there as a whole",
                    err=True,
                )
            meter.update(done, nbytes)

        done = warm(place, progress=show)
    if not quiet:
        say(f"{done.place}: {size(done.nbytes)} read in {done.seconds:.1f} s, {size(done.rate)}/s")
