"""``dbloader copy``."""

from __future__ import annotations

import click

from dbloader.cli.meter import Meter
from dbloader.cli.places import PlaceArgument
from dbloader.cli.text import counted, say, size
from dbloader.conversion.copy_store import copy_store
from dbloader.stores.open import open_store


@click.command(
    "copy",
    short_help="Copy a store to another place.",
    epilog="""\b
Examples:
  dbloader copy mongodb://server/images.train cache.lmdb
  dbloader copy train.lmdb mongodb://server/images.copy""",
)
@click.argument("source", type=PlaceArgument())
@click.argument("destination", type=PlaceArgument())
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION once the copy is finished.")
@click.option("--resume", is_flag=True, help="Continue an interrupted copy; begin if none was interrupted.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def copy_command(source: str, destination: str, *, overwrite: bool, resume: bool, quiet: bool) -> None:
    """Make at DESTINATION the same store that is at SOURCE, each a file or a mongodb:// place.

    The records are the same, byte for byte, and each is checked on its way. MongoDataset(SOURCE, cache=DESTINATION)
    reads from a copy in a file on this machine, and so does LMDBDataset(DESTINATION).
    """
    try:
        with Meter("Copying", "records", quiet=quiet) as meter:
            manifest = copy_store(source, destination, overwrite=overwrite, resume=resume, progress=meter.update)
    except KeyboardInterrupt as error:
        error.args = ("committed records are kept; --resume continues after them",)
        raise
    if not quiet:
        with open_store(destination) as store:
            place = store.place
        say(
            f"{place}: {counted(manifest.length, 'record')}, {size(manifest.image_bytes)} of images; "
            f"digest {manifest.digest}"
        )
