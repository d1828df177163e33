"""``dbloader verify``."""

from __future__ import annotations

import click

from dbloader.cli.meter import Meter
from dbloader.cli.places import PlaceArgument
from dbloader.cli.text import complain, counted, say
from dbloader.errors import DamagedRecordError, DamagedStoreError
from dbloader.stores.open import open_store

DAMAGED = 1


@click.command(
    "verify",
    short_help="Check that a store is complete and undamaged.",
    epilog="""\b
Exit status: 0 the store is undamaged; 1 it is damaged, and the message says where; 2 it could
not be opened.

\b
Example:
  dbloader verify train.lmdb""",
)
@click.argument("place", type=PlaceArgument())
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def verify_command(place: str, *, quiet: bool) -> int:
    """Read the whole store PLACE, and compare each record with its checksum and the store with its digest."""
    try:
        with open_store(place) as store, Meter("Verifying", "records", quiet=quiet) as meter:
            done, total = 0, len(store)

            def count(more: int) -> None:
                nonlocal done
                done += more
                meter.update(done, total)

            count(0)
            digest = store.verify(count)
    except (DamagedRecordError, DamagedStoreError) as error:
        complain(str(error))
        return DAMAGED
    if not quiet:
        say(f"{store.place}: {counted(total, 'record')}, all undamaged; digest {digest}")
    return 0
