"""``dbloader view``."""

from __future__ import annotations

from typing import Any

import click

from dbloader._describe import counted, size
from dbloader.cli.isolated import isolated
from dbloader.cli.text import say

HOST = "127.0.0.1"


@click.command(
    "view",
    short_help="Look at a store in the browser.",
    epilog="""\b
Examples:
  dbloader view train.lmdb
  dbloader view train.lmdb val.lmdb
  dbloader view train.lmdb --port 8000 --no-open
  dbloader view train.lmdb --html report.html""",
)
@click.argument("place", type=click.Path())
@click.argument("other", type=click.Path(), required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 is any free one.  [default: 7878, or the next free one]",
)
@click.option(
    "--host",
    metavar="NAME",
    default=HOST,
    show_default=True,
    help="Name or address to listen on. Only this machine reaches the default one.",
)
@click.option(
    "--transform",
    metavar="MODULE:NAME",
    help="Your own transform, for the page of what the training sees: a callable for PIL images, a Decoder, or a "
    "function without arguments that returns one.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(),
    help="Write a report of PLACE to the new file FILE, with samples and histograms in it, and start no viewer.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
def view_command(
    place: str,
    other: str | None,
    *,
    port: int | None,
    host: str,
    transform: str | None,
    html: str | None,
    no_open: bool,
) -> None:
    """Show the store PLACE in the browser, and a second store OTHER, until Ctrl-C.

    The page is served on this machine only. The link that is printed works once: it makes the browser known to the
    viewer. On a machine without a display, a line says how to reach the page from another one through ssh.
    """
    if html is not None:
        if other is not None:
            raise click.UsageError(f"--html is a report of one store, got {place} and {other}")
        if (port, host, transform) != (None, HOST, None):
            raise click.UsageError("--html starts no viewer: leave out --port, --host and --transform")
        nbytes, samples = isolated("viewing.page.write_html", place, output=html)
        say(f"{html}: {size(nbytes)}, with {counted(samples, 'sample')}")
        return
    places = [place] if other is None else [place, other]
    options: Any = {"host": host, "port": port, "transform": transform, "open_browser": not no_open}
    isolated("viewing.server.serve", *places, **options, tell=say)
