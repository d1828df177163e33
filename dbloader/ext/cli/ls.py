"""``dbloader ls``, which lists the records of a store."""

from __future__ import annotations

import click

from dbloader.cli.text import say, say_json
from dbloader.ext.queries.columns import Columns
from dbloader.ext.queries.select import find_matching
from dbloader.stores.open import open_store

_WIDEST = 24  # largest width of the column of class names, in characters


@click.command(
    "ls",
    short_help="List the records of a store.",
    epilog="""\b
Examples:
  dbloader ls train.lmdb
  dbloader ls train.lmdb --where 'class:cat width<256'
  dbloader ls train.lmdb --json""",
)
@click.argument("place", type=click.Path())
@click.option("--where", metavar="QUERY", default="", help="List only the records that match QUERY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def ls_command(place: str, *, where: str, as_json: bool) -> None:
    """List the records of the store PLACE, one per line: index, class, pixels, bytes and name.

    ls does not read whole records, and prints the first lines at once. So you can pipe ls into head or grep.
    """
    with open_store(place) as store:
        classes = store.manifest.classes
        width = min(_WIDEST, max(map(len, classes), default=6))
        found = find_matching(store, where)
        if where and not len(found):
            say(f"the query {where!r} finds no record", err=True)
        rows = Columns(store).rows(found, ("label", "width", "height", "nbytes"))
        for index, name, label, wide, high, nbytes in rows:
            class_name = store.manifest.class_name(label)
            if as_json:
                sizes = {"width": wide, "height": high, "bytes": nbytes or 0}
                say_json({"index": index, "name": name or None, "label": label, "class": class_name, **sizes})
                continue
            shown = class_name or ("-" if label is None else str(label))
            pixels = f"{wide}x{high}" if wide else "-"
            say(f"{index:>8}  {shown:<{width}}  {pixels:>11}  {nbytes or 0:>11,}  {name}".rstrip())
