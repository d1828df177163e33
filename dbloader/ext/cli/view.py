"""``dbloader view``."""

from __future__ import annotations

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
  dbloader view train.lmdb --with predictions.csv
  dbloader view train.lmdb --html report.html
  dbloader view train.lmdb --html small.html --where 'width<64'""",
)
@click.argument("place", type=click.Path())
@click.argument("other", type=click.Path(), required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the page; 0 for any free port.  [default: 7878, or the next free port]",
)
@click.option(
    "--host",
    metavar="NAME",
    default=HOST,
    show_default=True,
    help="Name or address to listen on. With the default, only this machine can open the page.",
)
@click.option(
    "--transform",
    metavar="MODULE:NAME",
    help="Your transform for the training view: a callable for PIL images, a Decoder, or a function without "
    "arguments that returns either.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(),
    help="Write a report about PLACE with samples and histograms to the new file FILE, without starting the viewer.",
)
@click.option(
    "--with",
    "listing",
    metavar="FILE",
    type=click.Path(),
    help="Show and search the columns of a listing, such as a model's predictions, like fields of the records. The "
    "listing's column name, path or index identifies the records.",
)
@click.option("--where", metavar="QUERY", help="With --html: report only the records that match QUERY.")
@click.option(
    "--read-only", is_flag=True, help="Refuse marks and searches for duplicates, which write files beside PLACE."
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
    where: str | None,
    listing: str | None,
    read_only: bool,
    no_open: bool,
) -> None:
    """Show the store PLACE, and a second store OTHER, in the browser until Ctrl-C.

    By default, only this machine can open the page. The printed link works once. Without a display, view prints how to
    open the page on another machine through ssh.
    """
    if html is not None:
        if other is not None:
            raise click.UsageError(f"--html reports on one store, got {place} and {other}")
        if (port, host, transform) != (None, HOST, None):
            raise click.UsageError("--html starts no viewer: leave out --port, --host and --transform")
        nbytes, samples = isolated(
            "ext.viewing.html_report.write_html", place, output=html, where=where or "", listing=listing, tell=say
        )
        say(f"{html}: {size(nbytes)}, with {counted(samples, 'sample')}")
        return
    if where is not None:
        raise click.UsageError("--where needs --html; in the viewer, type the query into the search field")
    isolated(
        "ext.viewing.server.serve",
        *([place] if other is None else [place, other]),
        host=host,
        port=port,
        transform=transform,
        listing=listing,
        read_only=read_only,
        open_browser=not no_open,
        tell=say,
    )
