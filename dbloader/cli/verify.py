"""``dbloader verify``."""

from __future__ import annotations

import sys

import click
from tqdm import tqdm

from dbloader.cli.text import counted
from dbloader.stores import open_store


@click.command(
    "verify",
    short_help="Read a whole store and compare it with its checksums.",
    epilog="""\b
Exit status: 0 the store is whole, 2 it is not, and the message says where.

\b
Example:
  dbloader verify train.lmdb""",
)
@click.argument("place", type=click.Path())
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
def verify_command(place: str, *, quiet: bool) -> None:
    """Read every record of the store PLACE and compare it with its checksum, and all of them with the digest."""
    with (
        open_store(place) as store,
        tqdm(total=len(store), unit=" records", disable=quiet or not sys.stderr.isatty(), dynamic_ncols=True) as bar,
    ):
        digest = store.verify(bar.update)
    if not quiet:
        click.echo(f"{store.place}: all {counted(len(store), 'record')} are whole; digest {digest}")
