"""``dbloader ls``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dbloader.cli.text import say, say_json
from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL
from dbloader.records.names import names_in
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.stores.base import Store

_WIDEST = 24  # letters of a class name, at most


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
        for index, name, found, wide, high, nbytes in _list_records(store, label):
            class_name = store.manifest.class_name(found)
            if as_json:
                sizes = {"width": wide or None, "height": high or None, "bytes": nbytes}
                say_json({"index": index, "name": name or None, "label": found, "class": class_name, **sizes})
                continue
            shown = class_name or ("-" if found is None else str(found))
            pixels = f"{wide}x{high}" if wide else "-"
            say(f"{index:>8}  {shown:<{width}}  {pixels:>11}  {nbytes:>11,}  {name}".rstrip())


def _list_records(store: Store, label: int | None) -> Iterator[tuple[int, str, int | None, int, int, int]]:
    """Yield index, name, label, width, height and bytes of all records, or of the records with a label.

    A missing name is "", a missing label None, and an unknown size 0. Each chunk is read when its first row is taken.
    """
    handle = store.open_handle()

    def values(column: str, number: int) -> list[Any]:
        return list(np.frombuffer(handle.chunk(column, number), DTYPES[column]).tolist())

    for number, start in enumerate(range(0, handle.manifest.length, CHUNK)):
        labels = values("label", number)
        if label is None or label in labels:
            names = names_in(bytes(handle.chunk("name", number)))
            sizes = (values(column, number) for column in ("width", "height", "nbytes"))
            for index, (found, name, *numbers) in enumerate(zip(labels, names, *sizes, strict=True), start):
                if label in (None, found):
                    shown = name.decode("utf-8", "backslashreplace")
                    yield (index, shown, None if found == NO_LABEL else found, *numbers)


def _label(name: str, classes: Sequence[str]) -> int:
    if name in classes:
        return classes.index(name)
    if not classes and re.fullmatch("-?[0-9]{1,18}", name):
        return int(name)
    known = f"one is {classes[0]!r}; dbloader info --json names all" if classes else "the labels are integers"
    raise click.BadParameter(f"no class is called {name!r}; {known}", param_hint="'--class'")
