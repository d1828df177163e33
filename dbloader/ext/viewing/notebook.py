"""Format records and stores as HTML, for notebooks and the viewer's report.

The HTML has no scripts, loads nothing, and takes its colors from the page around it.
"""

from __future__ import annotations

import base64
import html
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import cut, printable, short_repr
from dbloader.errors import DamagedRecordError, DamagedStoreError, ImageError, NotAnImageError
from dbloader.ext.images.preview import thumbnail
from dbloader.ext.viewing.record import boxes_of, draw_layers, masks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Sized

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_SAMPLES, _PX, _LARGE_PX = 8, 160, 320
_LETTERS = 200  # most letters shown of a name, a reason, or a line of a repr
_ELEMENTS = 64  # an array with more elements is shown only by its dtype and shape
_LINES = 20  # most lines shown of a repr

_STYLE = """<style>
div.dbloader { max-width: 760px; overflow-wrap: anywhere; }
div.dbloader pre { white-space: pre-wrap; margin: 0 0 8px; }
div.dbloader .sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 10px; }
div.dbloader figure { margin: 0; font-size: 12px; line-height: 1.4; }
div.dbloader img { width: 100%; height: 110px; margin: 0; object-fit: contain; display: block; }
div.dbloader figure.large img { width: auto; max-width: 100%; height: auto; max-height: 320px; }
div.dbloader figcaption { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
div.dbloader figure p { margin: 0; padding-left: 6px; border-left: 3px solid #d33; }
div.dbloader table { margin: 8px 0; border-collapse: collapse; }
div.dbloader th, div.dbloader td { text-align: left !important; vertical-align: top; padding: 2px 12px 2px 0; }
div.dbloader th { font-weight: 400; opacity: .7; overflow-wrap: break-word; max-width: 240px; }
</style>"""


viewers: dict[tuple[str, str], Callable[[], str]] = {}
"""(place, digest) of a store -> a function that returns the link to its running viewer, as HTML."""


def text(value: object) -> str:
    """Return a text for HTML, at most 200 letters long. Invisible characters are escaped."""
    return html.escape(cut(printable(str(value)), _LETTERS))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table of rows. Cells are HTML. The first cell of a row is its heading."""
    lines = (f"<tr><th>{head}</th><td>{'</td><td>'.join(cells)}</td></tr>" for head, *cells in rows)
    return f"<table>{''.join(lines)}</table>"


def picture(make: Callable[[], tuple[bytes, str]]) -> str:
    """Return HTML with the picture that ``make`` returns (bytes, media type), or with the error if ``make`` fails."""
    try:
        data, kind = make()
    except (DamagedRecordError, DamagedStoreError, ImageError) as error:
        return f"<p>{text(error)}</p>"
    return f'<img alt="" src="data:{kind};base64,{base64.b64encode(data).decode()}">'


def store_html(shown: Sized, locate: Callable[[Sequence[int]], tuple[Store, Sequence[int]]]) -> str | None:
    """Return a store or a dataset as HTML, with eight of its records; None if it cannot be read.

    ``locate`` turns positions in ``shown`` into (store, indices of these records in the store).
    """
    with suppress(Exception):  # a notebook then shows the plain repr
        store, indices = locate(_some(len(shown)))
        place = printable(store.place)
        command, call = map(html.escape, (f"dbloader view {shlex.quote(place)}", f"dbloader.view({place!r})"))
        how = f"All records: <code>{command}</code> in a terminal, or <code>{call}</code> here."
        if store.downloads:
            indices, how = [], "No pictures, because reading them would copy shards to the cache."
        elif viewer := viewers.get((store.place, store.manifest.digest)):
            how = viewer()
        lines = "\n".join(map(text, repr(shown).splitlines()[:_LINES]))
        rows = ((name, text(value)) for name, value in store.manifest.in_words().items() if value)
        return _page(f"<pre>{lines}</pre>", _sheet(store, indices), table(rows), f"<p>{how}</p>")
    return None


def records_html(store: Store, indices: Sequence[Any], head: str, code: str = "") -> str | None:
    """Return up to eight records as HTML, between the texts ``head`` and ``code``; None if reading fails."""
    with suppress(Exception):
        sheet = _sheet(store, [int(indices[position]) for position in _some(len(indices))])
        above, below = (html.escape(printable(line)) for line in (head, code))
        return _page(f"<pre>{above}</pre>", sheet, below and f"<p><code>{below}</code></p>")
    return None


def record_html(record: Record, describe: Callable[[], Iterable[tuple[str, str]]]) -> str | None:
    """Return a record as HTML: its image, and the names and reprs that ``describe`` returns; None after an error."""
    with suppress(Exception):
        boxes, labels = boxes_of(record)

        def make() -> tuple[bytes, str]:
            return draw_layers(_small(record.image, _LARGE_PX), record, boxes, labels, masks_of(record).values())

        large = "" if record.image is None else f"<figure class=large>{picture(make)}</figure>"
        arrays = {name: value for name, value in record.fields.items() if isinstance(value, np.ndarray)}
        values = {name: value.tolist() for name, value in arrays.items() if value.size <= _ELEMENTS}
        values |= {"boxes": np.round(boxes, 1).tolist()} if boxes else {}
        shown = {name: short_repr(value, _LETTERS) for name, value in values.items()}
        return _page(large, table((text(name), text(shown.get(name, value))) for name, value in describe()))
    return None


def _some(length: int) -> list[int]:
    count = min(length, _SAMPLES)
    return [number * length // count for number in range(count)]


def _page(*parts: str) -> str:
    return f"<div class=dbloader>{_STYLE}{''.join(parts)}</div>"


def _sheet(store: Store, indices: Sequence[int]) -> str:
    cells = "\n".join(_cell(store, index) for index in indices)
    return f"<div class=sheet>\n{cells}\n</div>"


def _cell(store: Store, index: int) -> str:
    words, damage = list[str](), list[str]()

    def make() -> tuple[bytes, str]:
        record = store.read([index])[0]
        known = (record.name, store.manifest.class_name(record.label))
        words.extend(f" <bdi>{text(word)}</bdi>" for word in known if word)
        damage.extend([f"<p>{text(record.damaged)}</p>"] if record.damaged else [])
        made = _small(record.image, _PX)
        return draw_layers(made, record, *boxes_of(record), masks_of(record).values())

    shown = picture(make)
    return f"<figure>{shown}<figcaption>{index:,}{''.join(words)}</figcaption>{''.join(damage)}</figure>"


def _small(image: Any, px: int) -> tuple[bytes, str]:
    if image is None:
        raise NotAnImageError("the record has no image")
    if isinstance(image, memoryview) or (isinstance(image, np.ndarray) and not image.flags.writeable):
        raise NotAnImageError("not drawn: the image may be a view of a store's memory, which may no longer exist")
    return thumbnail(image, px)
