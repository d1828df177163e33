"""``dbloader verify``."""

from __future__ import annotations

import click

from dbloader.cli.meter import Meter
from dbloader.cli.place import PlaceArgument
from dbloader.cli.text import complain, counted, say
from dbloader.errors import DamagedRecordError, DamagedStoreError
from dbloader.stores.open import open_store

NOT_WHOLE = 1


@click.command(
    "verify",
    short_help="Read a whole store and compare it with its checksums.",
    epilog="""\b
Exit status: 0 the store is whole, 1 it is not, and the message says where, 2 it could not be looked at.

\b
Example:
  dbloader verify train.lmdb""",
)
@click.argument("place", type=PlaceArgument())
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def verify_command(place: str, *, quiet: bool) -> int:
    """Read every record of the store PLACE and compare it with its checksum, and all of them with the digest."""
    try:
        with open_store(place) as store, Meter("Verifying", "records", quiet=quiet) as meter:
            done, total = 0, len(store)

            def show(more: int) -> None:
                nonlocal done
                done += more
                meter.update(done, total)

            show(0)
            digest = store.verify(show)
    except (DamagedRecordError, DamagedStoreError) as error:
        complain(str(error))
        return NOT_WHOLE
    if not quiet:
        say(f"{store.place}: all {counted(total, 'record')} are whole; digest {digest}")
    return 0
