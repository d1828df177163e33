"""``dbloader ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dbloader.cli.text import say, say_json
from dbloader.queries.select import find_matching
from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL
from dbloader.records.names import names_in
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.stores.base import Store

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

    ls does not read whole records, and prints the first lines at once. So it can be piped into head or grep.
    """
    with open_store(place) as store:
        classes = store.manifest.classes
        width = min(_WIDEST, max(map(len, classes), default=6))
        for index, name, found, wide, high, nbytes in _list_records(store, find_matching(store, where)):
            class_name = store.manifest.class_name(found)
            if as_json:
                sizes = {"width": wide or None, "height": high or None, "bytes": nbytes}
                say_json({"index": index, "name": name or None, "label": found, "class": class_name, **sizes})
                continue
            shown = class_name or ("-" if found is None else str(found))
            pixels = f"{wide}x{high}" if wide else "-"
            say(f"{index:>8}  {shown:<{width}}  {pixels:>11}  {nbytes:>11,}  {name}".rstrip())


def _list_records(store: Store, indices: Any) -> Iterator[tuple[int, str, int | None, int, int, int]]:
    """Yield index, name, label, width, height and bytes of some records. ``indices`` is an ascending range or array.

    A missing name is "", a missing label None, and an unknown size 0. A chunk is read when its first row is needed.
    """
    handle = store.open_handle()

    def values(column: str, number: int) -> list[Any]:
        return list(np.frombuffer(handle.chunk(column, number), DTYPES[column]).tolist())

    for number, start in enumerate(range(0, handle.manifest.length, CHUNK)):
        bounds = (start, start + CHUNK)
        here = indices[slice(*bounds if isinstance(indices, range) else indices.searchsorted(bounds))]
        if len(here):
            names = names_in(bytes(handle.chunk("name", number)))
            columns = [values(column, number) for column in ("label", "width", "height", "nbytes")]
            for at in (np.asarray(here, np.int64) - start).tolist():
                label, *sizes = (column[at] for column in columns)
                name = names[at].decode("utf-8", "backslashreplace")
                yield (start + at, name, None if label == NO_LABEL else label, *sizes)
