"""Write a report about a store as one HTML file, to send by mail or keep in CI. The file needs no server or script."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import counted
from dbloader.errors import OptionError
from dbloader.ext.viewing.joined import join_listings
from dbloader.ext.viewing.notebook import picture, table, text
from dbloader.ext.viewing.record import Thumbnails, masks_of
from dbloader.ext.viewing.selection import ConversionReport, Selections
from dbloader.ext.viewing.summary import count, histogram
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.files import write_durably
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.stores.base import Store

_SAMPLES, _SAMPLE_BYTES = 60, 1_200_000  # number and total bytes of the pictures; the file must fit into a mail
_CLASSES, _LINES = 100, 200
_HIGH = 60  # height of a histogram in pixels

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>
:root {{ color-scheme: light dark; --line: light-dark(#ddd, #3a3d44); --muted: light-dark(#5b5e66, #a2a6af);
  --bar: light-dark(#7d9bec, #5f7fd0); }}
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 0 auto; padding: 16px; overflow-wrap: anywhere;
  color: light-dark(#1c1d21, #e8e9ec); background: light-dark(#fff, #131417); }}
h1 {{ font-size: 22px; }} h2 {{ font-size: 16px; margin: 28px 0 8px; }} .muted, figcaption {{ color: var(--muted); }}
table {{ border-collapse: collapse; width: 100%; }} th, td {{ text-align: left; font-weight: 400;
  vertical-align: top; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); }}
th {{ color: var(--muted); width: 24%; max-width: min(264px, 30vw); overflow-wrap: break-word; }}
.sheet {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 10px; }}
.sizes {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 20px; }}
figure {{ margin: 0; font-size: 12px; }} img {{ width: 100%; height: 110px; object-fit: contain; display: block; }}
figure p {{ margin: 0; color: light-dark(#b42318, #ff8a7d); }} svg {{ display: block; width: 100%; height: 60px; }}
rect {{ fill: var(--bar); }} rect.all {{ fill: var(--line); }}
svg.share {{ width: 160px; height: 10px; margin-top: 6px; }}
.events table {{ table-layout: fixed; }} .events th {{ width: 80px; }} .events td:nth-child(2) {{ width: 36%; }}
.ends {{ display: flex; justify-content: space-between; color: var(--muted); }}
</style></head><body><main>
"""


