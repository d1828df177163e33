"""``dbloader mirror``."""

from __future__ import annotations

import sys

import click
from tqdm import tqdm

from dbloader.cli.text import counted, size
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
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION once the copy is finished.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted copy; if there is none, begin.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def mirror_command(source: str, destination: str, *, overwrite: bool, resume: bool, quiet: bool) -> None:
    """Make at DESTINATION the same store that is at SOURCE, each a file or a mongodb:// place.

    The records are the same, byte for byte, and each is checked on its way. MongoDataset(SOURCE, mirror=DESTINATION)
    reads from a copy in a file on this machine, and so does LMDBDataset(DESTINATION).
    """
    try:
        with tqdm(unit=" records", disable=quiet or not sys.stderr.isatty(), dynamic_ncols=True) as bar:

            def show(done: int, total: int) -> None:
                if bar.total is None:
                    bar.reset(total=total)
                    bar.initial = bar.n = done
                bar.update(done - bar.n)

            manifest = copy_store(source, destination, overwrite=overwrite, resume=resume, progress=show)
    except KeyboardInterrupt as error:
        error.args = ("what is committed is kept, and --resume goes on with it",)
        raise
    if not quiet:
        with open_store(destination) as store:
            place = store.place
        click.echo(
            f"{place}: {counted(manifest.length, 'record')}, {size(manifest.image_bytes)} of images; "
            f"digest {manifest.digest}"
        )
