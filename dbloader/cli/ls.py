"""``dbloader ls``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from dbloader.cli.text import say, say_json
from dbloader.stores.open import open_store
from dbloader.stores.rows import class_of, list_records

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDEST = 24  # columns of a class


@click.command(
    "ls",
    short_help="List the records of a store.",
    epilog="""\b
Examples:
  dbloader ls train.lmdb
  dbloader ls train.lmdb --class cat
  dbloader ls train.lmdb --json""",
)
@click.argument("place", type=click.Path())
@click.option("--class", "class_name", metavar="NAME", help="List only the records of this class or label.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
def ls_command(place: str, *, class_name: str | None, as_json: bool) -> None:
    """List the records of the store PLACE, one per line: index, class, pixels, bytes and name.

    ls reads no record, and prints the first lines at once: pipe it into head or grep.
    """
    with open_store(place) as store:
        classes = store.manifest.classes
        width = min(_WIDEST, max(map(len, classes), default=6))
        label = None if class_name is None else _label(class_name, classes)
        for row in list_records(store, label):
            name = class_of(row.label, classes)
            if as_json:
                sizes = {"width": row.width or None, "height": row.height or None, "bytes": row.nbytes}
                say_json({"index": row.index, "name": row.name or None, "label": row.label, "class": name, **sizes})
                continue
            shown = name or ("-" if row.label is None else str(row.label))
            pixels = f"{row.width}x{row.height}" if row.width else "-"
            say(f"{row.index:>8}  {shown:<{width}}  {pixels:>11}  {row.nbytes:>11,}  {row.name}".rstrip())


def _label(name: str, classes: Sequence[str]) -> int:
    if name in classes:
        return classes.index(name)
    if not classes and re.fullmatch("-?[0-9]{1,18}", name):
        return int(name)
    known = f"one is {classes[0]!r}; dbloader info --json names all" if classes else "the labels are integers"
    raise click.BadParameter(f"no class is called {name!r}; {known}", param_hint="'--class'")
