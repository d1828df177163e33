"""``dbloader mirror``."""

from __future__ import annotations

import click

from dbloader.cli.meter import Meter
from dbloader.cli.place import Place
from dbloader.cli.text import counted, say, size
from dbloader.copying import copy_store
from dbloader.stores import open_store


@click.command(
    "mirror",
    short_help="Copy a store to another place.",
    epilog="""\b
Examples:
  dbloader mirror mongodb://server/images.train mirror.lmdb
  dbloader mirror train.lmdb mongodb://server/images.copy""",
)
@click.argument("source", type=Place())
@click.argument("destination", type=Place())
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION once the copy is finished.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted copy; begin if nothing was interrupted.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def mirror_command(source: str, destination: str, *, overwrite: bool, resume: bool, quiet: bool) -> None:
    """Make at DESTINATION the same store that is at SOURCE, each a file or a mongodb:// place.

    The records are the same, byte for byte, and each is checked on its way. MongoDataset(SOURCE, mirror=DESTINATION)
    reads from a copy in a file on this machine, and so does LMDBDataset(DESTINATION).
    """
    try:
        with Meter("Copying", "records", quiet=quiet) as meter:
            manifest = copy_store(source, destination, overwrite=overwrite, resume=resume, progress=meter.update)
    except KeyboardInterrupt as error:
        error.args = ("what is committed is kept, and --resume goes on with it",)
        raise
    if not quiet:
        with open_store(destination) as store:
            place = store.place
        say(
            f"{place}: {counted(manifest.length, 'record')}, {size(manifest.image_bytes)} of images; "
            f"digest {manifest.digest}"
        )