def write_html(
    place: str | os.PathLike[str],
    output: str | os.PathLike[str],
    where: str = "",
    listing: str | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> tuple[int, int]:
    """Write a report about a store to a new HTML file: facts, samples, histograms, classes and rejected files.

    The samples are spread evenly over the classes. Every call chooses the same samples. Return (bytes of the file,
    number of samples). With the query ``where``, the file describes only the matching records and lists no rejected
    files. The query can use the columns of ``listing``. ``tell`` gets each message about the listing.

    Raises:
        OptionError: ``output`` exists, its folder does not exist, or the query is wrong.
        StoreError: The store cannot be read.
        OSError: The file cannot be written.
    """
    path = Path(output)
    if os.path.lexists(path):  # ``output`` may be the store, given by mistake
        raise OptionError(f"--html must be a new file, but {path} exists: move it away")
    if not path.parent.is_dir():
        raise OptionError(f"--html {path}: there is no folder {path.parent}; make it first")
    with open_store(place) as store:
        selections = Selections(store, None if listing is None else join_listings([store], listing, tell)[0])
        samples, sheet = _sheet(store, selections.select(where))
        parts = [_HEAD.format(title=text(store.place)), _facts(selections, where), sheet]
        parts += _counts(selections, where) if samples or not where else []
        data = "\n".join([*parts, "" if where else _events(store), "</main></body></html>\n"]).encode()
    with refusals(str(path)):
        write_durably(path, data)
    return len(data), samples


def _facts(selections: Selections, where: str) -> str:
    store = selections.store
    found = {"Search": where, "Found": f"{len(selections.select(where)):,} of {counted(len(store), 'record')}"}
    shown = found if where else store.manifest.in_words()
    return f"<h1>{text(store.place)}</h1>{table([name, text(value)] for name, value in shown.items() if value)}"


def _sheet(store: Store, selected: Any) -> tuple[int, str]:
    thumbnails, figures, total, fields = Thumbnails(0), dict[int, str](), 0, store.manifest.file_fields
    for index in _samples(store, selected):

        def make(index: int = index) -> tuple[bytes, str]:
            masks = masks_of(store.read([index])[0])
            over = "boxes", *(str(number) for number, name in enumerate(fields) if name in masks)
            return thumbnails.get(store, index, 160, None, over)

        shown = picture(make)
        total += len(shown)
        if total > _SAMPLE_BYTES:
            break
        figures[index] = f"<figure>{shown}<figcaption>{index:,} {text(store.name(index) or '')}</figcaption></figure>"
    of, lines = counted(len(selected), "record"), "\n".join(figures[index] for index in sorted(figures))
    head = f"<h2>{len(figures)} of {of}</h2>" if len(selected) else "<p>No record matches.</p>"
    if len(figures) < len(selected):
        head += "<p class=muted>Chosen at random, from all classes equally.</p>"
    return len(figures), f"{head}<div class=sheet>\n{lines}\n</div>"


def _samples(store: Store, selected: Any) -> list[int]:
    """Return the indices of the samples: one of each class, then a second one of each class, and so on."""
    rng, labels = np.random.default_rng(0), store.column("label")[np.asarray(selected, np.int64)]
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    _, begins, counts = np.unique(labels[by_label], return_index=True, return_counts=True)
    turns = np.arange(len(by_label)) - np.repeat(begins, counts)  # position of each record in its class, from 0
    chosen = by_label[np.lexsort((rng.permutation(len(labels)), turns))[:_SAMPLES]]
    indices: list[int] = np.asarray(selected)[chosen].tolist()
    return indices


def _counts(selections: Selections, where: str) -> list[str]:
    found, classes = count(selections, where), selections.store.manifest.classes
    rows = sorted(((number, label) for label, number in found["labels"] if label is not None), key=lambda row: -row[0])
    most = max((number for number, _ in rows), default=1)
    bar = f'<svg class="share" viewBox="0 0 {most} 1" preserveAspectRatio="none"><rect height="1" width='
    lines = [
        [text(classes[label] if 0 <= label < len(classes) else label), f"{number:,}", f'{bar}"{number}"/></svg>']
        for number, label in rows[:_CLASSES]
    ]
    names = {"width": "Width", "height": "Height", "aspect": "Width / height", "bytes": "Bytes"}
    figures = [_histogram(name, histogram(selections, where, what)) for what, name in names.items()]
    of = f"the {_CLASSES} most frequent of {len(rows):,}" if len(rows) > _CLASSES else f"{len(rows):,}"
    shown = [f"<h2>Classes with records: {of}</h2>", table(lines)] if rows else []
    return ["<h2>Sizes</h2><div class=sizes>", *figures, "</div>", *shown]


def _histogram(name: str, found: dict[str, Any]) -> str:
    counts, edges = found["counts"], found["edges"]
    bars = f"{_bars(found['all'] or (), ' class=all')}{_bars(counts)}"
    picture = f'<svg viewBox="0 0 {max(1, len(counts))} {_HIGH}" preserveAspectRatio="none">{bars}</svg>'
    first, last = _ends(edges[0], edges[-1]) if edges else ("", "")
    scale = "logarithmic" if found["scale"] == "log" else ""
    texts = f"<span>{first}</span>{scale}<span>{last}</span>"
    own = " to ".join(_ends(*found["ends"])) if found["all"] and found["ends"] else ""
    notes = name, own, "faint: all records" if found["all"] else "", "" if edges else "unknown"
    head = ", ".join(filter(None, notes))
    return f"<figure><figcaption>{head}</figcaption>{picture}<div class=ends>{texts}</div></figure>"


def _ends(least: float, greatest: float) -> list[str]:
    """Return both ends of a range as texts: whole numbers, or enough decimals to tell the ends apart."""
    finest = (min(greatest - least, abs(number)) or 1 for number in (least, greatest))
    digits = (max(0, 2 - math.floor(math.log10(each))) for each in finest)
    return [f"{round(number, each):,.12g}" for number, each in zip((least, greatest), digits, strict=True)]


def _bars(counts: Sequence[int], kind: str = "") -> str:
    most = max(counts, default=1) or 1
    return "".join(
        f'<rect{kind} x="{x + 0.06:.2f}" y="{_HIGH - high:.1f}" width=".88" height="{high:.1f}"/>'
        # 1.5 pixels make the bar of a small count visible.
        for x, high in enumerate(number and max(1.5, number / most * _HIGH) for number in counts)
    )


def _events(store: Store) -> str:
    known = ConversionReport(store)
    report = known.read(count=_LINES)
    if not report["total"]:
        return "<h2>Report of the conversion</h2><p>No file was rejected, repaired or damaged.</p>"
    # Damaged images are first, because they are in the store. Rejected files are not.
    lines = known.read("damaged", count=_LINES)["rows"]
    lines += [line for line in report["rows"] if line["event"] != "damaged"]
    rows = [[text(line["event"]), text(line["name"]), text(line["reason"])] for line in lines[:_LINES]]
    of = f"{len(rows)} of {report['total']:,} lines" if len(rows) < report["total"] else counted(len(rows), "line")
    counts = ", ".join(f"{number:,} {text(event)}" for event, number in report["counts"].items())
    return f"<h2>Report of the conversion: {of}</h2><p class=muted>{counts}</p><div class=events>{table(rows)}</div>"
